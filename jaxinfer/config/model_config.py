"""HOST. What the checkpoint says: one frozen, hashable record for every architecture.

Does not know files or formats (`checkpoint/` fills it) nor what was decided for a device
(`geometry.py`).
"""

from dataclasses import dataclass
from typing import Literal

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedSwiglu:
    """The gate of gpt-oss: g · sigmoid(slope · g) · (u + 1), g at most and u within the limit."""

    slope: float
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise CheckpointError(f"swiglu_limit={self.limit} must be above 0; mend the config")


Activation = Literal["silu", "gelu_tanh"] | ClampedSwiglu


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape and constants of a decoder-only transformer.

    Axis letters: E hidden_size, L num_layers, H num_heads, K num_kv_heads, D head_dim, F mlp_size,
    V vocab_size. `windows[i]` is layer i's sliding window in tokens (the token itself included),
    0 for full attention; `layer_ropes[i]` is its index into `ropes`, None where it turns nothing. A
    softcap of 0 is off. `mlp_size` is of dense mlps; `experts` is None where all are.
    `max_position` is what the file gives; scaled ropes may reach further (`longest_context`).
    """

    architecture: str  # a name in models/registry.py
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    max_position: int
    norm_eps: float
    windows: tuple[int, ...]
    ropes: tuple[RopeConfig, ...]
    layer_ropes: tuple[int | None, ...]
    attention_scale: float
    activation: Activation = "silu"
    tie_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v
    attention_out_bias: bool = False  # on o
    mlp_bias: bool = False
    qk_norm: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    experts: ExpertConfig | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*positive, "head_dim", "mlp_size", "max_position"):
            if getattr(self, name) < 1:
                raise CheckpointError(
                    f"{name}={getattr(self, name)} must be at least 1; mend the config"
                )
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads={self.num_heads} must be a multiple of num_kv_heads="
                f"{self.num_kv_heads}; mend the config"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"head_dim={self.head_dim} must be even: rotary embeddings turn pairs"
            )
        if self.experts is not None and len(self.experts.is_sparse) != self.num_layers:
            raise CheckpointError(
                f"experts.is_sparse has {len(self.experts.is_sparse)} entries for "
                f"{self.num_layers} layers; mend the config"
            )
        for name in ("windows", "layer_ropes"):
            if len(getattr(self, name)) != self.num_layers:
                raise CheckpointError(
                    f"{name} has {len(getattr(self, name))} entries for {self.num_layers} layers; "
                    "mend the per-layer lists of the config"
                )
        if min(self.windows) < 0:
            raise CheckpointError(
                f"windows={self.windows} must be 0 (full attention) or more; mend the config"
            )
        if not set(self.layer_ropes) - {None} <= set(range(len(self.ropes))):
            raise CheckpointError(
                f"layer_ropes={self.layer_ropes} must be places in {len(self.ropes)} ropes, or "
                "None; mend the config"
            )
        self._check_ropes()

    @property
    def default_context(self) -> int:
        """Tokens up to which the frequencies of every rope are those of a short text."""
        limits = [r.original_max_position for r in self.ropes if r.depends_on_context]
        return min([self.max_position, *limits])

    @property
    def longest_context(self) -> int:
        """Tokens that the model may be run with: what the rope of every layer reaches.

        Example: `max_position` 32768 and YaRN of factor 4 over 32768: 131072. Gemma 3 scales the
        rope of some layers only, and its `max_position` is scaled already: it stays.
        """
        return min(rope.longest_context(self.max_position) for rope in self.ropes)

    def _check_ropes(self) -> None:
        for rope in self.ropes:
            turned = rope.rotary_dim or self.head_dim
            if turned > self.head_dim:
                raise CheckpointError(
                    f"rope rotary_dim={turned} must be at most head_dim={self.head_dim}; "
                    "mend the config"
                )
            if rope.scaling == "dynamic" and turned < 4:
                raise CheckpointError(
                    f"dynamic rope scaling with {turned} values of a head turned: it needs 4 or "
                    "more, for a second frequency; mend the config"
                )
            for name in ("divisors", "long_divisors"):
                if len(getattr(rope, name)) not in (0, turned // 2):
                    raise CheckpointError(
                        f"rope {name} has {len(getattr(rope, name))} factors, {turned} values of a "
                        f"head are turned, so there must be {turned // 2}; mend the config"
                    )
