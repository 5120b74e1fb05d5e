"""JOINT. Which implementation of each op an engine runs, decided once for a device, and why.

Asks the ops' own predicates; knows shapes, not arrays.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.kernel_choice import named_ops
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import ConfigError
from jaxinfer.layers.expert_rounds import choose_expert_kernel, why_not_experts
from jaxinfer.layers.matmul_kernels import why_without_kernel, with_kernels
from jaxinfer.layers.stacked import stack_products
from jaxinfer.models.registry import architecture_named
from pallas_kernels.dispatch import (
    HOPPER,
    OF_HOPPER,
    Platform,
    current_platform,
    refuse_named,
    why_not_hopper,
)
from pallas_kernels.paged_attention import resolve_implementation as resolve_attention
from pallas_kernels.paged_attention import why_not_mosaic as why_not_attention
from pallas_kernels.rms_norm import resolve_implementation as resolve_norm
from pallas_kernels.rms_norm import resolve_residual
from pallas_kernels.rotate_write import resolve_implementation as resolve_write
from pallas_kernels.rotate_write import why_not_mosaic as why_not_write
from pallas_kernels.triton_compat import why_not_triton

Models = tuple[ModelConfig, ModelConfig | None]

_HEAD_NORMS = ("q_norm", "k_norm")
_NO_KERNELS = ("reference", "xla", "row_groups")
# What is said of matrices → the op that multiplies with them.
_PRODUCTS = {
    "packed matrices": "quant_matmul",
    "products of codes": "coded_matmul_parts",
    "plain matrices": "plain_matmul_parts",
}


def decide_kernels(
    planned: Geometry,
    ask: EngineConfig,
    model: ModelConfig,
    platform: Platform | None = None,
    *,
    draft: ModelConfig | None = None,
) -> Geometry:
    """The geometry with the kernels of attention, norm and experts in place of "auto".

    A draft model runs on the kernels of the model: where "auto" has not the same for both, both
    take what XLA makes of the op.

    Args:
        draft: another model that drafts; None without one.
        platform: where the programs will run; None for this process's first device.

    Raises:
        ConfigError: a kernel that was asked for does not serve the model or the device.
    """
    platform = platform or current_platform()
    models = (model,) if draft is None else (model, draft)
    norm, dtype = ask.asked_of("rms_norm"), planned.activation_dtype
    with _refused_kernels(ask):
        _refuse_elsewhere(ask, platform)
        writes = _of_all(_write_kernel(planned, one, ask, platform) for one in models)
        sizes = (size for one in models for size in _normed_sizes(one, writes))
        return replace(
            planned,
            attention_kernel=_of_all(_attention_kernel(planned, one, platform) for one in models),
            norm_kernel=resolve_norm(norm, platform, tuple(dict.fromkeys(sizes)), dtype),
            residual_kernel=_of_all(
                (resolve_residual(norm, platform, one.hidden_size, dtype) for one in models),
                "xla" if platform.kind == "gpu" else "reference",
            ),
            write_kernel=writes,
            expert_kernel=_of_all(
                choose_expert_kernel(ask.asked_of("grouped_matmul"), planned, one, platform)
                for one in [each for each in models if each.experts] or [model]
            ),
            fills_tiles=dtype == "bfloat16" and _has_tiles(ask, platform),
        )


def kernel_fallbacks(
    planned: Geometry,
    params: Any,
    ask: EngineConfig,
    models: Models,
    platform: Platform | None = None,
) -> dict[str, str]:
    """Why an engine on a GPU does without a kernel: op → reason. Empty where it has them all.

    Args:
        planned: as `decide_kernels` gives it. params: as `kernels_of_weights` gives them.
        models: the model, and the one that drafts, or None.
        platform: as for `decide_kernels`.
    """
    place = partial(_place_of, ask, platform or current_platform())
    both = [one for one in models if one is not None]
    found: dict[str, Iterable[str | None]] = {}
    where = place("paged_attention")
    if where and planned.attention_kernel == "reference":
        calls = [_attention_call(planned, one) for one in both]
        found["attention"] = [why_not_attention(*call, where) for call in calls]
    where = place("grouped_matmul")
    if where and planned.expert_kernel == "reference":
        found["experts"] = [why_not_experts(planned, one, where) for one in both if one.experts]
    where = place("rotate_write")
    if where and planned.write_kernel == "reference":
        found["rotation and write of keys"] = [_why_not_write(planned, one, where) for one in both]
    reasons = {op: next(filter(None, each), None) for op, each in found.items()}
    matrices = _matrices_without_kernel(params, planned.activation_dtype, place)
    return {op: reason for op, reason in reasons.items() if reason} | matrices


def _place_of(ask: EngineConfig, platform: Platform, op: str) -> Platform | None:
    """The GPU whose kernel of an op would run; None where none is wanted."""
    asked = ask.asked_of(op)
    where = HOPPER if asked == "simulated" else platform
    return where if where.kind == "gpu" and asked not in _NO_KERNELS else None


def _matrices_without_kernel(
    params: Any, activation_dtype: str, place: Callable[[str], Platform | None]
) -> dict[str, str]:
    """Those of one kind and one reason together."""
    lines = {}
    for said, op in _PRODUCTS.items():
        where = place(op)
        found = why_without_kernel(params, activation_dtype, where) if where else ()
        counts = Counter((kind, reason) for what, kind, reason in found if what == said)
        each = (f"{count} {kind}: {reason}" for (kind, reason), count in counts.items())
        lines[said] = " | ".join(each)
    return {said: line for said, line in lines.items() if line}


def kernels_of_weights(
    params: Any, ask: EngineConfig, geometry: Geometry, platform: Platform | None = None
) -> Any:
    """The parameters (arrays or shapes), packed matrices with the kernel that multiplies with them.

    For a GPU matrices that multiply the same rows become one; arrays that went into it are gone.

    Args:
        platform: as for `decide_kernels`.

    Raises:
        ConfigError: a kernel that was asked for does not serve a matrix.
    """
    platform = platform or current_platform()
    with _refused_kernels(ask):
        named = with_kernels(params, ask.kernels, geometry.activation_dtype, platform)
    # On a CPU apart: nothing is launched there, and bits stay what they are.
    if platform.kind != "gpu" and ask.asked_of("rotate_write") != "simulated":
        return named
    stacked = stack_products(named)
    with _refused_kernels(ask):
        sizes = _sizes_normed_apart(stacked)
        resolve_norm(ask.asked_of("rms_norm"), platform, sizes, geometry.activation_dtype)
    return stacked


@contextmanager
def _refused_kernels(ask: EngineConfig) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"kernels={ask.kernels!r}: {error}") from error


def _refuse_elsewhere(ask: EngineConfig, platform: Platform) -> None:
    """Kernels of other devices, named for one op; all of them at once the ops refuse themselves.
    A simulation of a GPU's kernels is for a CPU alone."""
    if ask.simulates and platform.kind != "cpu":
        raise ValueError(
            f"'simulated' is 'mosaic' on a CPU, the programs are for a {platform.kind}; use "
            "'mosaic' or 'auto'"
        )
    for op, name in named_ops(ask.kernels).items():
        refuse_named(op, name, why_not_hopper, platform, why_not_triton)


