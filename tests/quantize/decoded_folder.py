"""A compressed-tensors folder decoded from the format's description, one code at a time.

Shares nothing with the package: what the maker says it wrote, as a float folder.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tests.support.tiny_models import Weights, write_hf_folder


def write_decoded(source: Path, folder: Path) -> Path:
    """The folder as a float32 checkpoint."""
    config = json.loads((source / "config.json").read_text())
    scheme = config.pop("quantization_config")
    return write_hf_folder(folder, config, decoded_weights(source, scheme))


def decoded_weights(source: Path, scheme: dict[str, Any]) -> Weights:
    """All weights by their plain names."""
    stored = read_all(source)
    weights: Weights = {}
    for name, value in stored.items():
        module, _, ending = name.rpartition(".")
        if ending in ("weight_packed", "weight") and f"{module}.weight_scale" in stored:
            weights[f"{module}.weight"] = _decoded(stored, module, weights_of(scheme, module))
        elif ending in ("weight", "bias"):
            weights[name] = value.astype(np.float32)
    return weights


def read_all(source: Path) -> Weights:
    """Every tensor as the file has it."""
    stored: Weights = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            stored |= {name: file.get_tensor(name) for name in file.keys()}
    return stored


def weights_of(scheme: dict[str, Any], module: str) -> dict[str, Any]:
    """What config.json says of a module: its group by pattern first, by class otherwise."""
    assert module not in scheme["ignore"]
    groups = list(scheme["config_groups"].values())
    for group in groups:
        patterns = [target[3:] for target in group["targets"] if target.startswith("re:")]
        if any(re.match(pattern, module) for pattern in patterns):
            return group["weights"]
    (group,) = [group for group in groups if "Linear" in group["targets"]]
    return group["weights"]


def _decoded(stored: Weights, module: str, scheme: dict[str, Any]) -> np.ndarray:
    scales = stored[f"{module}.weight_scale"].astype(np.float32)
    if f"{module}.weight" in stored:
        codes = stored[f"{module}.weight"].astype(np.int64)
    else:
        rows, columns = stored[f"{module}.weight_shape"].tolist()
        codes = _unpacked(stored[f"{module}.weight_packed"], scheme["num_bits"])[:, :columns]
        assert len(codes) == rows
    zeros = np.zeros(scales.shape, np.int64)
    if not scheme["symmetric"]:
        packed = stored[f"{module}.weight_zero_point"].T
        zeros = _unpacked(packed, scheme["num_bits"])[:, : len(codes)].T
    group = codes.shape[1] if scheme["strategy"] == "channel" else scheme["group_size"]
    assert scales.shape == (len(codes), codes.shape[1] // group)
    wide = [np.repeat(each, group, axis=1) for each in (scales, zeros)]
    return ((codes - wide[1]) * wide[0].astype(np.float64)).astype(np.float32)


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Codes of each row, the lowest bits first, less half their range."""
    per_word = 32 // bits
    whole = words.astype(np.int64) & 0xFFFFFFFF
    fields = [(whole >> (bits * place)) & ((1 << bits) - 1) for place in range(per_word)]
    return np.stack(fields, axis=-1).reshape(len(words), -1) - (1 << (bits - 1))
