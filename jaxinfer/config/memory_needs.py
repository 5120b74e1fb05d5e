"""HOST. Bytes that are taken before the first page: parameters, and the state of the slots.

By arithmetic from the model; touches no device.
"""

from dataclasses import dataclass

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.step_plan import (
    BAD_WORD_ROWS,
    MAX_BAD_WORD_TOKENS,
    MAX_BIAS_IDS,
    RECENT_TOKENS,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedShare:
    """The matrices that stay packed: their elements, and the bytes they take."""

    num_elements: int = 0
    num_bytes: int = 0


NOTHING_PACKED = PackedShare()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNeeds:
    """What drafting keeps on the device beside the model.

    num_floats, packed_bytes: of parameters that are not the model's, elements in the weight dtype
    and bytes of packed ones. model: whose layers have pages of their own, beside the model's under
    the same numbers; None where the model's are shared.
    """

    num_floats: int = 0
    packed_bytes: int = 0
    model: ModelConfig | None = None


NO_DRAFTS = DraftNeeds()


def weights_bytes(
    model: ModelConfig,
    weight_dtype: str,
    packed: PackedShare = NOTHING_PACKED,
    drafts: DraftNeeds = NO_DRAFTS,
) -> int:
    """Bytes of the matrices and embeddings (norms and biases are too small to matter here)."""
    attention = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim * model.hidden_size
    mlps = sum(_mlp_sizes(model)) * 3 * model.hidden_size
    outer = model.vocab_size * model.hidden_size * (1 if model.tie_embeddings else 2)
    floats = model.num_layers * attention + mlps + outer - packed.num_elements + drafts.num_floats
    return floats * DTYPE_BYTES[weight_dtype] + packed.num_bytes + drafts.packed_bytes


def _mlp_sizes(model: ModelConfig) -> list[int]:
    """F of each layer; of all experts together where it has them."""
    experts = model.experts
    if experts is None:
        return [model.mlp_size] * model.num_layers
    every = experts.num_experts * experts.mlp_size
    return [every if is_sparse else model.mlp_size for is_sparse in experts.is_sparse]


def loop_state_bytes(num_slots: int, vocab_size: int) -> int:
    """Bytes that the device keeps of all slots between steps: four a count, a bit a flag."""
    counts = RECENT_TOKENS + vocab_size + BAD_WORD_ROWS * MAX_BAD_WORD_TOKENS
    flags = 2 * -(-vocab_size // 32)  # words: tokens that are allowed, and those that end
    return num_slots * 4 * (counts + flags + 2 * MAX_BIAS_IDS)
