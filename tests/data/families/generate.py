"""Writes the fixtures of this folder with transformers and torch.

`python tests/data/families/generate.py [NAME ...]` at the root of the repository, all of them where
no name is given, in an environment of its own with torch and transformers 5. Eager attention,
float32. Prompt 1 exceeds every window and every trained context below.
"""

import json
import sys
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support.family_fixtures import FOLDER, seeded_weights

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SHORT = [1.0, 1.1, 1.3, 1.7]
LONG = [1.5, 2.5, 4.0, 6.5]
# The limit is one that gates and ups of these weights go past.
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "swiglu_limit": 0.75,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
        "rope_theta": 150000.0,
    },
}
CASES: dict[str, dict[str, Any]] = {
    "gemma": {
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "head_dim": 12,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "gemma2_bias": {
        "model_type": "gemma2",
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "tie_word_embeddings": True,
    },
    "gpt_oss": GPT_OSS,
    "gpt_oss_mxfp4": {
        **GPT_OSS,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "swiglu_limit": 7.0,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
    },
    "llama_dynamic": {
        "model_type": "llama",
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    },
    "llama_odd_heads": {
        "model_type": "llama",
        "hidden_size": 40,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "num_hidden_layers": 2,
    },
    "mistral_full": {"model_type": "mistral", "head_dim": 20, "sliding_window": None},
    "mistral_window": {
        "model_type": "mistral",
        "sliding_window": 8,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    },
    "mixtral_window": {
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
    },
    "mixtral_full": {
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "sliding_window": None,
    },
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 2},
    "olmo2_mha": {"model_type": "olmo2", "num_key_value_heads": 4, "attention_bias": True},
    "phi3": {"model_type": "phi3", "sliding_window": 8},
    "phi3_longrope": {
        "model_type": "phi3",
        "hidden_size": 40,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": SHORT,
            "long_factor": LONG,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.8,
        },
    },
    "qwen2_window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen2_yarn": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 1000000.0,
        },
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "qwen3_window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 1000000.0,
        },
    },
    "qwen3_moe_all": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "head_dim": 8,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    "qwen3_moe_listed": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "head_dim": 8,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0, 2],
        "norm_topk_prob": False,
    },
    "qwen3_moe_stepped": {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    },
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 5,
        "tie_word_embeddings": True,
        "sliding_window": None,
    },
    "smollm3_window": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 8,
        "tie_word_embeddings": True,
    },
}
# What transformers v4 did not write, or spelt otherwise.
NEWER = ("dtype", "rope_parameters", "transformers_version", "architectures", "_name_or_path")
FOLLOWS = ("gemma2", "gemma3_text", "gpt_oss", "mistral", "qwen2", "qwen3")  # v4 has rules there in place of `layer_types`


def older_config(config: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The same as config.json of transformers v4.51."""
    older = {key: value for key, value in config.items() if key not in NEWER}
    entry = dict(config["rope_parameters"])
    if config["model_type"] == "gemma3_text":
        older["rope_local_base_freq"] = entry["sliding_attention"]["rope_theta"]
        older["sliding_window_pattern"] = 6
        entry = dict(entry["full_attention"])
    older["rope_theta"] = entry.pop("rope_theta")
    if config["model_type"] == "phi3":
        older["partial_rotary_factor"] = entry.pop("partial_rotary_factor", 1.0)
    kind = entry.pop("rope_type")
    older["rope_scaling"] = None if kind == "default" else {"type": kind, **entry}
    if kind == "longrope":
        older["rope_scaling"].pop("original_max_position_embeddings", None)
    if config["model_type"] in FOLLOWS:
        older.pop("layer_types", None)
    if config["model_type"] == "gpt_oss":
        older.pop("swiglu_alpha")
    if config["model_type"] == "qwen3_moe" and "num_local_experts" in older:
        older["num_experts"] = older.pop("num_local_experts")
    older["torch_dtype"] = "float32"
    older["transformers_version"] = "4.51.3"
    return older


def logits_of(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids[None])).logits[0].float().numpy()


def packed_shapes(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Experts [experts, in, out] as 4-bit floats: two a byte, a scale for 32."""
    packed = {}
    for name, shape in shapes.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, columns, rows = shape
            packed[f"{name}_blocks"] = [count, rows, columns // 32, 16]
            packed[f"{name}_scales"] = [count, rows, columns // 32]
        else:
            packed[name] = shape
    return packed


def decoded(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With experts as transformers makes them of 4-bit floats."""
    plain = {name: value for name, value in weights.items() if value.dtype != torch.uint8}
    for name in weights:
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            pair = weights[name], weights[f"{stem}_scales"]
            plain[stem] = convert_moe_packed_tensors(*pair, dtype=torch.float32)
    return plain


def write_case(name: str, case: dict[str, Any]) -> None:
    settings = {**COMMON, **case}
    quantized = settings.pop("quantization_config", None)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    state = {key: value for key, value in model.state_dict().items() if key not in tied}
    shapes = {key: list(value.shape) for key, value in state.items()}
    shapes = packed_shapes(shapes) if quantized else shapes
    weights = {k: torch.tensor(v) for k, v in seeded_weights(shapes, config.model_type).items()}
    missing = model.load_state_dict(decoded(weights), strict=False)
    assert set(missing.missing_keys) <= tied and not missing.unexpected_keys, missing
    model.tie_weights()
    random = np.random.RandomState(7)
    arrays = {f"ids{n}": random.randint(3, 64, count) for n, count in enumerate((7, 40))}
    arrays |= {f"logits{n}": logits_of(model, arrays[f"ids{n}"]) for n in (0, 1)}
    v5 = json.loads(config.to_json_string(use_diff=False))
    v5 = {key: value for key, value in v5.items() if key not in UNSAID}
    v5 |= {"quantization_config": quantized} if quantized else {}
    described = {"v5": v5, "v4": older_config(v5, case), "shapes": shapes}
    (FOLDER / f"{name}.json").write_text(json.dumps(described, indent=1) + "\n")
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    print(name, [float(np.abs(arrays[f"logits{n}"]).max()) for n in (0, 1)])


# What every config has from its base class and no model looks at.
UNSAID = ("id2label", "label2id", "output_attentions", "output_hidden_states", "return_dict")

if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        write_case(name, CASES[name])
