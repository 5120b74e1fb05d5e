"""A llama or gemma3 forward pass in float64 NumPy, dense and slow: what logits should be.

Written from the papers and the config's meaning, sharing nothing with the package.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]


def reference_logits(
    config: Mapping[str, Any],
    weights: Weights,
    ids: list[int],
    frequencies: np.ndarray | None = None,
) -> np.ndarray:
    """Logits [T, V] of Hugging Face weights. frequencies [D/2]: in place of the plain ones."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta", 10000.0)
    plain = theta ** -(np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(len(ids)), plain if frequencies is None else frequencies)
    x = weights["model.embed_tokens.weight"].astype(np.float64)[ids]
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        normed = _norm(x, weights[name + "input_layernorm.weight"], config)
        x = x + _attention(normed, weights, name + "self_attn.", config, size, angles)
        normed = _norm(x, weights[name + "post_attention_layernorm.weight"], config)
        x = x + _mlp(normed, weights, name + "mlp.")
    x = _norm(x, weights["model.norm.weight"], config)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return x @ head.astype(np.float64).T


def _attention(
    x: np.ndarray, weights: Weights, name: str, config: Mapping[str, Any], size: int, angles: Any
) -> np.ndarray:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q = _turn(_linear(x, weights, name + "q_proj").reshape(len(x), heads, size), angles)
    k = _turn(_linear(x, weights, name + "k_proj").reshape(len(x), kv_heads, size), angles)
    v = _linear(x, weights, name + "v_proj").reshape(len(x), kv_heads, size)
    hidden = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    out = np.empty_like(q)
    for head in range(heads):
        group = head * kv_heads // heads
        scores = q[:, head] @ k[:, group].T / math.sqrt(size) + hidden
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = shares / shares.sum(axis=-1, keepdims=True) @ v[:, group]
    return _linear(out.reshape(len(x), -1), weights, name + "o_proj")


def _turn(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    left, right = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _mlp(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    gate = _linear(x, weights, name + "gate_proj")
    up = _linear(x, weights, name + "up_proj")
    return _linear(gate / (1 + np.exp(-gate)) * up, weights, name + "down_proj")


def _norm(x: np.ndarray, weight: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * weight


def _linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    out = x @ weights[name + ".weight"].astype(np.float64).T
    return out + weights[name + ".bias"] if name + ".bias" in weights else out
