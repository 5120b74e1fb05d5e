"""4-bit floats are decoded at load, whatever is asked to stay packed."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.leaf_source import PackedMatrix
from jaxinfer.errors import CheckpointError
from tests.checkpoint.quant_formats.opened import DOWN, DOWN_SHAPE, layer_of, load, read
from tests.checkpoint.quant_formats.test_compressed_tensors import config_of, group
from tests.support.quant_folders import write_quantized_tiny

VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def written(folder: Path, kind: str, drop: tuple[str, ...] = ()) -> tuple[Path, np.ndarray]:
    """A folder with one such layer, and the layer's values."""
    random, (rows, columns) = np.random.default_rng(0), DOWN_SHAPE
    codes = random.integers(0, 16, DOWN_SHAPE).astype(np.uint8)
    tensors = {f"{DOWN}.weight_packed": codes[:, ::2] | codes[:, 1::2] << 4}
    size = 16 if kind == "nvfp4" else 32
    if kind == "nvfp4":
        scales = random.uniform(1, 400, (rows, columns // size)).astype(ml_dtypes.float8_e4m3fn)
        tensors[f"{DOWN}.weight_global_scale"] = np.array([1000.0], np.float32)
        factors = scales.astype(np.float32) / np.float32(1000)
    else:
        scales = random.integers(118, 128, (rows, columns // size)).astype(np.uint8)
        factors = 2.0 ** (scales.astype(np.float32) - 127)
    tensors[f"{DOWN}.weight_scale"] = scales
    entry = group(["Linear"], type="float", group_size=size, strategy="tensor_group")
    config = config_of(entry, format=f"{kind}-pack-quantized")
    folder = write_quantized_tiny(folder, config, {DOWN: tensors}, drop=drop)
    return folder, np.array(VALUES, np.float32)[codes] * factors.repeat(size, axis=1)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_values(tmp_path: Path, kind: str) -> None:
    folder, matrix = written(tmp_path, kind)
    source = layer_of(folder, DOWN)
    assert not isinstance(source, PackedMatrix)
    np.testing.assert_array_equal(read(source), matrix)
    params = load(folder, keep_packed=True)
    np.testing.assert_array_equal(params["layers"][1]["down"].value, matrix)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_a_missing_scale_is_named(tmp_path: Path, kind: str) -> None:
    folder, _ = written(tmp_path, kind, drop=(f"{DOWN}.weight_scale",))
    with pytest.raises(CheckpointError, match="lacks '.*weight_scale'"):
        layer_of(folder, DOWN)
