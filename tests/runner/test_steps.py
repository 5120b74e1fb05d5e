"""Steps as functions: what fills a step's rows up to whole tiles changes nothing that is drawn."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.cache import init_cache
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.spec import Leaf
from jaxinfer.runner import steps
from jaxinfer.runner.batch import VerifyBatch
from jaxinfer.runner.steps import verify_step
from jaxinfer.sampling.draw import Drawn, block_rows, draw
from jaxinfer.sampling.logits import SamplingRows
from tests.sampling.rows import seats
from tests.support.records import geometry, model_config

CONFIG = model_config(windows=(0,))
# Three rows of four tokens: twelve draws, in tiles of sixteen rows (four rows of four tokens).
GEOMETRY = geometry(num_slots=4, draft_tokens=3, verify_widths=(3,))


def random_params() -> Any:
    random = np.random.default_rng(3)

    def make(leaf: Leaf) -> jax.Array:
        return jnp.asarray(random.normal(0, 0.3, leaf.shape) + (leaf.role == "norm"), jnp.float32)

    return jax.tree.map(make, architecture_named("llama").leaves(CONFIG))


def verify_batch() -> tuple[Any, VerifyBatch]:
    """The loop state of three requests and their batch; the last row is nobody's."""
    kinds = [
        {"temperature": 0.0, "prompt_ids": [4, 9]},
        {"seed": 5, "temperature": 0.9, "logprobs": 2, "prompt_ids": [7]},
        {"temperature": 0.0},
    ]
    made = seats(CONFIG.vocab_size, *kinds)
    state = replace(made.state, recent=np.full_like(made.state.recent, 11))
    tables = np.zeros((1, 3, GEOMETRY.pages_per_row), np.int32)
    tables[0, :, :2] = [[1, 2], [3, 4], [5, 6]]
    slots = np.asarray([*made.slots[:2], GEOMETRY.num_slots], np.int32)
    batch = VerifyBatch(
        slots=slots,  # type: ignore[arg-type]  # numpy in place of device arrays
        positions=np.asarray([1, 0, 0], np.int32),  # type: ignore[arg-type]
        tables=tables,  # type: ignore[arg-type]
        drafts=np.asarray([[3, 1, 2], [8, 8, 8], [0, 0, 0]], np.int32),  # type: ignore[arg-type]
        num_drafts=np.asarray([3, 1, 0], np.int32),  # type: ignore[arg-type]
        sampling=made.rows,
    )
    return state, batch


def test_a_step_that_fills_tiles_draws_the_same_bits() -> None:
    assert block_rows(12, CONFIG.vocab_size) < 12  # so the draws are filled up, too
    found = []
    for fills_tiles in (False, True):
        made = replace(GEOMETRY, fills_tiles=fills_tiles)
        run = jax.jit(partial(verify_step, config=CONFIG, geometry=made))
        state, batch = verify_batch()
        found.append(run(random_params(), init_cache(CONFIG, made), state, batch))
    (plain, plain_state, drawn, hidden), (filled, filled_state, again, same) = found
    assert (np.asarray(drawn)[:2, :, 1] == 1).all()  # logits are finite: there is something drawn
    np.testing.assert_array_equal(drawn, again)
    np.testing.assert_array_equal(hidden[:2], same[:2])
    jax.tree.map(np.testing.assert_array_equal, plain_state, filled_state)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(filled), strict=True):
        np.testing.assert_array_equal(one[1:], other[1:])  # but for the null page


def test_draws_that_fill_tiles_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a step of greedy rows would sort all logits for the log-probabilities of nobody."""
    seen: list[SamplingRows] = []

    def watched(logits: jax.Array, rows: SamplingRows, *others: Any, **options: Any) -> Drawn:
        seen.append(rows)
        return draw(logits, rows, *others, **options)

    def asked(*arrays: Any) -> SamplingRows:
        verify_step(*arrays, CONFIG, made)
        return seen.pop()

    monkeypatch.setattr(steps, "draw", watched)
    made, (state, batch) = replace(GEOMETRY, fills_tiles=True), verify_batch()
    rows = jax.jit(asked)(random_params(), init_cache(CONFIG, made), state, batch)
    behind = jax.tree.map(lambda leaf: np.asarray(leaf)[12:], rows)
    assert behind.temperature.shape == (4,)
    assert not (behind.temperature > 0).any() and (behind.num_logprobs < 0).all()
    assert (behind.top_p == 1).all() and not behind.seated.any()
