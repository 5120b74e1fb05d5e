"""JOINT. Every program of an engine, compiled ahead for one geometry.

Knows which functions there are and their shapes; runs none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.cache import PagedKV, abstract_cache, init_cache
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.runner.batch import (
    abstract_decode_batch,
    abstract_prefill_batch,
    abstract_verify_batch,
)
from jaxinfer.runner.compile import ProgramSource, compile_side_by_side
from jaxinfer.runner.steps import (
    copy_step,
    decode_step,
    draft_step,
    head_step,
    prefill_step,
    seat_step,
    swap_in_step,
    swap_out_step,
    verify_step,
)
from jaxinfer.sampling.slot_state import (
    LoopState,
    abstract_loop_state,
    abstract_seat_row,
    init_loop_state,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Every executable of an engine; nothing is compiled after these.

    prefill: by R. decode, draft and verify: by W. small: the others by name ("head", "init",
    "seat", "copy", and, where pages are swapped, "swap_out" and "swap_in").
    """

    prefill: dict[int, Any]
    decode: dict[int, Any]
    draft: dict[int, Any]
    verify: dict[int, Any]
    small: dict[str, Any]

    def named(self) -> dict[str, Any]:
        """All of them by a name for reports."""
        kinds = ("prefill", "decode", "draft", "verify")
        steps = {
            (kind, rows): program for kind in kinds for rows, program in getattr(self, kind).items()
        }
        return _named(steps, self.small)


def compile_programs(
    params: Any,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig | None = None,
    *,
    show_progress: bool = False,
) -> Programs:
    """Compiles every program for the shapes of `params` (arrays or shapes).

    draft: of the model that drafts, whose parameters are under "draft"; None without one.
    """
    steps = _step_sources(params, config, geometry, draft)
    small = _small_sources(params, config, geometry, draft)
    compiled = compile_side_by_side(_named(steps, small), show_progress=show_progress)

    def of_kind(kind: str) -> dict[int, Any]:
        return {rows: compiled[_step_name(kind, rows)] for one, rows in steps if one == kind}

    return Programs(
        prefill=of_kind("prefill"),
        decode=of_kind("decode"),
        draft=of_kind("draft"),
        verify=of_kind("verify"),
        small={name: compiled[f"{name}_step"] for name in small},
    )


def program_sources(
    params: Any, config: ModelConfig, geometry: Geometry, draft: ModelConfig | None = None
) -> dict[str, ProgramSource]:
    """What `compile_programs` compiles, by the names of `Programs.named`."""
    return _named(
        _step_sources(params, config, geometry, draft),
        _small_sources(params, config, geometry, draft),
    )


def _named(steps: Mapping[tuple[str, int], Any], small: Mapping[str, Any]) -> dict[str, Any]:
    named = {_step_name(*key): one for key, one in steps.items()}
    return named | {f"{name}_step": one for name, one in small.items()}


def _step_name(kind: str, rows: int) -> str:
    return f"{kind}_step {'R' if kind == 'prefill' else 'W'}={rows}"


def _step_sources(
    params: Any, config: ModelConfig, geometry: Geometry, draft: ModelConfig | None
) -> dict[tuple[str, int], ProgramSource]:
    cache = abstract_cache(config, geometry, draft)
    state = abstract_loop_state(geometry.num_slots, config.vocab_size)
    static = {"config": config, "geometry": geometry, "draft": draft}

    def step(function: Any, batch: Any) -> ProgramSource:
        arguments = (params, cache, state, batch)
        return ProgramSource(function=function, arguments=arguments, donate=(1, 2), static=static)

    def drafting(width: int) -> ProgramSource:
        drafts = _ints(width, geometry.draft_tokens)
        batch = abstract_verify_batch(geometry, width)
        arguments = (params, cache, state, drafts, _ints(), batch)
        return ProgramSource(function=draft_step, arguments=arguments, donate=(1,), static=static)

    prefill = {
        ("prefill", rows): step(prefill_step, abstract_prefill_batch(geometry, rows))
        for rows in geometry.prefill_rows
    }
    decode = {
        ("decode", width): step(decode_step, abstract_decode_batch(geometry, width))
        for width in geometry.decode_widths
    }
    verify = {
        ("verify", width): step(verify_step, abstract_verify_batch(geometry, width))
        for width in geometry.verify_widths
    }
    widths = geometry.verify_widths if draft is not None else ()
    draft_steps = {("draft", width): drafting(width) for width in widths}
    return prefill | decode | draft_steps | verify


def _small_sources(
    params: Any, config: ModelConfig, geometry: Geometry, draft: ModelConfig | None
) -> dict[str, ProgramSource]:
    cache = abstract_cache(config, geometry, draft)
    static = {"config": config, "geometry": geometry, "draft": draft}
    state = abstract_loop_state(geometry.num_slots, config.vocab_size)
    rows = (geometry.head_rows, config.hidden_size)
    hidden = jax.ShapeDtypeStruct(rows, jnp.dtype(geometry.activation_dtype))
    groups = _ints(len(geometry.group_windows))
    sources = {
        "init": ProgramSource(function=_init_step, static=static),
        "head": ProgramSource(
            function=head_step,
            arguments=(params, hidden, _ints(geometry.head_rows)),
            static={"config": config},
        ),
        "seat": ProgramSource(
            function=seat_step,
            arguments=(state, abstract_seat_row(config.vocab_size)),
            donate=(0,),
        ),
        "copy": ProgramSource(
            function=copy_step,
            arguments=(cache, groups, groups),
            donate=(0,),
            static={"geometry": geometry},
        ),
    }
    return sources | (_swap_sources(cache, geometry) if geometry.swap_pages else {})


def _swap_sources(cache: PagedKV, geometry: Geometry) -> dict[str, ProgramSource]:
    pages = _ints(len(geometry.group_windows), geometry.swap_pages)
    static = {"geometry": geometry}
    content = jax.eval_shape(partial(swap_out_step, **static), cache, pages)
    return {
        "swap_out": ProgramSource(function=swap_out_step, arguments=(cache, pages), static=static),
        "swap_in": ProgramSource(
            function=swap_in_step, arguments=(cache, pages, content), donate=(0,), static=static
        ),
    }


def _init_step(
    config: ModelConfig, geometry: Geometry, draft: ModelConfig | None
) -> tuple[PagedKV, LoopState]:
    state = init_loop_state(geometry.num_slots, config.vocab_size)
    return init_cache(config, geometry, draft), state


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
