"""DEV. The leaves that most decoder-only families share, under their usual checkpoint names.

An architecture's file takes these and changes what differs. Knows names, not files.
"""

from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.weights import BiasedWeight, Weight
from jaxinfer.models.spec import Leaf


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
