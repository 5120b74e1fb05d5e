"""compressed-tensors layers packed by hand: packing, zero points, mixed groups, KV scales."""

import copy
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
    packed_layer,
    read,
)
from tests.support.quant_folders import decoded, pack_words, random_layer, write_quantized_tiny


def group(targets: list[str], **weights: Any) -> dict[str, Any]:
    form = weights.pop("format", None)
    base = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    entry: dict[str, Any] = {"targets": targets, "weights": base | weights}
    return entry | ({"format": form} if form else {})


def config_of(*groups: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {f"group_{place}": entry for place, entry in enumerate(groups)},
        "ignore": [],
        **keys,
    }


def packed(
    name: str,
    codes: np.ndarray,
    zeros: np.ndarray | None,
    scales: np.ndarray,
    *,
    bits: int = 4,
) -> dict[str, np.ndarray]:
    """Codes and zero points from 0 on, i.e. as they are stored: signed ones plus 2^(bits-1)."""
    tensors = {
        f"{name}.weight_packed": pack_words(codes, bits),
        f"{name}.weight_scale": np.ascontiguousarray(scales.T.astype(ml_dtypes.bfloat16)),
        f"{name}.weight_shape": np.array(codes.shape, np.int64),
    }
    if zeros is not None:
        tensors[f"{name}.weight_zero_point"] = np.ascontiguousarray(pack_words(zeros, bits).T)
    return tensors


def places(columns: int, size: int) -> list[int]:
    return [column // size for column in range(columns)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_packed_layer(tmp_path: Path, bits: int, symmetric: bool) -> None:
    codes, zeros, scales = random_layer(DOWN_SHAPE, 32, bits)
    if symmetric:
        zeros[...] = 1 << (bits - 1)
    tensors = packed(DOWN, codes, None if symmetric else zeros, scales, bits=bits)
    config = config_of(group(["Linear"], num_bits=bits, symmetric=symmetric), ignore=["lm_head"])
    source = packed_layer(write_quantized_tiny(tmp_path, config, {DOWN: tensors}), DOWN)
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, places(96, 32)))
    assert source.form.addend == ("none" if symmetric else "zeros")
    assert source.form.codes == f"int{bits}"


def test_packing_with_padding(tmp_path: Path) -> None:
    """BB-39 (compressed-tensors#458): O 12, I 40, group 8: codes packed [12, 5] along the inputs,
    zero points [2, 5] along the outputs, both 8 more than they mean; the upper four half-bytes of
    the last word of zero points are padding."""
    codes, zeros, scales = random_layer((12, 40), 8, 4)
    tensors = packed("lm_head", codes, zeros, scales)
    assert tensors["lm_head.weight_packed"].shape == (12, 5)
    assert tensors["lm_head.weight_zero_point"].shape == (2, 5)
    tensors["lm_head.weight_zero_point"].view(np.uint32)[1] |= 0xFFFF0000
    config = config_of(group(["Linear"], group_size=8, symmetric=False))
    folder = write_quantized_tiny(
        tmp_path, config, {"lm_head": tensors}, vocab_size=12, hidden_size=40, head_dim=8
    )
    np.testing.assert_array_equal(
        read(layer_of(folder, "lm_head")), decoded(codes, zeros, scales, places(40, 8))
    )


def test_a_last_group_that_is_short(tmp_path: Path) -> None:
    """BB-37 (compressed-tensors#447)."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 64, 4)
    config = config_of(group(["Linear"], group_size=64, symmetric=False))
    layers = {DOWN: packed(DOWN, codes, zeros, scales)}
    np.testing.assert_array_equal(
        read(layer_of(write_quantized_tiny(tmp_path, config, layers), DOWN)),
        decoded(codes, zeros, scales, places(96, 64)),
    )


def test_groups_in_an_order_of_their_own(tmp_path: Path) -> None:
    """Old files with actorder "group" say by weight_g_idx whose scale each column takes."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 32, 4)
    groups = np.random.default_rng(3).permutation(places(96, 32))
    tensors = packed(DOWN, codes, zeros, scales)
    tensors[f"{DOWN}.weight_g_idx"] = groups.astype(np.int32)
    config = config_of(group(["Linear"], symmetric=False, actorder="group"))
    source = packed_layer(write_quantized_tiny(tmp_path, config, {DOWN: tensors}), DOWN)
    assert source.form.is_permuted
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, groups.tolist()))


