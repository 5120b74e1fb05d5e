"""Sampling rows and slot states from keyword arguments, as the scheduler makes them."""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.step_plan import StepResult
from jaxinfer.sampling.logits import SamplingRows
from jaxinfer.sampling.slot_state import LoopState, abstract_loop_state
from jaxinfer.scheduler.sampling_rows import SlotSampling
from jaxinfer.scheduler.seating import needs_seat, seat_plan
from tests.support.records import request

GARBAGE = 0xDEADBEEF


@dataclass(frozen=True, kw_only=True)
class Seats:
    """What a step needs beside logits: row i sits in slot i + `SHIFT`, all else is poison."""

    rows: SamplingRows
    positions: np.ndarray
    state: LoopState
    slots: np.ndarray


SHIFT = 1


def sampling_rows(*rows: dict[str, Any]) -> SamplingRows:
    """A row a mapping: SamplingParams by name, `seed` and `sample_index`."""
    slots = SlotSampling(len(rows))
    for slot, row in enumerate(rows):
        slots.set(slot, request(**row))
    return SamplingRows(**asdict(slots.rows(np.arange(len(rows)))))


def repeated(rows: SamplingRows, count: int) -> SamplingRows:
    """`count` copies of every row."""
    return jax.tree.map(lambda array: np.repeat(array, count, axis=0), rows)


def poisoned_state(num_slots: int, vocab_size: int) -> LoopState:
    """Slots as an earlier request may have left them, and worse: every word is garbage."""

    def poison(leaf: Any) -> np.ndarray:
        words = np.full(leaf.shape, GARBAGE, np.uint32)
        if leaf.dtype == np.float32:
            words[...] = np.float32(np.nan).view(np.uint32)
        return words.view(leaf.dtype)

    return jax.tree.map(poison, abstract_loop_state(num_slots, vocab_size))


def seats(vocab_size: int, *rows: dict[str, Any], num_slots: int | None = None) -> Seats:
    """A row a mapping: SamplingParams, and of its request `prompt_ids`, `output_ids`, `end_ids`.

    `bad_word_ids` stand for bad words. The row draws the token after its output.
    """
    state = poisoned_state(num_slots or len(rows) + SHIFT, vocab_size)
    slots = SlotSampling(len(rows))
    positions = np.zeros(len(rows), np.int32)
    for index, row in enumerate(rows):
        given = dict(row)
        output_ids, words = given.pop("output_ids", []), given.pop("bad_word_ids", ())
        if words:
            given["bad_words"] = ["these"]
        made = request(**given)
        slots.set(index, made)
        positions[index] = len(made.prompt_ids) + len(output_ids)
        if needs_seat(made.params):
            plan = seat_plan(
                index + SHIFT,
                params=made.params,
                end_ids=made.end_ids,
                bad_word_ids=words,
                prompt_ids=made.prompt_ids,
                output_ids=output_ids,
                vocab_size=vocab_size,
            )
            for name, array in vars(state).items():
                array[plan.slot] = getattr(plan, name)
    return Seats(
        rows=SamplingRows(**asdict(slots.rows(np.arange(len(rows))))),
        positions=positions,
        state=state,
        slots=np.arange(len(rows), dtype=np.int32) + SHIFT,
    )


def unpacked(packed: Any) -> StepResult:
    """What `pack` packed."""
    array, best = np.asarray(packed), 4 + MAX_LOGPROBS
    return StepResult(
        tokens=array[:, 0],
        finite=array[:, 1] > 0,
        logprobs=np.ascontiguousarray(array[:, 2]).view(np.float32),
        ranks=array[:, 3],
        best_ids=array[:, 4:best],
        best_logprobs=np.ascontiguousarray(array[:, best:]).view(np.float32),
    )
