"""GPTQ layers packed by hand: widths, versions, orders, overrides, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.leaf_source import PlainTensor
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.checkpoint.quant_formats.opened import (
    DOWN,
    DOWN_SHAPE,
    V_SHAPE,
    V,
    layer_of,
    packed_layer,
    read,
)
from tests.support.quant_folders import (
    decoded,
    gptq_layer,
    random_layer,
    write_quantized_tiny,
)

CONFIG: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


def groups_of(columns: int, group: int) -> list[int]:
    return [column // group for column in range(columns)]


@pytest.mark.parametrize("version", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_widths_and_versions(tmp_path: Path, bits: int, version: str | None) -> None:
    """An absent version is the first. Random zero points hold the one that wraps."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 32, bits)
    zeros[0, :2] = 0, (1 << bits) - 1
    groups = groups_of(96, 32)
    tensors = gptq_layer(
        DOWN, codes, zeros, scales, bits=bits, groups=groups, stored_less_one=version != "gptq_v2"
    )
    config = CONFIG | {"bits": bits} | ({"checkpoint_format": version} if version else {})
    source = packed_layer(write_quantized_tiny(tmp_path, config, {DOWN: tensors}), DOWN)
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, groups))
    assert source.form.codes == ("int8" if bits == 8 else "int4")
    assert (source.form.group, source.form.addend) == (32, "zeros")
    assert source.form.scale_dtype == np.float16


def test_a_wrapped_zero_point_leaves_its_neighbour_alone(tmp_path: Path) -> None:
    """BB-35 (AutoGPTQ#640): version 1 stores zero point 0 as 15; added to the whole word its one
    would be carried over, added after masking it would be 16."""
    codes, zeros, scales = random_layer(V_SHAPE, 64, 4)
    zeros[...] = 8
    zeros[0, 3] = 0
    tensors = gptq_layer(V, codes, zeros, scales, bits=4)
    assert (int(tensors[f"{V}.qzeros"].view(np.uint32)[0, 0]) >> 12) & 15 == 15
    folder = write_quantized_tiny(tmp_path, CONFIG | {"group_size": 64}, {V: tensors})
    found = read(packed_layer(folder, V))
    np.testing.assert_array_equal(found, decoded(codes, zeros, scales, [0] * 64))
    np.testing.assert_array_equal(found[3], codes[3] * scales[0, 3])


def test_equal_zero_points_in_the_middle_need_no_array(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer(V_SHAPE, 32, 4)
    zeros[...] = 8
    folder = write_quantized_tiny(
        tmp_path, CONFIG, {V: gptq_layer(V, codes, zeros, scales, bits=4)}
    )
    source = packed_layer(folder, V)
    assert source.form.addend == "none"
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, groups_of(64, 32)))


