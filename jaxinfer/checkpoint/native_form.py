"""HOST. What `native.json` says of each parameter: a dtype, or how a packed matrix is kept.

Knows `PackedForm` and JSON, no arrays and no model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import Addend, CodeKind, InputRounding, PackedForm
from jaxinfer.checkpoint.safetensors_file import dtype_name
from jaxinfer.errors import CheckpointError

MANIFEST = "native.json"
VERSION = 1
FLOAT_DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
Entry = str | dict[str, Any]


def is_native(folder: Path) -> bool:
    """Whether a folder holds a native checkpoint, all of it."""
    return (folder / MANIFEST).is_file()


def write_entry(kept: PackedForm | np.dtype) -> Entry:
    """What is said of one parameter."""
    if not isinstance(kept, PackedForm):
        return dtype_name(kept)
    inputs = kept.inputs
    return {
        "codes": kept.codes,
        "group": kept.group,
        "scales": dtype_name(kept.scale_dtype),
        "addend": kept.addend,
        "out_group": kept.out_group,
        "is_permuted": kept.is_permuted,
        "inputs": None if inputs is None else {"kind": inputs.kind, "group": inputs.group},
    }


def read_entry(entry: Any, shape: Sequence[int], place: str) -> PackedForm | np.dtype:
    """The form of a parameter of that shape, [out, in] or [experts, out, in] where it is packed.

    Raises:
        CheckpointError: a value that makes no sense; `place` names it.
    """
    if not isinstance(entry, dict):
        return FLOAT_DTYPES[_known(entry, FLOAT_DTYPES, place)]
    said = ConfigReader(entry, place)
    if len(shape) not in (2, 3):
        raise CheckpointError(f"{place} is packed, and {list(shape)} is no matrix; mend it")
    form = PackedForm(
        shape=(shape[-2], shape[-1]),
        codes=_known(said["codes"], get_args(CodeKind), f"{place}: codes"),
        group=said.whole("group"),
        scale_dtype=FLOAT_DTYPES[_known(said["scales"], FLOAT_DTYPES, f"{place}: scales")],
        addend=_known(said["addend"], get_args(Addend), f"{place}: addend"),
        out_group=said.whole("out_group"),
        is_permuted=said.flag("is_permuted"),
        inputs=_inputs(said, place),
        num_experts=shape[0] if len(shape) == 3 else 0,
    )
    if form.group > form.shape[1] or form.out_group > form.shape[0]:
        raise CheckpointError(
            f"{place}: group={form.group} and out_group={form.out_group} are over the matrix of "
            f"{list(form.shape)}; mend them"
        )
    if form.out_group > 1 and (form.addend != "none" or form.is_permuted):
        raise CheckpointError(
            f"{place}: out_group={form.out_group} goes with no addend and no order; mend it"
        )
    return form


def _inputs(said: ConfigReader, place: str) -> InputRounding | None:
    if said["inputs"] is None:
        return None
    if not isinstance(said["inputs"], dict):
        raise CheckpointError(f"{place}: inputs={said['inputs']!r} must be an object; mend it")
    inputs = ConfigReader(said["inputs"], f"{place}: inputs")
    kind = _known(inputs["kind"], ("int8", "fp8"), f"{place}: inputs")
    return InputRounding(kind=kind, group=inputs.whole("group"))


def _known(value: Any, known: Mapping[str, Any] | Sequence[str], place: str) -> Any:
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(f"{place}={value!r} must be one of {', '.join(known)}; mend it")
    return value
