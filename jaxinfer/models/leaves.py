"""DEV. The leaves that most decoder-only families share, under their usual checkpoint names.

An architecture's file takes these and changes what differs. Knows names, not files.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any, NamedTuple

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.weights import BiasedWeight, Weight
from jaxinfer.models.spec import ExpertStack, Leaf, LeafRole


class ExpertNames(NamedTuple):
    """What a family calls its experts in Hugging Face files, and how it keeps those of a layer.

    block: the module beside the norms; newer_block: what files with the experts of a layer in one
    tensor call it. gate, up, down: the matrices of one expert. has_biases: router and experts have
    some. takes_turns, inputs_first: as in `ExpertStack`, of the tensors with all experts.
    """

    block: str
    gate: str
    up: str
    down: str
    newer_block: str = "mlp"
    router: str = "gate"
    has_biases: bool = False
    takes_turns: bool = False
    inputs_first: bool = False


def gguf_biases(names: Set[str]) -> dict[str, Any]:
    """Which of attention's projections have biases, by the tensors of a GGUF file."""
    return {
        "attention_bias": "blk.0.attn_q.bias" in names,
        "attention_out_bias": "blk.0.attn_output.bias" in names,
    }


def matrix(
    hf: str,
    gguf: str,
    shape: tuple[int, int],
    axes: tuple[str, str],
    *,
    bias: bool = False,
    heads: int = 0,
) -> Any:
    """A linear layer's record of leaves, `[out, in]`; names come without `.weight`/`.bias`."""
    weight: Any = Leaf(
        role="matrix",
        shape=shape,
        axes=axes,
        hf=f"{hf}.weight",
        gguf=f"{gguf}.weight",
        gguf_interleaved_heads=heads,
    )
    if not bias:
        return Weight(value=weight)
    addend: Any = Leaf(
        role="bias",
        shape=shape[:1],
        axes=axes[:1],
        hf=f"{hf}.bias",
        gguf=f"{gguf}.bias",
        gguf_interleaved_heads=heads,
    )
    return BiasedWeight(value=weight, bias=addend)


def norm(hf: str, gguf: str, size: int, *, hf_add: float = 0.0) -> Leaf:
    """A norm's scale; names come without `.weight`."""
    return Leaf(
        role="norm",
        shape=(size,),
        axes=("embed",),
        hf=f"{hf}.weight",
        gguf=f"{gguf}.weight",
        hf_add=hf_add,
    )


def pre_norms(config: ModelConfig, layer: int, *, hf_add: float = 0.0) -> dict:
    """The norms on what attention and mlp of one layer read."""
    hf, gguf, width = f"model.layers.{layer}", f"blk.{layer}", config.hidden_size
    attention = norm(f"{hf}.input_layernorm", f"{gguf}.attn_norm", width, hf_add=hf_add)
    mlp = norm(f"{hf}.post_attention_layernorm", f"{gguf}.ffn_norm", width, hf_add=hf_add)
    return {"attention_norm": attention, "mlp_norm": mlp}


def attention_leaves(config: ModelConfig, layer: int, *, interleaved: bool = False) -> dict:
    """q, k, v and o of one layer. `interleaved`: GGUF keeps rotary pairs of q and k adjacent."""
    hf, gguf = f"model.layers.{layer}.self_attn", f"blk.{layer}.attn"
    wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    width, bias = config.hidden_size, config.attention_bias
    heads = (config.num_heads, config.num_kv_heads) if interleaved else (0, 0)
    return {
        "q": matrix(
            f"{hf}.q_proj",
            f"{gguf}_q",
            (wide, width),
            ("heads", "embed"),
            bias=bias,
            heads=heads[0],
        ),
        "k": matrix(
            f"{hf}.k_proj",
            f"{gguf}_k",
            (narrow, width),
            ("kv_heads", "embed"),
            bias=bias,
            heads=heads[1],
        ),
        "v": matrix(f"{hf}.v_proj", f"{gguf}_v", (narrow, width), ("kv_heads", "embed"), bias=bias),
        "o": matrix(
            f"{hf}.o_proj",
            f"{gguf}_output",
            (width, wide),
            ("embed", "heads"),
            bias=config.attention_out_bias,
        ),
    }