def _normed_sizes(model: ModelConfig, write_kernel: str) -> list[int]:
    """Lengths of the rows that the norm is called with: the model's width, and those of queries and
    keys where they are not normed as they are written."""
    tree = architecture_named(model.architecture).leaves(model)
    layers = [
        layer
        if write_kernel == "reference" or rope is None
        else {name: leaf for name, leaf in layer.items() if name not in _HEAD_NORMS}
        for layer, rope in zip(tree["layers"], model.layer_ropes, strict=True)
    ]
    leaves = jax.tree.leaves(tree | {"layers": layers})
    return [leaf.shape[0] for leaf in leaves if leaf.role == "norm"]


def _sizes_normed_apart(params: Any) -> tuple[int, ...]:
    """Lengths of queries and keys in layers that have no one product of both, as they are stored
    differently: nothing norms them as it writes."""
    if not isinstance(params, dict):
        return ()
    layers = (layer for layer in params.get("layers", ()) if "qkv" not in layer)
    found = {layer[name].shape[0] for layer in layers for name in _HEAD_NORMS if name in layer}
    return (*sorted(found), *_sizes_normed_apart(params.get("draft")))


def _write_kernel(
    planned: Geometry, model: ModelConfig, ask: EngineConfig, platform: Platform
) -> str:
    """Of rotating and writing new keys; "reference" where XLA does it.

    Raises:
        ValueError: the kernel was asked for, of this op alone, and does not serve the model.
    """
    asked = ask.asked_of("rotate_write")
    if "rotate_write" in named_ops(ask.kernels):
        refuse_named("rotate_write", asked, partial(_why_not_write, planned, model), platform)
    if _why_no_one_write(planned, model):
        return "reference"
    return resolve_write(asked, **_write_call(planned, model), platform=platform)


