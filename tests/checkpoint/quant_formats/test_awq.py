"""AWQ layers packed by hand, and the versions that are refused."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.leaf_source import PlainTensor
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.checkpoint.quant_formats.opened import (
    DOWN,
    DOWN_SHAPE,
    Q,
    layer_of,
    packed_layer,
    read,
)
from tests.support.quant_folders import decoded, pack_awq, random_layer, write_quantized_tiny

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def awq_layer(
    codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, dtype: Any = np.float16
) -> dict[str, np.ndarray]:
    return {
        f"{DOWN}.qweight": pack_awq(codes.T),
        f"{DOWN}.qzeros": pack_awq(zeros),
        f"{DOWN}.scales": scales.astype(dtype),
    }


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_layer(tmp_path: Path, dtype: Any) -> None:
    """Zero points are stored as they are, and read whatever `zero_point` says."""
    layer = random_layer(DOWN_SHAPE, 32, 4)
    config = CONFIG | {"zero_point": False, "version": "GEMM"}
    folder = write_quantized_tiny(tmp_path, config, {DOWN: awq_layer(*layer, dtype)})
    source = packed_layer(folder, DOWN)
    assert (source.form.addend, source.form.scale_dtype) == ("zeros", np.dtype(dtype))
    np.testing.assert_array_equal(
        read(source, step=32), decoded(*layer, [i // 32 for i in range(96)])
    )
    assert isinstance(layer_of(folder, Q), PlainTensor)


def test_symmetric_layers_need_no_zero_points(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer(DOWN_SHAPE, 96, 4)
    zeros[...] = 8
    folder = write_quantized_tiny(
        tmp_path, CONFIG | {"group_size": -1}, {DOWN: awq_layer(codes, zeros, scales)}
    )
    source = packed_layer(folder, DOWN)
    assert (source.form.addend, source.form.group) == ("none", 96)
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, [0] * 96))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "gemv"}, "version='gemv'"),
        ({"version": "gemv_fast"}, "version='gemv_fast'"),
        ({"version": "marlin"}, "version='marlin'"),
        ({"version": "llm-awq"}, "version='llm-awq'"),
        ({"bits": 8}, "bits=8"),
        ({"dynamic": {"x": {}}}, "dynamic"),
    ],
)
def test_other_packings_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    folder = write_quantized_tiny(tmp_path, CONFIG | change, {})
    with pytest.raises(UnsupportedError, match=told):
        open_checkpoint(folder, show_progress=False)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    layers = {DOWN: awq_layer(*random_layer(DOWN_SHAPE, 32, 4))}
    folder = write_quantized_tiny(tmp_path / "group", CONFIG | {"group_size": 16}, layers)
    with pytest.raises(CheckpointError, match="down_proj.qzeros.*group_size 16"):
        layer_of(folder, DOWN)
    folder = write_quantized_tiny(tmp_path / "scale", CONFIG, layers, drop=[f"{DOWN}.scales"])
    with pytest.raises(CheckpointError, match="lacks '.*down_proj.scales'"):
        layer_of(folder, DOWN)
    with pytest.raises(CheckpointError, match="group_size=0"):
        layer_of(write_quantized_tiny(tmp_path / "0", CONFIG | {"group_size": 0}, layers), DOWN)
