"""Small checkpoints with known weights: TINY and CHAIN of the case list, as folders and as GGUF.

Plain functions that write a folder or a `.gguf` file and return its path. Changes of a variant are
given as arguments: config keys, tensors to add or replace, names to drop. Knows no jaxinfer.
"""

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.support.gguf_writer import write_gguf

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY_GEMMA3_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "sliding_window_pattern": 6,
    "hidden_activation": "gelu_pytorch_tanh",
    "bos_token_id": 2,
    "eos_token_id": 1,
}
Weights = dict[str, np.ndarray]


def without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """`config` less `keys`."""
    return {key: value for key, value in config.items() if key not in keys}


def random_weights(config: Mapping[str, Any], *, seed: int = 0, std: float = 0.2) -> Weights:
    """Random float32 weights under Hugging Face names; norms scatter around the identity."""
    random = np.random.default_rng(seed)
    gemma = config["model_type"].startswith("gemma")
    weights = {}
    for name, shape in hf_shapes(config).items():
        values = std * random.standard_normal(shape, np.float32)
        center = 1.0 if name.endswith("norm.weight") and not gemma else 0.0
        weights[name] = (center + values).astype(np.float32)
    return weights


def hf_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a llama or gemma3 config.json asks for, in file order."""
    width, vocab = config["hidden_size"], config["vocab_size"]
    gemma = config["model_type"].startswith("gemma")
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config, gemma).items()}
    shapes["model.norm.weight"] = (width,)
    if not config.get("tie_word_embeddings", gemma):
        shapes["lm_head.weight"] = (vocab, width)
    return shapes


def _layer_shapes(config: Mapping[str, Any], gemma: bool) -> dict[str, tuple[int, ...]]:
    width, mlp = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or width // heads
    attention_bias, mlp_bias = config.get("attention_bias"), config.get("mlp_bias")
    matrices = {
        "self_attn.q_proj": (heads * head_dim, width, attention_bias),
        "self_attn.k_proj": (kv_heads * head_dim, width, attention_bias),
        "self_attn.v_proj": (kv_heads * head_dim, width, attention_bias),
        "self_attn.o_proj": (width, heads * head_dim, attention_bias),
        "mlp.gate_proj": (mlp, width, mlp_bias),
        "mlp.up_proj": (mlp, width, mlp_bias),
        "mlp.down_proj": (width, mlp, mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        shapes |= {f"self_attn.{x}_norm.weight": (head_dim,) for x in "qk"}
    return shapes | {f"{name}.weight": (width,) for name in norms}


def write_hf_folder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    *,
    num_shards: int = 1,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """Writes config.json and the weights; more than one shard makes an index too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    if num_shards == 1:
        save_file(dict(weights), folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        names = list(weights)[shard::num_shards]
        save_file({name: weights[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tiny(
    folder: Path,
    *,
    seed: int = 0,
    std: float = 0.2,
    drop: Collection[str] = (),
    drop_keys: Collection[str] = (),
    add: Mapping[str, np.ndarray] | None = None,
    num_shards: int = 1,
    base: Mapping[str, Any] = TINY_CONFIG,
    **changes: Any,
) -> Path:
    """TINY: a two-layer llama with random weights, as a folder.

    Args:
        drop: tensors left out of the file. drop_keys: keys left out of config.json (the weights
            are made before that). add: tensors added or replaced.
        base: TINY_GEMMA3_CONFIG for a gemma3. changes: keys of config.json.
    """
    config = {**base, **changes}
    weights = random_weights(config, seed=seed, std=std) | dict(add or {})
    weights = {name: value for name, value in weights.items() if name not in drop}
    return write_hf_folder(folder, without(config, *drop_keys), weights, num_shards=num_shards)


def chain_weights(
    next_tokens: Mapping[int, int | Sequence[int]], *, vocab_size: int = 320
) -> tuple[dict[str, Any], Weights]:
    """CHAIN: config and weights of a model whose greedy output follows `next_tokens`.

    After token i the logit of `next_tokens[i]` is sqrt(vocab_size) and all others are 0; several
    ids tie exactly. Ids that are no key repeat themselves.
    """
    config = {
        **TINY_CONFIG,
        "hidden_size": vocab_size,
        "vocab_size": vocab_size,
        "num_hidden_layers": 1,
        "num_attention_heads": vocab_size // 64,
        "num_key_value_heads": vocab_size // 64,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
    }
    weights = {name: np.zeros(s, np.float32) for name, s in hf_shapes(config).items()}
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] += 1
    weights["model.embed_tokens.weight"] = np.eye(vocab_size, dtype=np.float32)
    for token in range(vocab_size):
        following = next_tokens.get(token, token)
        ids = [following] if isinstance(following, int) else list(following)
        weights["lm_head.weight"][ids, token] = 1
    return config, weights


def write_chain(
    folder: Path,
    next_tokens: Mapping[int, int | Sequence[int]],
    *,
    vocab_size: int = 320,
    **changes: Any,
) -> Path:
    """CHAIN as a folder; `changes` are keys of config.json (`eos_token_id`, …)."""
    config, weights = chain_weights(next_tokens, vocab_size=vocab_size)
    return write_hf_folder(folder, {**config, **changes}, weights)


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """The GGUF metadata that says what a llama or gemma3 config.json says."""
    arch = "gemma3" if config["model_type"].startswith("gemma3") else "llama"
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.freq_base": float(config["rope_theta"]),
    }
    if arch == "llama":
        values |= {"rope.dimension_count": config["head_dim"], "vocab_size": config["vocab_size"]}
    else:
        values["attention.sliding_window"] = config["sliding_window"]
    tokens = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    return (
        {"general.architecture": arch}
        | {f"{arch}.{key}": value for key, value in values.items()}
        | {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}
    )


_GGUF_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GGUF_GEMMA_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_tensors(config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> Weights:
    """The weights under GGUF names: llama's q and k interleaved, gemma's norms with 1 added."""
    gemma = config["model_type"].startswith("gemma")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for name, value in weights.items():
        stem, ending = name.rsplit(".", 1)
        if stem in _GGUF_OUTER:
            target = _GGUF_OUTER[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{(_GGUF_LAYER | (_GGUF_GEMMA_LAYER if gemma else {}))[part]}"
        if gemma and name.endswith("norm.weight"):
            value = value + np.float32(1)
        if not gemma and stem.endswith(("q_proj", "k_proj")):
            value = _interleave(value, heads[stem[-6:]])
        tensors[f"{target}.{ending}"] = value
    return tensors


def _interleave(value: np.ndarray, heads: int) -> np.ndarray:
    halves = value.reshape(heads, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    std: float = 0.2,
    drop: Collection[str] = (),
    drop_keys: Collection[str] = (),
    add: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
    num_parts: int = 1,
    types: Mapping[str, str] | None = None,
    base: Mapping[str, Any] = TINY_CONFIG,
    **changes: Any,
) -> Path:
    """TINY as a float32 GGUF file; the same seed holds the same weights as `write_tiny`.

    Args:
        drop, add: tensors by GGUF name. drop_keys, metadata: metadata keys left out, set.
        num_parts: above 1, split files beside `path`; returns the first part.
        types: part of a name → block type that tensors with it are rounded to ("ffn": "Q4_0").
        base, changes: as of `write_tiny`.
    """
    config = {**base, **changes}
    tensors = gguf_tensors(config, random_weights(config, seed=seed, std=std)) | dict(add or {})
    tensors = {name: value for name, value in tensors.items() if name not in drop}
    entries = without(gguf_metadata(config), *drop_keys) | dict(metadata or {})
    if num_parts == 1:
        tensors, stored = _rounded_to_blocks(tensors, types or {})
        return write_gguf(path, entries, tensors, types=stored)
    return _write_split(path, entries, tensors, num_parts)


def _rounded_to_blocks(
    tensors: Weights, types: Mapping[str, str]
) -> tuple[Weights, dict[str, tuple[int, tuple[int, ...]]]]:
    """Matrices whose name holds a key of `types` as blocks, and what they are."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    result, stored = dict(tensors), {}
    for name, value in tensors.items():
        kinds = [kind for part, kind in types.items() if part in name and value.ndim == 2]
        if kinds:
            kind = GGMLQuantizationType[kinds[0]]
            result[name], stored[name] = quantize(value, kind), (int(kind), value.shape)
    return result, stored


def _write_split(
    path: Path, metadata: dict[str, Any], tensors: Mapping[str, np.ndarray], num_parts: int
) -> Path:
    parts = []
    for part in range(num_parts):
        split = {
            "split.no": np.uint16(part),
            "split.count": np.uint16(num_parts),
            "split.tensors.count": np.int32(len(tensors)),
        }
        names = list(tensors)[part::num_parts]
        target = path.with_name(f"{path.stem}-{part + 1:05d}-of-{num_parts:05d}.gguf")
        entries = (metadata if part == 0 else {}) | split
        parts.append(write_gguf(target, entries, {name: tensors[name] for name in names}))
    return parts[0]


def write_safetensors_header(path: Path, header: bytes, data: bytes = b"") -> Path:
    """A safetensors file with any bytes as its header, for damaged and hostile files."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path
