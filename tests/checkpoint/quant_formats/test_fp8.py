"""FP8 layers: scales of every shape, blocks, and bytes that are no number."""

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
    V_SHAPE,
    K,
    Q,
    V,
    layer_of,
    load,
    packed_layer,
    read,
)
from tests.support.quant_folders import fp8, write_quantized_tiny

CONFIG: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CT_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True},
        }
    },
}


def codes_of(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return fp8(np.random.default_rng(seed).normal(0, 50, shape).clip(-448, 448))


@pytest.mark.parametrize("block", [(32, 32), (48, 40), (128, 128)])
def test_blocks(tmp_path: Path, block: tuple[int, int]) -> None:
    """Times the scale, whatever its name says; the last block of a row or column may be short."""
    rows, columns = DOWN_SHAPE
    codes = codes_of(DOWN_SHAPE)
    grid = -(-rows // block[0]), -(-columns // block[1])
    scales = np.random.default_rng(1).uniform(0.01, 0.1, grid).astype(np.float32)
    layers = {DOWN: {f"{DOWN}.weight": codes, f"{DOWN}.weight_scale_inv": scales}}
    config = CONFIG | {"weight_block_size": list(block)}
    source = packed_layer(write_quantized_tiny(tmp_path, config, layers), DOWN)
    wide = scales.repeat(block[0], axis=0)[:rows].repeat(block[1], axis=1)[:, :columns]
    step = np.lcm(32, source.form.out_group)
    np.testing.assert_array_equal(read(source, int(step)), codes.astype(np.float32) * wide)


def test_scales_that_are_powers_of_two(tmp_path: Path) -> None:
    codes = codes_of(V_SHAPE)
    scales = np.array([[0.25, 0.5]], ml_dtypes.float8_e8m0fnu)
    layers = {V: {f"{V}.weight": codes, f"{V}.weight_scale_inv": scales}}
    config = CONFIG | {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    found = read(layer_of(write_quantized_tiny(tmp_path, config, layers), V))
    wide = np.array([[0.25] * 32 + [0.5] * 32], np.float32)
    np.testing.assert_array_equal(found, codes.astype(np.float32) * wide)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (32,), (32, 1)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_scales_of_a_tensor_and_of_a_row(tmp_path: Path, shape: tuple, dtype: Any) -> None:
    """BB-40 (sglang#31105): [1, 1] is one scale and no grid of blocks; [O] is [O, 1]."""
    codes = codes_of(V_SHAPE)
    scales = np.random.default_rng(1).uniform(0.01, 0.1, shape).astype(dtype)
    layers = {V: {f"{V}.weight": codes, f"{V}.weight_scale": scales}}
    for name, config in (("ct", CT_CONFIG), ("old", CONFIG)):
        folder = write_quantized_tiny(tmp_path / name, config, layers)
        wide = np.broadcast_to(np.reshape(scales, (-1, 1)), (32, 1)).astype(np.float32)
        source = packed_layer(folder, V)
        np.testing.assert_array_equal(read(source), codes.astype(np.float32) * wide)
        assert (source.form.group, source.form.out_group) == (64, 1)


def test_every_projection_keeps_its_own_scale(tmp_path: Path) -> None:
    """BB-40 (vllm#5940): q, k and v with tensor scales 0.01, 0.1 and 1."""
    layers, codes = {}, {}
    for name, rows, scale in ((Q, 64, 0.01), (K, 32, 0.1), (V, 32, 1.0)):
        codes[name] = codes_of((rows, 64), seed=rows)
        layers[name] = {
            f"{name}.weight": codes[name],
            f"{name}.weight_scale": np.array([scale], np.float32),
        }
    folder = write_quantized_tiny(tmp_path, CT_CONFIG, layers)
    for name, scale in ((Q, 0.01), (K, 0.1), (V, 1.0)):
        expected = codes[name].astype(np.float32) * np.float32(scale)
        np.testing.assert_array_equal(read(layer_of(folder, name)), expected)


def nan_folder(folder: Path, byte: int) -> Path:
    codes = codes_of(V_SHAPE)
    codes.view(np.uint8)[5, 7] = byte
    scales = np.full((1, 1), 0.5, np.float32)
    layers = {V: {f"{V}.weight": codes, f"{V}.weight_scale": scales}}
    return write_quantized_tiny(folder, CT_CONFIG, layers)


@pytest.mark.parametrize("keep_packed", [True, False])
@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_a_byte_that_is_no_number_is_refused(tmp_path: Path, keep_packed: bool, byte: int) -> None:
    """BB-41 (slime#2256): the layer is named; text of NaN is never made."""
    with pytest.raises(CheckpointError, match=f"'{V}' in .*NaN or infinity"):
        load(nan_folder(tmp_path, byte), keep_packed=keep_packed)


@pytest.mark.parametrize("keep_packed", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scale_that_is_no_number_is_refused(
    tmp_path: Path, keep_packed: bool, value: float
) -> None:
    scales = np.ones((32, 1), np.float32)
    scales[9] = value
    layers = {V: {f"{V}.weight": codes_of(V_SHAPE), f"{V}.weight_scale": scales}}
    folder = write_quantized_tiny(tmp_path, CT_CONFIG, layers)
    with pytest.raises(CheckpointError, match=f"'{V}' in .*NaN or infinity"):
        load(folder, keep_packed=keep_packed)


@pytest.mark.parametrize("keep_packed", [True, False])
def test_a_block_of_zeros_with_scale_zero_is_zero(tmp_path: Path, keep_packed: bool) -> None:
    """BB-41."""
    scales = np.array([[0.0, 1.0]], np.float32)
    codes = codes_of(V_SHAPE)
    codes[:, :32] = 0
    layers = {V: {f"{V}.weight": codes, f"{V}.weight_scale_inv": scales}}
    config = CONFIG | {"weight_block_size": [32, 32]}
    folder = write_quantized_tiny(tmp_path, config, layers)
    load(folder, keep_packed=keep_packed)
    found = read(layer_of(folder, V))
    assert not found[:, :32].any() and found[:, 32:].any()


def test_what_is_left_plain_is_read_plain(tmp_path: Path) -> None:
    """Tensors that do not divide into blocks are left as they are by the library that writes."""
    config = CONFIG | {"weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    assert isinstance(layer_of(write_quantized_tiny(tmp_path, config, {}), V), PlainTensor)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"fmt": "e5m2"}, UnsupportedError, "fmt='e5m2'"),
        ({"weight_block_size": [0, 128]}, CheckpointError, r"weight_block_size=\[0, 128\]"),
        ({"weight_block_size": 128}, CheckpointError, "weight_block_size=128"),
    ],
)
def test_configs_that_are_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        open_checkpoint(write_quantized_tiny(tmp_path, CONFIG | change, {}), show_progress=False)


def test_a_missing_scale_or_one_of_another_grid_is_named(tmp_path: Path) -> None:
    weight = {f"{V}.weight": codes_of(V_SHAPE)}
    config = CONFIG | {"weight_block_size": [32, 32]}
    with pytest.raises(CheckpointError, match="lacks '.*v_proj.weight_scale_inv'"):
        layer_of(write_quantized_tiny(tmp_path / "a", config, {V: weight}), V)
    layer = {V: weight | {f"{V}.weight_scale_inv": np.ones((1, 1), np.float32)}}
    with pytest.raises(CheckpointError, match=r"\[1, 1\], blocks of 32×32 asks for \[1, 2\]"):
        layer_of(write_quantized_tiny(tmp_path / "b", config, layer), V)
    layer = {V: weight | {f"{V}.weight_scale": np.ones((32, 2), np.float32)}}
    with pytest.raises(CheckpointError, match=r"\[32, 2\].*takes one scale, or \[32, 1\]"):
        layer_of(write_quantized_tiny(tmp_path / "c", CT_CONFIG, layer), V)