def mlp_leaves(config: ModelConfig, layer: int) -> dict:
    """gate, up and down of one gated mlp."""
    hf, gguf = f"model.layers.{layer}.mlp", f"blk.{layer}.ffn"
    inward, outward = (config.mlp_size, config.hidden_size), (config.hidden_size, config.mlp_size)
    bias = config.mlp_bias
    return {
        "gate": matrix(f"{hf}.gate_proj", f"{gguf}_gate", inward, ("mlp", "embed"), bias=bias),
        "up": matrix(f"{hf}.up_proj", f"{gguf}_up", inward, ("mlp", "embed"), bias=bias),
        "down": matrix(f"{hf}.down_proj", f"{gguf}_down", outward, ("embed", "mlp"), bias=bias),
    }


def expert_leaves(config: ModelConfig, layer: int, hf_names: ExpertNames) -> dict:
    """The router and the stacked gate, up and down of the experts of one layer."""
    experts = config.experts
    assert experts is not None
    hf, gguf = f"model.layers.{layer}.{hf_names.block}", f"blk.{layer}.ffn"
    newer = f"model.layers.{layer}.{hf_names.newer_block}"
    count, width, size = experts.num_experts, config.hidden_size, experts.mlp_size
    inward, outward = (count, size, width), (count, width, size)
    router = matrix(
        f"{hf}.{hf_names.router}",
        f"{gguf}_gate_inp",
        (count, width),
        ("experts", "embed"),
        bias=hf_names.has_biases,
    )
    newer_name = f"{newer}.{hf_names.router}.weight"
    axes = ("experts", "mlp", "embed")
    names = (hf, newer, gguf, hf_names)
    stacks = {
        "gate": _stack(names, "gate", hf_names.gate, inward, axes, fused=(0, 2)),
        "up": _stack(names, "up", hf_names.up, inward, axes, fused=(1, 2)),
        "down": _stack(names, "down", hf_names.down, outward, (axes[0], axes[2], axes[1])),
    }
    leaf = replace(router.value, role="router", hf_newer=newer_name)
    return {"router": router.replace(value=leaf), "experts": stacks}


def _stack(
    names: tuple[str, str, str, ExpertNames],
    name: str,
    hf_name: str,
    shape: tuple[int, int, int],
    axes: tuple[str, str, str],
    *,
    fused: tuple[int, int] | None = None,
) -> Weight | BiasedWeight:
    """A stack's record of leaves.

    names: the block in Hugging Face files, in newer ones, and in GGUF files, and the family's.
    fused: (place, parts) of one that newer files keep together with another.
    """
    hf, newer, gguf, family = names
    together = "gate_up_proj" if fused else f"{name}_proj"
    part, num_parts = fused or (0, 1)

    def leaf(role: LeafRole, ending: str, hf_all: str, rank: int) -> Any:
        stack = ExpertStack(
            hf_each=f"{hf}.experts.{{expert}}.{hf_name}.{ending}",
            gguf_each=f"{gguf}_{name}.{{expert}}.{ending}",
            gguf_all=f"{gguf}_{name}_exps.{ending}",
            hf_all=f"{newer}.experts.{hf_all}",
            hf_part=part,
            hf_num_parts=num_parts,
            hf_takes_turns=family.takes_turns,
            hf_inputs_first=family.inputs_first,
        )
        return Leaf(
            role=role,
            shape=shape[:rank],
            axes=axes[:rank],
            hf=stack.hf_each,
            gguf=stack.gguf_all,
            stack=stack,
        )

    weight = leaf("matrix", "weight", together, 3)
    if not family.has_biases:
        return Weight(value=weight)
    return BiasedWeight(value=weight, bias=leaf("bias", "bias", f"{together}_bias", 2))


def outer_leaves(config: ModelConfig, *, hf_add: float = 0.0) -> dict:
    """Embedding, final norm and, where it is not tied, the output head."""
    shape = (config.vocab_size, config.hidden_size)
    leaves: dict[str, Any] = {
        "embedding": Leaf(
            role="embedding",
            shape=shape,
            axes=("vocab", "embed"),
            hf="model.embed_tokens.weight",
            gguf="token_embd.weight",
        ),
        "final_norm": norm("model.norm", "output_norm", config.hidden_size, hf_add=hf_add),
    }
    if not config.tie_embeddings:
        leaves["head"] = matrix("lm_head", "output", shape, ("vocab", "embed"))
    return leaves
