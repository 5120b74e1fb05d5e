"""Small mixtures of experts with known weights, as folders and as GGUF. Knows no jaxinfer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.gguf_writer import write_gguf
from tests.support.tiny_models import (
    TINY_CONFIG,
    Weights,
    gguf_metadata,
    gguf_tensors,
    random_weights,
    write_hf_folder,
)

TINY_MIXTRAL_CONFIG: dict[str, Any] = {
    **TINY_CONFIG,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
MATRICES = {"w1": "gate", "w3": "up", "w2": "down"}


def expert_name(layer: int, expert: int, matrix: str) -> str:
    """The layer of one expert's matrix, without `.weight`."""
    return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}"


def mixtral_weights(config: Mapping[str, Any], *, seed: int = 0) -> Weights:
    """A llama's weights with experts in place of its mlps."""
    weights = random_weights(config, seed=seed)
    weights = {name: value for name, value in weights.items() if ".mlp." not in name}
    random = np.random.default_rng(seed + 1)
    width, mlp = config["hidden_size"], config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        router = (config["num_local_experts"], width)
        name = f"model.layers.{layer}.block_sparse_moe.gate.weight"
        weights[name] = random.standard_normal(router, np.float32)
        for expert in range(config["num_local_experts"]):
            for matrix in MATRICES:
                shape = (width, mlp) if matrix == "w2" else (mlp, width)
                name = f"{expert_name(layer, expert, matrix)}.weight"
                weights[name] = 0.2 * random.standard_normal(shape, np.float32)
    return weights


def write_mixtral(
    folder: Path,
    *,
    replace: Mapping[str, Weights] | None = None,
    drop: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """TINY as a Mixtral. replace: layers that have those tensors instead of `weight`. changes: keys
    of config.json."""
    config = {**TINY_MIXTRAL_CONFIG, **changes}
    weights = mixtral_weights({**TINY_MIXTRAL_CONFIG, **_sizes(changes)})
    for name, tensors in (replace or {}).items():
        del weights[f"{name}.weight"]
        weights |= tensors
    weights = {name: value for name, value in weights.items() if name not in drop}
    return write_hf_folder(folder, config, weights)


def _sizes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes that weights follow."""
    return {key: changes[key] for key in ("hidden_size", "intermediate_size") if key in changes}


def fused(weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Weights:
    """The same weights with the experts of a layer in two tensors: gate above up, and down."""
    plain = {name: value for name, value in weights.items() if ".experts." not in name}
    result = {name.replace(".block_sparse_moe.", ".mlp."): plain[name] for name in plain}
    for layer in range(config["num_hidden_layers"]):
        stacks = {matrix: _stack(weights, layer, matrix, config) for matrix in MATRICES}
        prefix = f"model.layers.{layer}.mlp.experts"
        result[f"{prefix}.gate_up_proj"] = np.concatenate([stacks["w1"], stacks["w3"]], axis=1)
        result[f"{prefix}.down_proj"] = stacks["w2"]
    return result


def _stack(
    weights: Mapping[str, np.ndarray], layer: int, matrix: str, config: Mapping[str, Any]
) -> np.ndarray:
    names = [expert_name(layer, e, matrix) for e in range(config["num_local_experts"])]
    return np.stack([weights[f"{name}.weight"] for name in names])


def write_mixtral_gguf(
    path: Path, *, stacked: bool = True, metadata: Mapping[str, Any] | None = None
) -> Path:
    """TINY as a Mixtral in GGUF: one tensor of all experts, or one an expert as older files."""
    config = TINY_MIXTRAL_CONFIG
    weights = mixtral_weights(config)
    plain = {name: value for name, value in weights.items() if "block_sparse" not in name}
    tensors = gguf_tensors(config, plain)
    for layer in range(config["num_hidden_layers"]):
        router = weights[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = router
        for matrix, name in MATRICES.items():
            stack = _stack(weights, layer, matrix, config)
            if stacked:
                tensors[f"blk.{layer}.ffn_{name}_exps.weight"] = stack
                continue
            for expert, value in enumerate(stack):
                tensors[f"blk.{layer}.ffn_{name}.{expert}.weight"] = value
    entries = gguf_metadata(config) | {"llama.expert_count": 4, "llama.expert_used_count": 2}
    return write_gguf(path, entries | dict(metadata or {}), tensors)
