"""Native checkpoints that are damaged, of another model or of another version are refused."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.native import file_sizes, named_leaves, part_of
from jaxinfer.checkpoint.native_arrays import read_arrays, write_arrays
from jaxinfer.checkpoint.native_writer import write_native
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.repository.tree import ROOT

GPTQ = ROOT / "tests" / "data" / "quant" / "gptq_w4_g32_descact"
LAYER = "params/layers.00000"
MATRIX = "layers.0.q.value"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPTQ with act-order, as a native checkpoint."""
    folder = tmp_path_factory.mktemp("native")
    shutil.copy(GPTQ / "config.json", folder)
    write_native(open_checkpoint(GPTQ, show_progress=False), folder, show_progress=False)
    return folder


def said(change: Callable[[dict[str, Any]], object]) -> Change:
    """A change of native.json."""

    def apply(folder: Path) -> None:
        value = json.loads((folder / "native.json").read_text())
        change(value)
        (folder / "native.json").write_text(json.dumps(value))

    return apply


def config(**changes: Any) -> Change:
    """A change of config.json."""

    def apply(folder: Path) -> None:
        value = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(value | changes))

    return apply


def arrays(change: Callable[[dict[str, np.ndarray]], object]) -> Change:
    """A change of the arrays of a layer."""

    def apply(folder: Path) -> None:
        opened: Any = open_checkpoint(folder, show_progress=False).tensors
        path = folder / LAYER
        found = read_arrays(path, opened._parts[path])
        change(found)
        write_arrays(path, found)
        said(lambda value: value.update(files=file_sizes(folder)))(folder)

    return apply


def matrix(**changes: Any) -> Change:
    return said(lambda value: value["parameters"][MATRIX].update(changes))


def cut_data(folder: Path) -> None:
    """Half of the largest data file of a layer is gone."""
    files = [path for path in (folder / LAYER).rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def wipe(folder: Path) -> None:
    """The data of an array that has a part of its own: sizes are as they were."""
    for path in (folder / "params" / "final_norm").rglob("d/*"):
        path.write_bytes(bytes(path.stat().st_size))


def pickled(folder: Path) -> None:
    path = folder / LAYER / "_METADATA"
    size = path.stat().st_size
    path.write_bytes(pickle.dumps({"tree_metadata": {}}).ljust(size))


def retyped(folder: Path) -> None:
    path = folder / LAYER / "_METADATA"
    path.write_text(path.read_text().replace("np.ndarray", "os.system ", 1))


def of_eight(found: dict[str, np.ndarray]) -> None:
    found[f"{MATRIX}.scales"] = found[f"{MATRIX}.scales"].astype(np.float32)


DAMAGE: dict[str, tuple[Change, str]] = {
    "missing": (arrays(lambda x: x.pop(f"{MATRIX}.scales")), f"lacks 1 .*'{MATRIX}.scales'"),
    "left over": (arrays(lambda x: x.update(more=np.ones(3, np.int8))), "also holds 1 .*'more'"),
    "shape": (
        arrays(lambda x: x.update({f"{MATRIX}.codes": x[f"{MATRIX}.codes"][:-1]})),
        f"'{MATRIX}.codes' .* asks for uint8",
    ),
    "dtype": (arrays(of_eight), f"'{MATRIX}.scales' .* is float32 .* asks for float16"),
    "layer gone": (
        lambda x: shutil.rmtree(x / LAYER),
        r"files are not what native.json says: .*\(None bytes for",
    ),
    "cut": (cut_data, r"1 files are not what .*layers.00000/.*\(\d+ bytes for \d+"),
    "wiped": (wipe, "params/final_norm cannot be read"),
    "pickled": (pickled, "_METADATA is not valid JSON"),
    "retyped": (retyped, "does not list plain arrays"),
    "parameter gone": (
        said(lambda x: x["parameters"].pop(MATRIX)),
        f"differ from what config.json asks for in 1: {MATRIX}",
    ),
    "more layers": (config(num_hidden_layers=3), "differ from what config.json asks for in"),
    "other width": (config(intermediate_size=512), "asks for"),
    "group": (matrix(group=64), "asks for float16"),
    "no group": (matrix(group=0), "group=0 must be a positive integer"),
    "wide group": (matrix(group=4096), "over the matrix"),
    "codes": (matrix(codes="int3"), "codes='int3' must be one of int4, int8, fp8"),
    "addend": (matrix(addend=None), "addend=None must be one of"),
    "rectangles": (matrix(out_group=2), "goes with no addend and no order"),
    "scales": (matrix(scales="I64"), "scales='I64' must be one of F32, F16, BF16"),
    "inputs": (matrix(inputs={"kind": "int4", "group": 8}), "inputs='int4' must be one of"),
    "a packed vector": (
        said(lambda x: x["parameters"].update(final_norm=x["parameters"][MATRIX])),
        "final_norm is packed, and .* is no matrix",
    ),
    "a packed table": (
        said(lambda x: x["parameters"].update(embedding=x["parameters"][MATRIX])),
        "embedding is packed, which is for matrices only",
    ),
    "not a list": (said(lambda x: x.update(parameters=[])), "differ from what config.json asks"),
    "kv scales": (said(lambda x: x.update(kv_scales={"0": [[0.0], [1.0]]})), "positive numbers"),
    "order": (
        arrays(lambda x: x[f"{MATRIX}.order"].__setitem__(0, x[f"{MATRIX}.order"][1])),
        "is no order of",
    ),
    "nan": (
        arrays(lambda x: x[f"{MATRIX}.scales"].__setitem__((0, 0), np.nan)),
        f"'{MATRIX}'.* holds NaN or infinity",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, whole: Path, tmp_path: Path) -> None:
    change, text = DAMAGE[name]
    folder = shutil.copytree(whole, tmp_path / "native")
    change(folder)
    with pytest.raises(CheckpointError, match=text):
        checkpoint = open_checkpoint(folder, show_progress=False)
        load_params(checkpoint, weight_dtype="float32", keep_packed=True, show_progress=False)


def test_another_version_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "native")
    said(lambda value: value.update(version=2))(folder)
    with pytest.raises(UnsupportedError, match="version=2 is not read, known is 1"):
        open_checkpoint(folder, show_progress=False)


def test_shapes_are_wrong_before_anything_is_read(whole: Path, tmp_path: Path) -> None:
    """Of what is refused no value is decoded: opening is enough."""
    for name in ("missing", "shape", "dtype", "more layers", "other width", "group"):
        folder = shutil.copytree(whole, tmp_path / name)
        DAMAGE[name][0](folder)
        with pytest.raises(CheckpointError):
            open_checkpoint(folder, show_progress=False)


def test_names_and_parts() -> None:
    checkpoint = open_checkpoint(GPTQ, show_progress=False)
    names = list(named_leaves(checkpoint.architecture.leaves(checkpoint.config)))
    assert MATRIX in names and len(set(names)) == len(names)
    assert part_of("layers.12.mlp.up.value") == "layers.00012" and part_of("norm") == "norm"
