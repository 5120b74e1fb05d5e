"""JOINT. Owns what lives on the device (parameters, cache, loop state) and runs compiled steps.

Does not know requests, pages' owners or text: a plan goes in, one packed result comes back.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.cache import PagedKV, abstract_cache, init_cache
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult
from jaxinfer.runner.batch import (
    LoopState,
    abstract_decode_batch,
    abstract_prefill_batch,
    abstract_state,
    init_state,
)
from jaxinfer.runner.compile import ProgramSource, compile_side_by_side
from jaxinfer.runner.staging import stage_decode, stage_prefill, unpack
from jaxinfer.runner.steps import decode_step, head_step, prefill_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Every executable of an engine; nothing is compiled after these."""

    prefill: dict[int, Any]  # by R
    decode: dict[int, Any]  # by W
    head: Any
    init: Any

    def named(self) -> dict[str, Any]:
        """All of them by a name for reports."""
        return (
            {f"prefill_step R={rows}": program for rows, program in self.prefill.items()}
            | {f"decode_step W={width}": program for width, program in self.decode.items()}
            | {"head_step": self.head, "init": self.init}
        )


def compile_programs(
    params: Any, config: ModelConfig, geometry: Geometry, *, show_progress: bool = False
) -> Programs:
    """Compiles every program for the shapes of `params` (arrays or shapes)."""
    cache, state = abstract_cache(config, geometry), abstract_state(geometry)
    static = {"config": config, "geometry": geometry}

    def step(function: Any, batch: Any) -> ProgramSource:
        arguments = (params, cache, state, batch)
        return ProgramSource(function=function, arguments=arguments, donate=(1, 2), static=static)

    rows = (geometry.head_rows, config.hidden_size)
    hidden = jax.ShapeDtypeStruct(rows, jnp.dtype(geometry.activation_dtype))
    sources = {
        "init": ProgramSource(function=_init_step, static=static),
        "head": ProgramSource(
            function=head_step, arguments=(params, hidden), static={"config": config}
        ),
    }
    for count in geometry.prefill_rows:
        sources[f"prefill {count}"] = step(prefill_step, abstract_prefill_batch(geometry, count))
    for width in geometry.decode_widths:
        sources[f"decode {width}"] = step(decode_step, abstract_decode_batch(geometry, width))
    compiled = compile_side_by_side(sources, show_progress=show_progress)
    return Programs(
        prefill={count: compiled[f"prefill {count}"] for count in geometry.prefill_rows},
        decode={width: compiled[f"decode {width}"] for width in geometry.decode_widths},
        head=compiled["head"],
        init=compiled["init"],
    )


def _init_step(config: ModelConfig, geometry: Geometry) -> tuple[PagedKV, LoopState]:
    return init_cache(config, geometry), init_state(geometry)


class Runner:
    """Runs steps. Every array it holds is gone after `close`."""

    def __init__(self, params: Any, programs: Programs, geometry: Geometry) -> None:
        self.params = params
        self.programs = programs
        self.geometry = geometry
        self.cache, self.state = programs.init()

    def prefill(self, plan: PrefillPlan) -> tuple[StepResult, jax.Array]:
        """Runs a prefill step: what was drawn, and the hidden rows [R, T, E]."""
        program = self.programs.prefill[plan.tokens.shape[0]]
        return self._run(program, stage_prefill(plan))

    def decode(self, plan: DecodePlan) -> tuple[StepResult, jax.Array]:
        """Runs a decode step: what was drawn, and the hidden rows [W, 1, E]."""
        program = self.programs.decode[plan.positions.shape[0]]
        return self._run(program, stage_decode(plan))

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of any number of hidden rows: [rows, E] → [rows, V] f32, HEAD_ROWS at a time."""
        width, pieces = self.geometry.head_rows, []
        for first in range(0, hidden.shape[0], width):
            piece = hidden[first : first + width]
            padded = np.pad(piece, ((0, width - piece.shape[0]), (0, 0)))
            scores = self.programs.head(self.params, padded)
            pieces.append(np.asarray(scores)[: piece.shape[0]])
        return np.concatenate(pieces)

    def set_last_tokens(self, tokens: np.ndarray) -> None:
        """Puts tokens [B] i32 into the loop state, in place of drawn ones (teacher forcing)."""
        device = next(iter(self.state.last_tokens.devices()))
        self.state = LoopState(last_tokens=jax.device_put(tokens.astype(np.int32), device))

    def revive(self) -> None:
        """Makes cache and loop state anew if a step that was interrupted took them along."""
        if any(leaf.is_deleted() for leaf in jax.tree.leaves((self.cache, self.state))):
            self.cache, self.state = self.programs.init()

    def close(self) -> None:
        """Frees the device memory of parameters, cache and state."""
        for leaf in jax.tree.leaves((self.params, self.cache, self.state)):
            if not leaf.is_deleted():
                leaf.delete()

    def _run(self, program: Any, batch: Any) -> tuple[StepResult, jax.Array]:
        self.cache, self.state, packed, hidden = program(self.params, self.cache, self.state, batch)
        return unpack(np.asarray(packed)), hidden
