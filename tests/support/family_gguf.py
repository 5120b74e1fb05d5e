"""The fixtures of tests/data/families as GGUF files, with llama.cpp's names and layouts.

4-bit floats stay what they are: a block of them is an exponent and 16 bytes, whose low halves are
its first 16 values.

Names come from the gguf package's own table, so that they are no copy of ours. Knows no jaxinfer.
"""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.family_fixtures import Fixture
from tests.support.gguf_writer import write_gguf

_ARCHITECTURES = {
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
_INTERLEAVED = ("llama", "smollm3")
# What a GGUF file cannot say: windows, and which layers have none of a rope, dynamic scaling.
_UNSAYABLE = (
    "llama_dynamic",
    "mistral_window",
    "mixtral_window",
    "qwen2_window",
    "qwen3_window",
    "smollm3_window",
    "gemma2",  # its query scale, unless it is the head size
    "gpt_oss",  # its limit
    "qwen3_moe_listed",  # layers without experts
    "qwen3_moe_stepped",
)
_MXFP4 = int(gguf.GGMLQuantizationType.MXFP4)


def has_gguf_form(fixture: Fixture) -> bool:
    """Whether a GGUF file can say what the fixture is, and this module writes it."""
    return fixture.config["model_type"] in _ARCHITECTURES and fixture.name not in _UNSAYABLE


def write_family_gguf(path: Path, fixture: Fixture) -> Path:
    """The fixture as a GGUF file, float32 but for 4-bit floats."""
    config = fixture.config
    kind = _ARCHITECTURES[config["model_type"]]
    arch = gguf.MODEL_ARCH_NAMES[kind]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    tensors, types = {}, {}
    for name, value in _one_by_one(fixture.weights).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        tensors[stored] = _stored(name, value, arch, config)
        if value.dtype == np.uint8:
            types[stored] = (_MXFP4, (*value.shape[:2], value.shape[2] // 17 * 32))
    rope = config["rope_parameters"]
    for length in ("short", "long"):
        if f"{length}_factor" in rope:
            factors = np.array(rope[f"{length}_factor"], np.float32)
            tensors[f"rope_factors_{length}.weight"] = factors
    return write_gguf(path, _metadata(arch, config), tensors, types=types)


def _one_by_one(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gates and ups of experts as tensors of their own: their rows are halves of one, and take
    turns in gpt-oss; blocks with their scales; sinks as weights."""
    found = {}
    for name, value in weights.items():
        if name.endswith("_blocks"):
            scales = weights[name.replace("_blocks", "_scales")]
            name, value = f"{name.removesuffix('_blocks')}.weight", _mxfp4_rows(value, scales)
        elif name.endswith(".sinks"):
            name = f"{name}.weight"
        elif name.endswith("_proj_bias"):
            name = f"{name.removesuffix('_bias')}.bias"
        if ".experts.gate_up_proj." in name:
            for place, part in enumerate(("gate_proj", "up_proj")):
                rows = np.ascontiguousarray(value[:, place::2])
                found[name.replace("gate_up_proj", part)] = rows
        elif name.endswith(".experts.gate_up_proj"):
            for part, rows in zip(("gate_proj", "up_proj"), np.split(value, 2, 1), strict=True):
                stored = f"{name.replace('gate_up_proj', part)}.weight"
                found[stored] = np.ascontiguousarray(rows)
        elif name.endswith(".experts.down_proj"):
            found[f"{name}.weight"] = value
        elif not name.endswith("_scales"):
            found[name] = value
    return found


def _mxfp4_rows(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[experts, rows, groups, 16] → [experts, rows, groups · 17]."""
    values = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    packed = values[..., :16] | values[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(*scales.shape[:2], -1)


def _stored(name: str, value: np.ndarray, arch: str, config: dict[str, Any]) -> np.ndarray:
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return value + np.float32(1)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if arch in _INTERLEAVED and part in heads:
        halves = value.reshape(heads[part], 2, -1, *value.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
    return value


def _metadata(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    rope, heads = config["rope_parameters"], config["num_attention_heads"]
    rope = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    values: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    if arch != "phi3":
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch in ("llama", "phi3", "smollm3"):
        fraction = rope.get("partial_rotary_factor", 1.0)
        values["rope.dimension_count"] = int(head_dim * fraction)
    if rope["rope_type"] == "yarn":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
    if "original_max_position_embeddings" in rope:
        original = rope["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = original
        if rope["rope_type"] == "longrope":
            stretch = config["max_position_embeddings"] / original
            magnitude = math.sqrt(1 + math.log(stretch) / math.log(original))
            values["rope.scaling.attn_factor"] = magnitude
    if "num_local_experts" in config:
        size = config.get("moe_intermediate_size", config["intermediate_size"])
        values |= {
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": size,
        }
    if arch in ("gemma2", "gemma3", "gpt-oss", "phi3"):
        values["attention.sliding_window"] = config.get("sliding_window") or 0
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(cap):
            values[cap] = float(config[cap])
    return {"general.architecture": arch} | {f"{arch}.{key}": v for key, v in values.items()}
