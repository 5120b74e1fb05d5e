"""JOINT. Which implementation of each op an engine runs, decided once for a device, and why.

Asks the ops' own predicates; knows shapes, not arrays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
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
    why_not_hopper,
)
from pallas_kernels.paged_attention import resolve_implementation as resolve_attention
from pallas_kernels.paged_attention import why_not_mosaic as why_not_attention
from pallas_kernels.rms_norm import resolve_implementation as resolve_norm
from pallas_kernels.rms_norm import resolve_residual
from pallas_kernels.rotate_write import resolve_implementation as resolve_write
from pallas_kernels.rotate_write import why_not_mosaic as why_not_write

Models = tuple[ModelConfig, ModelConfig | None]


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
    columns = tuple(dict.fromkeys(size for one in models for size in _normed_sizes(one)))
    with _refused_kernels(ask):
        return replace(
            planned,
            attention_kernel=_of_all(_attention_kernel(planned, one, platform) for one in models),
            norm_kernel=resolve_norm(ask.kernels, platform, columns, planned.activation_dtype),
            residual_kernel=_of_all(
                (
                    resolve_residual(
                        ask.kernels, platform, one.hidden_size, planned.activation_dtype
                    )
                    for one in models
                ),
                "xla" if platform.kind == "gpu" else "reference",
            ),
            write_kernel=_of_all(
                _write_kernel(planned, one, ask.kernels, platform) for one in models
            ),
            expert_kernel=_of_all(
                choose_expert_kernel(ask.kernels, planned, one, platform)
                for one in [each for each in models if each.experts] or [model]
            ),
            fills_tiles=_fills_tiles(ask.kernels, platform),
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
    platform = HOPPER if ask.kernels == "simulated" else platform or current_platform()
    if platform.kind != "gpu" or ask.kernels == "reference":
        return {}
    both = [one for one in models if one is not None]
    found: dict[str, Iterable[str | None]] = {}
    if planned.attention_kernel == "reference":
        found["attention"] = (
            why_not_attention(*_attention_call(planned, one), platform) for one in both
        )
    if planned.expert_kernel == "reference":
        found["experts"] = (why_not_experts(planned, one, platform) for one in both if one.experts)
    if planned.write_kernel == "reference":
        found["rotation and write of keys"] = (_why_not_write(planned, o, platform) for o in both)
    reasons = {op: next(filter(None, each), None) for op, each in found.items()}
    matrices = _matrices_without_kernel(params, planned.activation_dtype, platform)
    return {op: reason for op, reason in reasons.items() if reason} | matrices


def _matrices_without_kernel(
    params: Any, activation_dtype: str, platform: Platform
) -> dict[str, str]:
    """Those of one kind and one reason together."""
    counts = Counter(why_without_kernel(params, activation_dtype, platform))
    lines: dict[str, list[str]] = {}
    for (op, kind, reason), count in counts.items():
        lines.setdefault(op, []).append(f"{count} {kind}: {reason}")
    return {op: " | ".join(each) for op, each in lines.items()}


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
    is_gpu = platform.kind == "gpu" or ask.kernels == "simulated"
    return stack_products(named) if is_gpu else named


@contextmanager
def _refused_kernels(ask: EngineConfig) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"kernels={ask.kernels!r}: {error}") from error


def _normed_sizes(model: ModelConfig) -> list[int]:
    """Lengths of the rows that a model norms: its width, and those of queries and keys."""
    leaves = jax.tree.leaves(architecture_named(model.architecture).leaves(model))
    return [leaf.shape[0] for leaf in leaves if leaf.role == "norm"]


def _write_kernel(planned: Geometry, model: ModelConfig, wanted: str, platform: Platform) -> str:
    """Of rotating and writing new keys; "reference" where XLA does it."""
    if _why_no_one_write(planned, model):
        return "reference"
    return resolve_write(wanted, **_write_call(planned, model), platform=platform)


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


def _fills_tiles(wanted: str, platform: Platform) -> bool:
    """Whether products are asked of kernels whose tiles of rows are always whole."""
    where = HOPPER if wanted == "simulated" else platform
    return wanted in OF_HOPPER and not why_not_hopper(where)


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
