"""JOINT. Native checkpoints: the parameters as they run, a part a layer, kept by orbax.

    FOLDER/config.json, tokenizer files     as in a Hugging Face folder
    FOLDER/native.json                      version, how each parameter is kept, sizes of files
    FOLDER/params/layers.00000 …            the arrays of a layer; what is in no layer, one by one

An array has the name of its place in the tree of parameters: "layers.3.q.value", or for a packed
matrix "layers.3.q.value.codes" and so on, shaped as in `layers/weights.py`. Every name, shape and
dtype is checked against config and native.json before a value is read. `native_writer` writes it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.expert_stack import StackedMatrices, TensorPart
from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.leaf_source import (
    LeafSource,
    PackedForm,
    PackedMatrix,
    PackedRows,
    PlainTensor,
)
from jaxinfer.checkpoint.native_arrays import Spec, check_arrays, read_arrays
from jaxinfer.checkpoint.native_form import MANIFEST, VERSION, read_entry
from jaxinfer.checkpoint.quant_formats.quant_format import KvScales, QuantFormat
from jaxinfer.checkpoint.safetensors_file import dtype_name
from jaxinfer.checkpoint.tensor_file import TensorInfo
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.models.spec import Leaf

PARAMS = "params"


def named_leaves(tree: Any) -> dict[str, Leaf]:
    """The leaves of a tree of parameters by their places in it, such as "layers.3.q.value"."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def part_of(name: str) -> str:
    """The part that holds a leaf: "layers.00003" for "layers.3.q.value", "norm" for "norm"."""
    first, _, rest = name.partition(".")
    return f"{first}.{int(rest.partition('.')[0]):05d}" if first == "layers" else name


