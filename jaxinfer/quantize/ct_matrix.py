"""HOST. A rounded matrix as compressed-tensors stores it, and what its config says of all of them.

pack-quantized where inputs stay float, int-quantized where they are rounded too (FORMATS of
`checkpoint/quant_formats/compressed_tensors.py`, which reads it back). Knows no model.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxinfer.checkpoint.bit_fields import pack_fields
from jaxinfer.quantize.grid import CodedMatrix, Scheme

_VERSION = "0.19.0"  # of the format that is written


def matrix_tensors(
    module: str, parts: Sequence[CodedMatrix], *, rounds_inputs: bool
) -> dict[str, np.ndarray]:
    """The tensors of a linear layer.

    Args:
        parts: its rows from top to bottom; more than one where the file fuses what is apart here.
    """
    scheme = parts[0].grid.scheme
    codes = np.concatenate([part.codes for part in parts])
    scales = np.concatenate([part.grid.scales for part in parts]).astype(scheme.scale_dtype)
    if rounds_inputs:
        return {f"{module}.weight": codes, f"{module}.weight_scale": scales}
    tensors = {
        f"{module}.weight_packed": _packed(codes, scheme, axis=1),
        f"{module}.weight_scale": scales,
        f"{module}.weight_shape": np.array(codes.shape, np.int64),
    }
    if not scheme.symmetric:
        zeros = np.concatenate([part.grid.zeros for part in parts])
        tensors[f"{module}.weight_zero_point"] = _packed(zeros, scheme, axis=0)
    return tensors


def _packed(codes: np.ndarray, scheme: Scheme, *, axis: int) -> np.ndarray:
    from_zero = codes.astype(np.int16) - np.int16(scheme.lowest)
    return pack_fields(from_zero.astype(np.uint8), scheme.bits, axis)


def quantization_config(
    schemes: Mapping[str, tuple[Scheme, int]],
    ignored: Sequence[str],
    *,
    rounds_inputs: bool,
    act_order: bool,
) -> dict[str, Any]:
    """What config.json says under `quantization_config`.

    Args:
        schemes: of each rounded module, with its width.
        ignored: modules that stay float.
    """
    kinds = {module: _kind(*scheme) for module, scheme in schemes.items()}
    common = Counter(kinds.values()).most_common(1)[0][0]
    targets: dict[tuple, dict[str, None]] = {}
    for module, kind in kinds.items():
        # Widths are the same in every layer, so the end of a name tells all that are alike.
        ending = ".".join(module.split(".")[-2:]).replace(".", r"\.")
        name = "Linear" if kind == common else rf"re:.*\.{ending}$"
        targets.setdefault(kind, {})[name] = None
    form = "int-quantized" if rounds_inputs else "pack-quantized"
    groups = {
        f"group_{number}": {
            "targets": list(names),
            "weights": _weights(kind, act_order=act_order),
            "input_activations": _inputs() if rounds_inputs else None,
            "output_activations": None,
            "format": form,
        }
        for number, (kind, names) in enumerate(targets.items())
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "version": _VERSION,
    }


def _kind(scheme: Scheme, width: int) -> tuple[int, bool, int | None]:
    """(bits, symmetric, group size); None for a scale a row."""
    return scheme.bits, scheme.symmetric, None if scheme.group == width else scheme.group


def _weights(kind: tuple[int, bool, int | None], *, act_order: bool) -> dict[str, Any]:
    bits, symmetric, group = kind
    return _arguments(bits, symmetric) | {
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
        # Groups keep their columns ("weight"), so it changes nothing for whoever reads the file.
        "actorder": "weight" if act_order and group is not None else None,
        "observer": "minmax",
    }


def _inputs() -> dict[str, Any]:
    """Rounded as they come, a scale a token."""
    return _arguments(8, True) | {
        "strategy": "token",
        "group_size": None,
        "dynamic": True,
        "actorder": None,
        "observer": None,
    }


def _arguments(bits: int, symmetric: bool) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "block_structure": None,
        "observer_kwargs": {},
    }