def test_mixed_groups_and_what_is_ignored(tmp_path: Path) -> None:
    """BB-38 (vllm#12617, #49483): a pattern beats the class, whatever comes first; q is plain
    while k and v are packed."""
    channel = np.random.default_rng(0).uniform(0.01, 0.1, (64, 1)).astype(np.float32)
    int8 = np.random.default_rng(1).integers(-128, 128, DOWN_SHAPE).astype(np.int8)
    layers = {DOWN: {f"{DOWN}.weight": int8, f"{DOWN}.weight_scale": channel}}
    expected = {DOWN: int8.astype(np.float32) * channel}
    for name in (K, V):
        layer = random_layer(V_SHAPE, 32, 4)
        layer[1][...] = 8
        layers[name] = packed(name, layer[0], None, layer[2])
        expected[name] = decoded(*layer, places(64, 32))
    config = config_of(
        group(["Linear"]),
        group(["re:.*down_proj"], num_bits=8, strategy="channel", format="int-quantized"),
        ignore=["lm_head", "re:.*q_proj"],
        format="mixed-precision",
    )
    config["config_groups"]["group_0"]["format"] = "pack-quantized"
    folder = write_quantized_tiny(tmp_path, config, layers)
    for name, matrix in expected.items():
        np.testing.assert_array_equal(read(layer_of(folder, name)), matrix)
    assert isinstance(layer_of(folder, Q), PlainTensor)
    assert isinstance(layer_of(folder, "lm_head"), PlainTensor)


def test_layers_listed_one_by_one(tmp_path: Path) -> None:
    """BB-38 (vllm#11354)."""
    layer = random_layer(V_SHAPE, 32, 4)
    layer[1][...] = 8
    config = config_of(group([V]), group(["Linear"], num_bits=8))
    folder = write_quantized_tiny(tmp_path, config, {V: packed(V, layer[0], None, layer[2])})
    np.testing.assert_array_equal(read(layer_of(folder, V)), decoded(*layer, places(64, 32)))