def arrays_of(name: str, leaf: Leaf, kept: PackedForm | np.dtype) -> dict[str, Spec]:
    """Shape and dtype of each array that a leaf is kept in."""
    if isinstance(kept, PackedForm):
        return {f"{name}.{kind}": spec for kind, spec in kept.arrays().items()}
    return {name: (leaf.shape, kept)}


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of the arrays, by its path under params."""
    root = folder / PARAMS
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}


class NativeFiles:
    """The arrays of a native checkpoint (a `TensorSource`); one part at a time is in memory.

    forms: how each leaf is kept, by name. infos: of the arrays.
    """

    def __init__(self, folder: Path, forms: Mapping[str, PackedForm | np.dtype], leaves: Any):
        self.forms, self.infos = forms, dict[str, TensorInfo]()
        self._parts: dict[Path, dict[str, Spec]] = {}
        self._held: tuple[Path, dict[str, np.ndarray]] | None = None
        for name, leaf in named_leaves(leaves).items():
            part = self._parts.setdefault(folder / PARAMS / part_of(name), {})
            part |= arrays_of(name, leaf, forms[name])
        for part, arrays in self._parts.items():
            check_arrays(part, arrays)
            self.infos |= {name: _info(part, name, spec) for name, spec in arrays.items()}
        self.files = (folder / MANIFEST, *(folder / PARAMS / name for name in file_sizes(folder)))

    def read_rows(
        self, name: str, start: int, stop: int, dtype: DTypeLike, *, row_axes: int = 1
    ) -> np.ndarray:
        """Rows `start` to `stop` of the first axes in `dtype`."""
        value = self.stored(name)
        rows = value.reshape(-1, *value.shape[row_axes:])
        return rows[start:stop].astype(dtype, copy=False)

    def stored(self, name: str) -> np.ndarray:
        """The whole array."""
        part = self.infos[name].file
        if self._held is None or self._held[0] != part:
            self._held = None  # before the next one is there
            self._held = part, read_arrays(part, self._parts[part])
        return self._held[1][name]


def _info(part: Path, name: str, spec: Spec) -> TensorInfo:
    shape, dtype = spec
    size = math.prod(shape) * dtype.itemsize
    return TensorInfo(
        name=name, shape=shape, dtype_name=dtype_name(dtype), nbytes=size, file=part, offset=0
    )


class NativeFormat(QuantFormat):
    """What a native checkpoint of a quantized model says; `native_sources` reads its matrices."""

    def __init__(self, summary: str, kv_scales: KvScales) -> None:
        self.summary, self.kv_scales = summary, kv_scales

    def matrix(self, layer: str, shape: tuple[int, int]) -> None:
        raise AssertionError("matrices of a native checkpoint are found by their place")


def open_native(folder: Path, leaves: Any) -> tuple[NativeFiles, NativeFormat | None]:
    """The arrays of a folder, all names, shapes and dtypes checked; reads no values.

    Args:
        leaves: the tree of `Leaf` that its config asks for.

    Raises:
        CheckpointError: parameters are missing, left over or of another shape; damaged files.
        UnsupportedError: another version.
    """
    said = ConfigReader(read_json(folder / MANIFEST), str(folder / MANIFEST))
    if said.get("version") != VERSION:
        raise UnsupportedError(
            f"{said.place}: version={said.get('version')!r} is not read, known is {VERSION}; make "
            "the checkpoint again with this version of jaxinfer"
        )
    entries, wanted = said["parameters"], named_leaves(leaves)
    if not isinstance(entries, dict) or set(entries) != set(wanted):
        wrong = sorted(set(entries) ^ set(wanted)) if isinstance(entries, dict) else []
        raise CheckpointError(
            f"{said.place}: parameters differ from what config.json asks for in {len(wrong)}: "
            f"{', '.join(wrong[:5])}; config and weights are not of the same model"
        )
    forms = {
        name: read_entry(entries[name], leaf.shape, f"{said.place}: {name}")
        for name, leaf in wanted.items()
    }
    _check_roles(forms, wanted, said.place)
    _check_files(said["files"], folder)
    files = NativeFiles(folder, forms, leaves)
    summary = said.get("quantization")
    if summary is None:
        return files, None
    return files, NativeFormat(str(summary)[:200], _kv_scales(said))


def _check_files(said: Any, folder: Path) -> None:
    """Every file is there, whole: most of what goes wrong with a copy."""
    found = file_sizes(folder)
    if said == found:
        return
    said = said if isinstance(said, dict) else {}
    wrong = [name for name in {**said, **found} if said.get(name) != found.get(name)]
    shown = ", ".join(f"{x} ({found.get(x)} bytes for {said.get(x)})" for x in wrong[:5])
    raise CheckpointError(
        f"{folder / PARAMS}: {len(wrong)} files are not what {MANIFEST} says: {shown}; the "
        "checkpoint is damaged or not copied whole: fetch or make it again"
    )


def _check_roles(
    forms: Mapping[str, PackedForm | np.dtype], leaves: Mapping[str, Leaf], place: str
) -> None:
    for name, form in forms.items():
        if isinstance(form, PackedForm) and leaves[name].role != "matrix":
            raise CheckpointError(f"{place}: {name} is packed, which is for matrices only; mend it")


def _kv_scales(said: ConfigReader) -> KvScales:
    try:
        scales = {
            int(layer): (tuple(map(float, keys)), tuple(map(float, values)))
            for layer, (keys, values) in (said.get("kv_scales") or {}).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{said.place}: kv_scales: {error}; mend them") from error
    numbers = [number for pair in scales.values() for kind in pair for number in kind]
    if not all(0 < number < math.inf for number in numbers):
        raise CheckpointError(f"{said.place}: kv_scales must be positive numbers; mend them")
    return scales


def native_sources(files: NativeFiles, leaves: Any) -> dict[Leaf, LeafSource | StackedMatrices]:
    """What fills each leaf."""
    return {leaf: _source(files, name, leaf) for name, leaf in named_leaves(leaves).items()}


def _source(files: NativeFiles, name: str, leaf: Leaf) -> LeafSource | StackedMatrices:
    form = files.forms[name]
    if isinstance(form, PackedForm):
        if not form.num_experts:
            return NativeMatrix(files, name, form, None)
        experts = [NativeMatrix(files, name, form, number) for number in range(form.num_experts)]
        return StackedMatrices(experts)
    info = files.infos[name]
    if leaf.stack is None:
        return PlainTensor(info=info, source=files)
    count, rows = leaf.shape[:2]
    parts = [TensorPart(files, info, one * rows, leaf.shape[1:]) for one in range(count)]
    return StackedMatrices(parts)


class NativeMatrix(PackedMatrix):
    """A packed matrix, or the matrix of one expert."""

    def __init__(self, files: NativeFiles, name: str, form: PackedForm, expert: int | None) -> None:
        self.name, self.shape, self._files, self._expert = name, form.shape, files, expert
        self.tensors = frozenset(f"{name}.{kind}" for kind in form.arrays())
        self.file = files.infos[f"{name}.codes"].file
        self.form = replace(form, num_experts=0)
        self.num_bytes = self.form.num_bytes

    def read_packed(self, start: int, stop: int) -> PackedRows:
        step = self.form.out_group
        addends = None if self.form.addend == "none" else self._array(self.form.addend)
        return PackedRows(
            codes=self._array("codes")[start:stop],
            scales=self._array("scales")[:, start // step : -(-stop // step)],
            addends=None if addends is None else addends[:, start:stop],
        )

    def read_order(self) -> np.ndarray:
        order = self._array("order")
        if not np.array_equal(np.sort(order), np.arange(self.shape[1])):
            raise CheckpointError(
                f"array '{self.name}.order' in {self.file} is no order of {self.shape[1]} columns; "
                "the checkpoint is damaged: make it again"
            )
        return order

    def _array(self, kind: str) -> np.ndarray:
        value = self._files.stored(f"{self.name}.{kind}")
        return value if self._expert is None else value[self._expert]