def test_groups_in_an_order_of_their_own(tmp_path: Path) -> None:
    """act-order: the weights lie in input order, g_idx says whose scale each column takes."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 32, 4)
    groups = np.random.default_rng(0).permutation(groups_of(96, 32)).tolist()
    tensors = gptq_layer(DOWN, codes, zeros, scales, bits=4, groups=groups)
    folder = write_quantized_tiny(tmp_path, CONFIG | {"desc_act": True}, {DOWN: tensors})
    source = packed_layer(folder, DOWN)
    assert source.form.is_permuted
    assert sorted(source.read_order().tolist()) == list(range(96))
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, groups))


def test_old_files_without_group_numbers(tmp_path: Path) -> None:
    """BB-35 (vllm#1100): without act-order a column's group is its place; with it, nobody knows."""
    codes, zeros, scales = random_layer(V_SHAPE, 32, 4)
    layers = {V: gptq_layer(V, codes, zeros, scales, bits=4)}
    folder = write_quantized_tiny(tmp_path / "plain", CONFIG, layers)
    expected = decoded(codes, zeros, scales, groups_of(64, 32))
    np.testing.assert_array_equal(read(layer_of(folder, V)), expected)
    folder = write_quantized_tiny(tmp_path / "order", CONFIG | {"desc_act": True}, layers)
    with pytest.raises(CheckpointError, match=f"'{V}' .*no g_idx, and desc_act is true"):
        layer_of(folder, V)


def test_one_group_for_all_columns(tmp_path: Path) -> None:
    """BB-35 (TGI#1358): group_size -1 has one row of zero points and scales."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 96, 4)
    tensors = gptq_layer(DOWN, codes, zeros, scales, bits=4, groups=[0] * 96)
    folder = write_quantized_tiny(tmp_path, CONFIG | {"group_size": -1}, {DOWN: tensors})
    source = packed_layer(folder, DOWN)
    assert source.form.group == 96 and not source.form.is_permuted
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, [0] * 96))


@pytest.mark.parametrize("has_groups", [True, False])
def test_a_last_group_that_is_short(tmp_path: Path, has_groups: bool) -> None:
    """BB-37 (GPTQModel#2761): 96 inputs in groups of 64 are two groups, the last of 32."""
    codes, zeros, scales = random_layer(DOWN_SHAPE, 64, 4)
    groups = groups_of(96, 64)
    tensors = gptq_layer(DOWN, codes, zeros, scales, bits=4, groups=groups if has_groups else None)
    folder = write_quantized_tiny(tmp_path, CONFIG | {"group_size": 64}, {DOWN: tensors})
    np.testing.assert_array_equal(
        read(layer_of(folder, DOWN)), decoded(codes, zeros, scales, groups)
    )


def test_a_group_larger_than_the_layer_is_one_group(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer(V_SHAPE, 64, 4)
    layers = {V: gptq_layer(V, codes, zeros, scales, bits=4)}
    source = packed_layer(write_quantized_tiny(tmp_path, CONFIG | {"group_size": 128}, layers), V)
    assert source.form.group == 64
    np.testing.assert_array_equal(read(source), decoded(codes, zeros, scales, [0] * 64))


def test_padded_words(tmp_path: Path) -> None:
    """Outputs that do not fill the last word of the zero points: the padding means nothing."""
    codes, zeros, scales = random_layer((36, 32), 32, 4)
    tensors = gptq_layer("lm_head", codes, zeros, scales, bits=4)
    tensors["lm_head.qzeros"].view(np.uint32)[:, -1] |= 0xFFFF0000
    folder = write_quantized_tiny(
        tmp_path, CONFIG, {"lm_head": tensors}, vocab_size=36, hidden_size=32
    )
    np.testing.assert_array_equal(
        read(layer_of(folder, "lm_head")), decoded(codes, zeros, scales, [0] * 32)
    )


def test_a_quantized_head_and_overrides(tmp_path: Path) -> None:
    """BB-36 (sglang#3790, vllm#7086): the head comes from packed data; the first pattern that
    matches decides, so layer 0's mlp is plain and layer 1's down_proj has 8 bits, group 16."""
    head, down = random_layer((320, 64), 32, 4), random_layer(DOWN_SHAPE, 16, 8, seed=1)
    layers = {
        "lm_head": gptq_layer("lm_head", *head, bits=4),
        DOWN: gptq_layer(DOWN, *down, bits=8),
    }
    dynamic = {
        r"-:model\.layers\.0\.mlp\..*": {},
        r"+:.*\.down_proj.*": {"bits": 8, "group_size": 16, "mse": 0.1},
    }
    config = CONFIG | {"lm_head": True, "dynamic": dynamic}
    folder = write_quantized_tiny(tmp_path, config, layers)
    np.testing.assert_array_equal(
        read(layer_of(folder, "lm_head")), decoded(*head, groups_of(64, 32))
    )
    np.testing.assert_array_equal(read(layer_of(folder, DOWN)), decoded(*down, groups_of(96, 16)))
    assert packed_layer(folder, DOWN).form.codes == "int8"
    assert isinstance(layer_of(folder, "model.layers.0.mlp.down_proj"), PlainTensor)


def test_an_unknown_key_of_an_override_is_refused(tmp_path: Path) -> None:
    """BB-36."""
    config = CONFIG | {"dynamic": {".*": {"bits": 8, "codebook": 3}}}
    with pytest.raises(UnsupportedError, match="'codebook'"):
        open_checkpoint(write_quantized_tiny(tmp_path, config, {}), show_progress=False)


def test_zero_biases_of_old_files_are_nothing(tmp_path: Path) -> None:
    """Old files hold a bias of zeros for every layer; one that is not zero is left over."""
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)}
    bias = np.zeros(32, np.float16)
    layer_of(write_quantized_tiny(tmp_path / "a", CONFIG, layers, extra={f"{V}.bias": bias}), V)
    bias[7] = 0.5
    folder = write_quantized_tiny(tmp_path / "b", CONFIG, layers, extra={f"{V}.bias": bias})
    with pytest.raises(CheckpointError, match="v_proj.bias"):
        layer_of(folder, V)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bits": 5}, "bits=5"),
        ({"bits": "four"}, "bits='four'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ({"checkpoint_format": "gptq_p"}, "checkpoint_format='gptq_p'"),
        ({"is_marlin_format": True}, "marlin"),
        ({"pack_dtype": "int16"}, "pack_dtype='int16'"),
    ],
)
def test_other_packings_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    folder = write_quantized_tiny(tmp_path, CONFIG | change, {})
    with pytest.raises(UnsupportedError, match=told):
        open_checkpoint(folder, show_progress=False)


@pytest.mark.parametrize(
    "change", [{"group_size": 0}, {"group_size": "x"}, {"dynamic": [1]}, {"dynamic": {"(": {}}}]
)
def test_configs_that_make_no_sense(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        open_checkpoint(write_quantized_tiny(tmp_path, CONFIG | change, {}), show_progress=False)


@pytest.mark.parametrize("ending", ["qweight", "qzeros", "scales"])
def test_a_missing_tensor_is_named(tmp_path: Path, ending: str) -> None:
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)}
    folder = write_quantized_tiny(tmp_path, CONFIG, layers, drop=[f"{V}.{ending}"])
    with pytest.raises(CheckpointError, match=f"lacks '{V}.{ending}'"):
        layer_of(folder, V)


def test_a_wrong_group_size_is_seen(tmp_path: Path) -> None:
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)}
    folder = write_quantized_tiny(tmp_path, CONFIG | {"group_size": 16}, layers)
    with pytest.raises(CheckpointError, match=r"\[2, 4\], .*group_size 16 asks for \[4, 4\]"):
        layer_of(folder, V)


@pytest.mark.parametrize("groups", [[0] * 40 + [1] * 24, [0] * 32 + [2] * 32, [-1] + [0] * 63])
def test_group_numbers_that_make_no_groups(tmp_path: Path, groups: list[int]) -> None:
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4, groups=groups)}
    with pytest.raises((CheckpointError, UnsupportedError), match="v_proj.g_idx"):
        layer_of(write_quantized_tiny(tmp_path, CONFIG, layers), V)