def test_asymmetric_int8(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    codes = random.integers(-128, 128, V_SHAPE).astype(np.int8)
    zeros = random.integers(-128, 128, (32, 1)).astype(np.int8)
    scales = random.uniform(0.01, 0.1, (32, 1)).astype(np.float32)
    layer = {"weight": codes, "weight_scale": scales, "weight_zero_point": zeros}
    tensors = {f"{V}.{ending}": value for ending, value in layer.items()}
    config = config_of(
        group(["Linear"], num_bits=8, strategy="channel", symmetric=False), format="int-quantized"
    )
    found = read(layer_of(write_quantized_tiny(tmp_path, config, {V: tensors}), V))
    expected = (codes.astype(np.float32) - zeros.astype(np.float32)) * scales
    np.testing.assert_array_equal(found, expected)
    del tensors[f"{V}.weight_zero_point"]
    with pytest.raises(CheckpointError, match="weight_zero_point"):
        layer_of(write_quantized_tiny(tmp_path / "without", config, {V: tensors}), V)


KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


def kv_folder(folder: Path, scales: dict[str, Any], scheme: Any = KV_SCHEME) -> Path:
    extra = {
        f"model.layers.{layer}.self_attn.{name}_scale": np.array(value, ml_dtypes.bfloat16, ndmin=1)
        for layer in (0, 1)
        for name, value in scales.items()
    }
    config = config_of(group(["Linear"]), ignore=["re:.*"], kv_cache_scheme=scheme)
    return write_quantized_tiny(folder, config, {}, extra=extra)


def test_kv_scales_are_kept(tmp_path: Path) -> None:
    """BB-34 (vllm#54623), the reading of it: none is dropped."""
    folder = kv_folder(tmp_path, {"k": 0.05, "v": 0.02})
    found = open_checkpoint(folder, show_progress=False).quant_format
    both = tuple((float(ml_dtypes.bfloat16(value)),) for value in (0.05, 0.02))
    assert found is not None and found.kv_scales == {0: both, 1: both}


def test_kv_scales_of_every_head(tmp_path: Path) -> None:
    scheme = KV_SCHEME | {"strategy": "attn_head"}
    scales = {"k": [[[0.5]], [[0.25]]], "v": [[[1.0]], [[2.0]]]}
    found = open_checkpoint(kv_folder(tmp_path, scales, scheme), show_progress=False).quant_format
    both = ((0.5, 0.25), (1.0, 2.0))
    assert found is not None and found.kv_scales == {0: both, 1: both}


def test_no_kv_scales(tmp_path: Path) -> None:
    """BB-34: a scheme without scales is no error; what runs the cache takes 1."""
    found = open_checkpoint(kv_folder(tmp_path, {}), show_progress=False).quant_format
    assert found is not None and found.kv_scales == {}


@pytest.mark.parametrize("scales", [{"k": 0.05}, {"v": 0.05}])
def test_only_one_of_two_kv_scales_is_refused(tmp_path: Path, scales: dict[str, float]) -> None:
    """BB-34."""
    with pytest.raises(CheckpointError, match="_scale' beside its other KV scale"):
        open_checkpoint(kv_folder(tmp_path, scales), show_progress=False)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_kv_scales_that_are_no_scales(tmp_path: Path, value: float) -> None:
    with pytest.raises(CheckpointError, match="must be positive numbers"):
        open_checkpoint(kv_folder(tmp_path, {"k": value, "v": 1.0}), show_progress=False)


def test_other_kv_schemes_are_refused(tmp_path: Path) -> None:
    folder = kv_folder(tmp_path, {"k": 1.0, "v": 1.0}, KV_SCHEME | {"strategy": "channel"})
    with pytest.raises(UnsupportedError, match="kv_cache_scheme.*'channel'"):
        open_checkpoint(folder, show_progress=False)


def changed(**keys: Any) -> dict[str, Any]:
    return config_of(group(["Linear"]), **keys)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (changed(format="marlin-24"), "format='marlin-24'"),
        (changed(format="mxfp8-quantized"), "format='mxfp8-quantized'"),
        (changed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config="),
        (changed(transform_config={"config_groups": {"R1": {}}}), "transform_config="),
        (changed(quantization_status="initialized"), "quantization_status='initialized'"),
        (config_of(group(["Embedding"])), "target 'Embedding'"),
        (config_of(group(["Linear"], strategy="token")), "strategy='token'"),
        (config_of(group(["Linear"], num_bits=3)), "int of 3 bits in pack-quantized"),
        (config_of(group(["Linear"], type="float")), "float of 4 bits in pack-quantized"),
        (config_of({**group(["Linear"]), "output_activations": {"num_bits": 8}}), "output_act"),
    ],
    ids=str,
)
def test_what_is_not_read_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    with pytest.raises(UnsupportedError, match=told):
        open_checkpoint(write_quantized_tiny(tmp_path, config, {}), show_progress=False)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (config_of(), "config_groups"),
        (config_of(group("Linear[")), "targets"),  # type: ignore[arg-type]
        (config_of(group(["re:("])), r"re:\("),
        (config_of(group(["Linear"], num_bits=None)), "num_bits=None"),
        (config_of(group(["Linear"], strategy="block", block_structure=[1])), "block_structure"),
        (changed(kv_cache_scheme=[1]), "kv_cache_scheme"),
    ],
    ids=str,
)
def test_configs_that_make_no_sense(tmp_path: Path, config: dict[str, Any], told: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedError), match=told):
        open_checkpoint(write_quantized_tiny(tmp_path, config, {}), show_progress=False)


@pytest.mark.parametrize("ending", ["weight_packed", "weight_scale", "weight_shape"])
def test_a_missing_tensor_is_named(tmp_path: Path, ending: str) -> None:
    codes, _, scales = random_layer(V_SHAPE, 32, 4)
    layers = {V: packed(V, codes, None, scales)}
    folder = write_quantized_tiny(tmp_path, changed(), layers, drop=[f"{V}.{ending}"])
    with pytest.raises(CheckpointError, match=f"lacks '{V}.{ending}'"):
        layer_of(folder, V)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer(V_SHAPE, 32, 4)
    good = packed(V, codes, None, scales)
    wrong_size = config_of(group(["Linear"], group_size=16))
    with pytest.raises(CheckpointError, match=r"\[32, 2\], .*group_size 16 asks for \[32, 4\]"):
        layer_of(write_quantized_tiny(tmp_path / "a", wrong_size, {V: good}), V)
    transposed = copy.copy(good) | {f"{V}.weight_shape": np.array([64, 32], np.int64)}
    with pytest.raises(CheckpointError, match=r"weight_shape' says \[64, 32\]"):
        layer_of(write_quantized_tiny(tmp_path / "b", changed(), {V: transposed}), V)
    asymmetric = config_of(group(["Linear"], symmetric=False))
    with pytest.raises(CheckpointError, match="lacks '.*v_proj.weight_zero_point'"):
        layer_of(write_quantized_tiny(tmp_path / "c", asymmetric, {V: good}), V)
    with_zeros = packed(V, codes, zeros, scales)
    with pytest.raises(CheckpointError, match="weight_zero_point"):  # none is left over
        layer_of(write_quantized_tiny(tmp_path / "d", changed(), {V: with_zeros}), V)
