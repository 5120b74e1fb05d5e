"""The state of the slots: seated whole, counted on, never copied."""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.config.memory_needs import loop_state_bytes
from jaxinfer.config.step_plan import PROMPT_FLAG, RECENT_TOKENS
from jaxinfer.sampling.draw import draw, pack
from jaxinfer.sampling.logits import SamplingRows
from jaxinfer.sampling.slot_state import (
    LoopState,
    SeatRow,
    abstract_loop_state,
    abstract_seat_row,
    init_loop_state,
    last_tokens,
    seat,
    take_tokens,
)
from jaxinfer.scheduler.seating import seat_plan
from tests.sampling.rows import poisoned_state, sampling_rows
from tests.support.records import request

VOCAB, SLOTS = 70, 3


def seat_row(slot: int, prompt_ids: list[int], **params: Any) -> SeatRow:
    plan = seat_plan(
        slot,
        params=request(**params).params,
        end_ids=(3,),
        bad_word_ids=((1, 2),),
        prompt_ids=prompt_ids,
        output_ids=[],
        vocab_size=VOCAB,
    )
    return SeatRow(**jax.tree.map(np.asarray, asdict(plan)) | {"slot": np.int32(slot)})


def as_bytes(state: LoopState) -> dict[str, bytes]:
    return {name: np.asarray(leaf).tobytes() for name, leaf in vars(state).items()}


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_seat_overwrites_its_slot_and_no_other(slot: int) -> None:
    state, row = poisoned_state(SLOTS, VOCAB), seat_row(slot, [5, 6], logit_bias={7: 2})
    seated = jax.jit(seat)(state, row)
    for name, leaf in vars(state).items():
        leaf[slot] = getattr(row, name)
    assert as_bytes(seated) == as_bytes(state)


def test_shapes_are_those_of_the_arrays() -> None:
    shapes, arrays = abstract_loop_state(SLOTS, VOCAB), init_loop_state(SLOTS, VOCAB)
    assert loop_state_bytes(SLOTS, VOCAB) == sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), arrays) == jax.tree.map(
        lambda a: (a.shape, a.dtype), shapes
    )
    assert arrays.allowed.shape == (SLOTS, 3)
    row, host = abstract_seat_row(VOCAB), seat_row(0, [1])
    assert jax.tree.map(lambda a: (a.shape, a.dtype), host) == jax.tree.map(
        lambda a: (a.shape, a.dtype), row
    )


def test_a_fresh_state_embeds_tokens_of_the_vocabulary() -> None:
    """An empty row reads a slot's last token too: it must be one."""
    assert not np.asarray(init_loop_state(2, VOCAB).recent).any()


def test_tokens_shift_in_and_are_counted() -> None:
    state = jax.jit(seat)(init_loop_state(SLOTS, VOCAB), seat_row(1, [5, 6]))
    take = jax.jit(take_tokens)
    for token in (8, 6, 8):
        state = take(state, np.array([1, SLOTS]), np.array([token, 4]))
    assert np.asarray(state.recent[1]).tolist() == [-2, -2, 5, 6, 8, 6, 8]
    seen = np.asarray(state.seen)
    assert {i: seen[1, i] for i in np.flatnonzero(seen[1])} == {
        5: PROMPT_FLAG,
        6: PROMPT_FLAG + 1,
        8: 2,
    }
    assert not seen[[0, 2]].any() and not np.asarray(state.recent)[[0, 2]].any()


def test_a_slot_past_the_end_takes_nothing_and_reads_the_last() -> None:
    state = init_loop_state(SLOTS, VOCAB)
    state = take_tokens(state, np.array([2, 0]), np.array([9, 4]))
    before = as_bytes(state)
    slots = np.array([SLOTS, SLOTS])
    assert as_bytes(take_tokens(state, slots, np.array([1, 2]))) == before
    assert last_tokens(state, np.array([0, 1, 2, SLOTS])).tolist() == [4, 0, 9, 9]


def test_more_tokens_than_are_kept() -> None:
    state = init_loop_state(1, VOCAB)
    for token in range(10):
        state = take_tokens(state, np.array([0]), np.array([token]))
    assert np.asarray(state.recent)[0].tolist() == list(range(10))[-RECENT_TOKENS:]


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_a_step_changes_the_donated_state_in_place(mode: Any) -> None:
    """All of it is aliased; beside it stand a few arrays of the step's rows, not of the slots."""
    slots, width, vocab = 64, 2, 4096

    def step(state: LoopState, logits: Any, rows: SamplingRows, places: Any, positions: Any) -> Any:
        drawn = draw(logits, rows, positions, state, places, logprobs_mode=mode)
        return take_tokens(state, places, drawn.tokens), pack(drawn)

    rows = sampling_rows({}, {"presence_penalty": 1.0, "top_k": 3, "top_p": 0.5, "logprobs": 2})
    logits, places = np.zeros((width, vocab), np.float32), np.zeros(width, np.int32)
    state = abstract_loop_state(slots, vocab)
    program = jax.jit(step, donate_argnums=0).lower(state, logits, rows, places, places).compile()
    memory = program.memory_analysis()
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes == held
    assert memory.temp_size_in_bytes < 24 * logits.nbytes < slots * vocab * 4
