"""JOINT. Which implementation of each op an engine runs, decided once for a device.

Asks the ops' own predicates; knows shapes, not arrays.
"""

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
from jaxinfer.layers.matmul_kernels import with_kernels
from jaxinfer.models.registry import architecture_named
from pallas_kernels.dispatch import Platform, current_platform
from pallas_kernels.paged_attention import resolve_implementation as resolve_attention
from pallas_kernels.paged_attention import why_not_mosaic as why_not_attention
from pallas_kernels.rms_norm import resolve_implementation as resolve_norm


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
    take the reference.

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
            expert_kernel=_of_all(
                choose_expert_kernel(ask.kernels, planned, one, platform)
                for one in [each for each in models if each.experts] or [model]
            ),
        )


def kernel_fallbacks(planned: Geometry, model: ModelConfig, platform: Platform) -> dict[str, str]:
    """Why a model does without a kernel for GPUs: op → reason. Empty where it has them all.

    Args:
        planned: as `decide_kernels` gives it. platform: where the programs will run.
    """
    reasons = {}
    if planned.attention_kernel == "reference":
        reasons["attention"] = why_not_attention(*_attention_call(planned, model), platform)
    if model.experts is not None and planned.expert_kernel == "reference":
        reasons["experts"] = why_not_experts(planned, model, platform)
    return {op: reason for op, reason in reasons.items() if reason}


def kernels_of_weights(
    params: Any, ask: EngineConfig, geometry: Geometry, platform: Platform | None = None
) -> Any:
    """The parameters (arrays or shapes), packed matrices with the kernel that multiplies with them.

    Args:
        platform: as for `decide_kernels`.

    Raises:
        ConfigError: a kernel that was asked for does not serve a matrix.
    """
    with _refused_kernels(ask):
        return with_kernels(
            params, ask.kernels, geometry.activation_dtype, platform or current_platform()
        )


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


def _of_all(kernels: Iterable[str]) -> str:
    found = set(kernels)
    return found.pop() if len(found) == 1 else "reference"


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
