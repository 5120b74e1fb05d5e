"""HOST. The config of a compressed-tensors checkpoint: which layer is stored how.

Layers are named one by one, by pattern ("re:…") or by class ("Linear"); a name or pattern beats the
class. Reads no tensor.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.errors import CheckpointError, UnsupportedError

PACKED, NVFP4, MXFP4 = "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"
_SCALED = ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (PACKED, *_SCALED, NVFP4, MXFP4)
_CLASSES = ("Linear",)
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_KV_STRATEGIES = ("tensor", "attn_head")
_TRANSFORMS = ("transform_config", "sparsity_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class CtScheme:
    """How layers of one group are stored.

    group_size: columns under one scale, -1 for all. block: (rows, columns) under one scale, or
    None. inputs: (kind, group size) of inputs that are meant to be rounded, -1 for a row; None
    where they stay float, or have fixed scales.
    """

    format: str
    bits: int
    kind: str
    is_symmetric: bool
    group_size: int
    block: tuple[int, int] | None
    inputs: tuple[Literal["int8", "fp8"], int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CtConfig:
    """groups: targets and what they mean, in the file's order. ignore: layers left plain.

    has_kv_scheme: a quantized KV cache with calibrated scales was meant.
    """

    groups: tuple[tuple[tuple[str, ...], CtScheme], ...]
    ignore: tuple[str, ...]
    has_kv_scheme: bool

    def scheme_of(self, layer: str) -> CtScheme | None:
        """The scheme of a linear layer; None where it is left plain."""
        if any(_names(target, layer) for target in self.ignore) or "Linear" in self.ignore:
            return None
        for is_match in (_names, _is_class):
            for targets, scheme in self.groups:
                if any(is_match(target, layer) for target in targets):
                    return scheme
        return None


def read_ct_config(config: ConfigReader) -> CtConfig:
    """The config's groups, checked.

    Raises:
        UnsupportedError: a format, strategy, transform or sparsity that is not read.
        CheckpointError: values that make no sense.
    """
    for key in _TRANSFORMS:
        if _asks_for_something(config.get(key)):
            raise UnsupportedError(f"{config.place}: {key}={config[key]!r} is not read")
    status = config.get("quantization_status", "compressed")
    if status not in ("compressed", "frozen"):
        raise UnsupportedError(
            f"{config.place}: quantization_status={status!r} is not read: save it compressed"
        )
    groups = config["config_groups"]
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"{config.place}: config_groups={groups!r} must name groups")
    return CtConfig(
        groups=tuple(_group(name, group, config) for name, group in groups.items()),
        ignore=_strings(config.get("ignore") or [], f"{config.place}: ignore"),
        has_kv_scheme=_has_kv_scheme(config),
    )


def _asks_for_something(value: Any) -> bool:
    if isinstance(value, Mapping) and value.get("format") == "dense":
        return False
    return bool(value)


def _group(name: str, group: Any, config: ConfigReader) -> tuple[tuple[str, ...], CtScheme]:
    place = f"{config.place}: config_groups.{name}"
    if not isinstance(group, Mapping):  # a preset's name, such as "W4A16": its list of targets
        raise UnsupportedError(f"{place}: presets by name are not read, only groups in full")
    targets = _strings(group.get("targets") or [], f"{place}.targets")
    for target in targets:
        is_name = target.startswith("re:") or "." in target or target == "lm_head"
        if not is_name and target not in _CLASSES:
            raise UnsupportedError(
                f"{place}: target {target!r} is not read; known: names, 're:…' and "
                f"{', '.join(_CLASSES)}"
            )
    if group.get("output_activations"):
        raise UnsupportedError(f"{place}: output_activations are not read")
    return targets, _scheme(group, place, config)


def _scheme(group: Mapping[str, Any], place: str, config: ConfigReader) -> CtScheme:
    weights = ConfigReader(group.get("weights") or {}, f"{place}.weights")
    form = group.get("format") or config.get("format")
    if form not in FORMATS:
        raise UnsupportedError(f"{place}: format={form!r} is not read; known: {', '.join(FORMATS)}")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy not in _STRATEGIES:
        raise UnsupportedError(
            f"{place}: strategy={strategy!r} is not read; known: {', '.join(_STRATEGIES)}"
        )
    bits, kind = weights.whole("num_bits"), weights.get("type", "int")
    _check_width(form, bits, kind, place)
    grouped = strategy in ("group", "tensor_group")
    return CtScheme(
        format=form,
        bits=bits,
        kind=kind,
        is_symmetric=weights.get("symmetric", True) is True,
        group_size=weights.whole("group_size") if grouped else -1,
        block=_block(weights) if strategy == "block" else None,
        inputs=_inputs(group.get("input_activations") or {}),
    )


def _inputs(scheme: Mapping[str, Any]) -> tuple[Literal["int8", "fp8"], int] | None:
    kinds: dict[str, Literal["int8", "fp8"]] = {"int8": "int8", "float8": "fp8"}
    kind = kinds.get(f"{scheme.get('type', 'int')}{scheme.get('num_bits', 8)}")
    is_known = scheme.get("strategy") in ("token", "group") and scheme.get("symmetric", True)
    if not scheme.get("dynamic") or kind is None or not is_known:
        return None
    return kind, scheme.get("group_size") or -1


def _check_width(form: str, bits: int, kind: str, place: str) -> None:
    known = {PACKED: ("int4", "int8"), NVFP4: ("float4",), MXFP4: ("float4",)}
    if f"{kind}{bits}" not in known.get(form, ("int8", "float8")):
        raise UnsupportedError(f"{place}: {kind} of {bits} bits in {form} is not read")


def _block(weights: ConfigReader) -> tuple[int, int]:
    block = weights["block_structure"]
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size >= 1 for size in block)
    ):
        raise CheckpointError(
            f"{weights.place}: block_structure={block!r} must be two positive integers; mend it"
        )
    return block[0], block[1]


def _has_kv_scheme(config: ConfigReader) -> bool:
    scheme = config.get("kv_cache_scheme")
    if not scheme:
        return False
    place = f"{config.place}: kv_cache_scheme"
    if not isinstance(scheme, Mapping):
        raise CheckpointError(f"{place}={scheme!r} must be an object; mend it")
    kind = f"{scheme.get('type')}{scheme.get('num_bits')}"
    if kind not in ("float8", "int8") or scheme.get("strategy", "tensor") not in _KV_STRATEGIES:
        raise UnsupportedError(
            f"{place}: {kind} with strategy {scheme.get('strategy')!r} is not read; known: float8 "
            "and int8 with one scale a tensor or a head"
        )
    return not scheme.get("dynamic", False)


def _strings(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{place}={value!r} must be a list of names; mend it")
    for item in value:
        if item.startswith("re:"):
            try:
                re.compile(item[3:])
            except re.error as error:
                raise CheckpointError(f"{place}: {item!r}: {error}; mend it") from error
    return tuple(value)


def _names(target: str, layer: str) -> bool:
    """Does a name or pattern mean this layer? Patterns match from its beginning."""
    if target.startswith("re:"):
        return re.match(target[3:], layer) is not None
    return target == layer


def _is_class(target: str, layer: str) -> bool:
    return target in _CLASSES
