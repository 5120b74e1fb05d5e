"""Small quantized checkpoints, packed here from plain integers: TINY with chosen layers replaced.

Every packer is written from the layout's description, shares nothing with the package, and is slow
on purpose: one code at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.tiny_models import TINY_CONFIG, Weights, random_weights, write_hf_folder

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output of half-byte k of a word


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """[n, m] codes from 0 on → [n, ceil(m·bits/32)] i32: one stream of bits, the lowest first."""
    rows = []
    for row in codes:
        stream = sum(int(code) << (bits * place) for place, code in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([(stream >> (32 * word)) & 0xFFFFFFFF for word in range(count)])
    return np.array(rows, np.uint32).view(np.int32)


def pack_awq(codes: np.ndarray) -> np.ndarray:
    """[n, m] codes of 4 bits → [n, m/8] i32 in AWQ's order."""
    words = codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER]
    return pack_words(words.reshape(len(codes), -1), 4)


def gptq_layer(
    name: str,
    codes: np.ndarray,
    zeros: np.ndarray,
    scales: np.ndarray,
    *,
    bits: int,
    groups: Sequence[int] | None = None,
    stored_less_one: bool = True,
) -> Weights:
    """Tensors of one GPTQ layer.

    Args:
        codes: [out, in], zeros: [groups, out], both from 0 on. scales: [groups, out].
        groups: g_idx, the group of each input; left out where None.
        stored_less_one: version 1 of the zero points.
    """
    stored = (zeros - 1) % (1 << bits) if stored_less_one else zeros
    tensors = {
        f"{name}.qweight": np.ascontiguousarray(pack_words(codes, bits).T),
        f"{name}.qzeros": pack_words(stored, bits),
        f"{name}.scales": scales.astype(np.float16),
    }
    if groups is not None:
        tensors[f"{name}.g_idx"] = np.array(groups, np.int32)
    return tensors


def awq_layer(name: str, codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> Weights:
    """Tensors of one AWQ layer; arguments as for `gptq_layer`."""
    return {
        f"{name}.qweight": pack_awq(codes.T),
        f"{name}.qzeros": pack_awq(zeros),
        f"{name}.scales": scales.astype(np.float16),
    }


def ct_layer(name: str, codes: np.ndarray, scales: np.ndarray) -> Weights:
    """Tensors of one symmetric pack-quantized layer of compressed-tensors, 4 bits."""
    return {
        f"{name}.weight_packed": pack_words(codes, 4),
        f"{name}.weight_scale": np.ascontiguousarray(scales.T.astype(ml_dtypes.bfloat16)),
        f"{name}.weight_shape": np.array(codes.shape, np.int64),
    }


def decoded(
    codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: Sequence[int]
) -> np.ndarray:
    """(code - zero) · scale in float32, element by element."""
    matrix = np.empty(codes.shape, np.float32)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            group = groups[column]
            scale = np.float32(scales[group, row])
            matrix[row, column] = (
                np.float32(int(codes[row, column]) - int(zeros[group, row])) * scale
            )
    return matrix


def random_layer(
    shape: tuple[int, int], group: int, bits: int, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes and zero points from 0 on, and scales that float16 and bfloat16 hold."""
    random, groups = np.random.default_rng(seed), -(-shape[1] // group)
    codes = random.integers(0, 1 << bits, shape)
    zeros = random.integers(0, 1 << bits, (groups, shape[0]))
    scales = random.integers(1, 128, (groups, shape[0])) / 1024
    return codes, zeros, scales.astype(np.float32)


def write_quantized_tiny(
    folder: Path,
    quantization: Mapping[str, Any] | None,
    layers: Mapping[str, Weights],
    *,
    extra: Mapping[str, np.ndarray] | None = None,
    drop: Sequence[str] = (),
    num_shards: int = 1,
    **changes: Any,
) -> Path:
    """TINY whose layers named in `layers` have those tensors instead of `weight`."""
    config = {**TINY_CONFIG, **changes}
    weights = random_weights(config)
    for name, tensors in layers.items():
        del weights[f"{name}.weight"]
        weights |= tensors
    weights |= dict(extra or {})
    weights = {name: value for name, value in weights.items() if name not in drop}
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    return write_hf_folder(folder, config, weights, num_shards=num_shards)


def fp8(values: np.ndarray) -> np.ndarray:
    """Rounded to FP8 e4m3."""
    return values.astype(ml_dtypes.float8_e4m3fn)
