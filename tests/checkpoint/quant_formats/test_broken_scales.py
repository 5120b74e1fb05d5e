"""NaN and infinity where a scale, a float offset or a zero point should be, in every format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from jaxinfer.errors import CheckpointError
from tests.checkpoint.quant_formats.opened import DOWN, DOWN_SHAPE, load
from tests.support.quant_folders import (
    gptq_layer,
    pack_awq,
    pack_words,
    random_layer,
    write_quantized_tiny,
)
from tests.support.tiny_models import (
    TINY_CONFIG,
    gguf_tensors,
    random_weights,
    write_tiny_gguf,
)

GROUP = 32
BROKEN = (1, 7)  # group and output
COMMON: dict[str, Any] = {"bits": 4, "group_size": GROUP}
CT_WEIGHTS = {
    **{"num_bits": 4, "type": "int", "symmetric": True},
    **{"strategy": "group", "group_size": GROUP},
}


def layer_with(value: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes, zeros, scales = random_layer(DOWN_SHAPE, GROUP, 4)
    scales[BROKEN] = value
    return codes, zeros, scales


def gptq(folder: Path, value: float) -> Path:
    config = COMMON | {"quant_method": "gptq", "desc_act": False}
    layers = {DOWN: gptq_layer(DOWN, *layer_with(value), bits=4)}
    return write_quantized_tiny(folder, config, layers)


def awq(folder: Path, value: float) -> Path:
    codes, zeros, scales = layer_with(value)
    tensors = {
        f"{DOWN}.qweight": pack_awq(codes.T),
        f"{DOWN}.qzeros": pack_awq(zeros),
        f"{DOWN}.scales": scales.astype(np.float16),
    }
    config = COMMON | {"quant_method": "awq", "zero_point": True, "version": "gemm"}
    return write_quantized_tiny(folder, config, {DOWN: tensors})


def compressed_tensors(folder: Path, value: float) -> Path:
    codes, _, scales = layer_with(value)
    tensors = {
        f"{DOWN}.weight_packed": pack_words(codes, 4),
        f"{DOWN}.weight_scale": np.ascontiguousarray(scales.T.astype(ml_dtypes.bfloat16)),
        f"{DOWN}.weight_shape": np.array(codes.shape, np.int64),
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"a": {"targets": [f"re:.*{DOWN}"], "weights": CT_WEIGHTS}},
    }
    return write_quantized_tiny(folder, config, {DOWN: tensors})


def gguf_blocks(name: str, place: int) -> Callable[[Path, float], Path]:
    """A file in which the f16 at byte `place` of a block of ffn_down is the value: there the scale
    (or offset) of columns 32 to 63 of output 7."""

    def make(folder: Path, value: float) -> Path:
        path = write_tiny_gguf(folder / "m.gguf", types={"blk.1.ffn_down": name})
        matrix = gguf_tensors(TINY_CONFIG, random_weights(TINY_CONFIG))["blk.1.ffn_down.weight"]
        block_bytes = quantize(matrix, GGMLQuantizationType[name]).tobytes()
        size = len(block_bytes) // (matrix.size // 32)
        raw = bytearray(path.read_bytes())
        start = raw.index(block_bytes) + size * (7 * DOWN_SHAPE[1] // 32 + 1) + place
        raw[start : start + 2] = np.float16(value).tobytes()
        path.write_bytes(raw)
        return path

    return make


MAKERS = {
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "Q4_0": gguf_blocks("Q4_0", 0),
    "Q8_0": gguf_blocks("Q8_0", 0),
    "Q4_1": gguf_blocks("Q4_1", 0),
    "Q4_1, offset": gguf_blocks("Q4_1", 2),
}


@pytest.mark.parametrize("keep_packed", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", MAKERS)
def test_a_scale_that_is_no_number_is_refused(
    tmp_path: Path, name: str, value: float, keep_packed: bool
) -> None:
    """BB-41 (Model-Optimizer#1633, vllm#52501), in formats of integers: their codes hold no NaN,
    their scales do. The layer is named, and nothing is generated from it."""
    folder = MAKERS[name](tmp_path, value)
    with pytest.raises(CheckpointError, match=r"1\.(mlp\.down_proj|ffn_down).* in .*NaN or infin"):
        load(folder, keep_packed=keep_packed)


@pytest.mark.parametrize("name", [name for name in MAKERS if "Q4_1" not in name])
def test_a_group_with_scale_zero_is_zero(tmp_path: Path, name: str) -> None:
    """BB-41: a zero block is zero, not 0/0."""
    params = load(MAKERS[name](tmp_path, 0.0), keep_packed=False)
    down = np.asarray(params["layers"][1]["down"].value)
    group, output = BROKEN
    assert not down[output, group * GROUP : (group + 1) * GROUP].any()
    assert down[output, : group * GROUP].any() and np.isfinite(down).all()