def _why_not_write(planned: Geometry, model: ModelConfig, platform: Platform) -> str | None:
    reason = _why_no_one_write(planned, model)
    return reason or why_not_write(**_write_call(planned, model), platform=platform)


def _why_no_one_write(planned: Geometry, model: ModelConfig) -> str | None:
    """What of a model cannot be done together, on any platform."""
    if len({rope.rotary_dim or model.head_dim for rope in model.ropes}) != 1:
        return "its layers do not turn the same values of a head"
    norm = architecture_named(model.architecture).leaves(model)["layers"][0].get("q_norm")
    if norm is not None and norm.shape != (model.head_dim,):
        return "all heads are normed together"
    if planned.page_kinds != ("bfloat16", "bfloat16"):
        return f"pages hold {' and '.join(dict.fromkeys(planned.page_kinds))}; it writes bfloat16"
    return None


def _write_call(planned: Geometry, model: ModelConfig) -> dict[str, Any]:
    pages = (planned.num_pages[0], model.num_kv_heads, planned.page_tokens, model.head_dim)
    turned = model.ropes[0].rotary_dim or model.head_dim
    return {
        "shapes": {"cos": (1, turned // 2), "k_pages": pages, "v_pages": pages},
        "dtypes": {"k_pages": planned.page_dtypes[0], "v_pages": planned.page_dtypes[1]},
        "num_heads": model.num_heads,
    }


def _has_tiles(ask: EngineConfig, platform: Platform) -> bool:
    """Whether a product is asked of a kernel whose tiles of rows are always whole."""
    asked = [ask.asked_of(op) for op in ("quant_matmul", "plain_matmul_parts")]
    if "simulated" in asked:
        return True
    return not why_not_hopper(platform) and any(name in OF_HOPPER for name in asked)


def _of_all(kernels: Iterable[str], otherwise: str = "reference") -> str:
    found = set(kernels)
    return found.pop() if len(found) == 1 else otherwise


def _attention_kernel(planned: Geometry, model: ModelConfig, platform: Platform) -> str:
    return resolve_attention(planned.attention_kernel, *_attention_call(planned, model), platform)


def _attention_call(
    planned: Geometry, model: ModelConfig
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Shapes and dtypes of a decode step's attention."""
    pages = (planned.num_pages[0], model.num_kv_heads, planned.page_tokens, model.head_dim)
    queries = (planned.num_slots, 1, model.num_heads, model.head_dim)
    dtypes = (planned.activation_dtype, *planned.page_dtypes)
    names = ("q", "k_pages", "v_pages")
    return (
        dict(zip(names, (queries, pages, pages), strict=True)),
        dict(zip(names, dtypes, strict=True)),
    )
