"""Drawn tokens: the exact law, keys of (seed, sample, position) alone, limits, flags.

A program is compiled for each shape, so the tests keep to few: [2000, 6], [3, 6], and [2, 300] and
[40, 300].
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.sampling.draw import BLOCK_ROWS, Drawn, draw, draw_in_blocks, pack
from tests.sampling import reference
from tests.sampling.draws import (
    LOGITS,
    draw_rows,
    draw_seated,
    program,
    random_logits,
    seated_program,
)
from tests.sampling.rows import repeated, sampling_rows, seats, unpacked

MANY = 2000


def draw_many(count: int, logits: np.ndarray = LOGITS, **params: Any) -> np.ndarray:
    """`count` draws from six logits at positions 0, 1, …"""
    rows, every = repeated(sampling_rows(params), MANY), np.tile(logits, (MANY, 1))
    positions = np.arange(count, dtype=np.int32).reshape(-1, MANY)
    packed = [program(every, rows, some) for some in positions]
    return np.concatenate([unpacked(one).tokens for one in packed])


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.15},
        {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_the_law_is_the_filtered_softmax(params: dict[str, Any]) -> None:
    counts = np.bincount(draw_many(20_000, seed=7, **params), minlength=6)
    law = reference.softmax(reference.filtered(LOGITS, **params))
    found, bound = reference.chi_square(counts, law)
    assert found < bound


def test_the_bound_sees_a_wrong_law() -> None:
    counts = np.bincount(draw_many(20_000, seed=7), minlength=6)
    wrong = reference.softmax(reference.filtered(LOGITS, temperature=1.1))
    found, bound = reference.chi_square(counts, wrong)
    assert found > bound


@pytest.mark.parametrize("varied", ["seed", "sample_index"])
def test_the_law_holds_over_seeds_and_over_samples(varied: str) -> None:
    rows = [{"seed": 1, "sample_index": 0, varied: i} for i in range(MANY)]
    tokens = draw_rows(np.tile(LOGITS, (MANY, 1)), rows, np.full(MANY, 9)).tokens
    law = reference.softmax(LOGITS.astype(np.float64))
    found, bound = reference.chi_square(np.bincount(tokens, minlength=6), law)
    assert found < bound


def test_neighbouring_positions_are_independent() -> None:
    tokens = draw_many(20_000, seed=3)
    pairs = np.bincount(tokens[0::2] * 6 + tokens[1::2], minlength=36)
    law = reference.softmax(LOGITS.astype(np.float64))
    found, bound = reference.chi_square(pairs, np.outer(law, law).ravel())
    assert found < bound


def test_rare_tokens_have_their_probability() -> None:
    """A noise of coarse uniforms would never, or too often, draw a token of one in 10,000."""
    logits = np.full(6, -np.inf, np.float32)
    logits[2:4] = np.log(np.array([0.9999, 0.0001]))
    counts = np.bincount(draw_many(100_000, logits, seed=5), minlength=6)
    assert counts[2] + counts[3] == 100_000 and 1 <= counts[3] <= 30  # 10 on average


def test_a_key_is_seed_sample_and_position_and_nothing_else() -> None:
    """Promise 3: the slot, the number of rows and the neighbours do not matter."""
    base = {"seed": 2**40 + 5, "sample_index": 3, "temperature": 1.7}
    logits = random_logits(40)
    expected = [draw_rows(logits[[0, 1]], [base, {}], [p, 0]).tokens[0] for p in range(20)]
    assert len(set(expected)) > 10
    for width, slot in ((2, 1), (40, 0), (40, 17)):
        for position in (0, 7, 19):
            order = np.roll(np.arange(width), slot)  # row 0 stands at `slot`
            rows: list[dict[str, Any]] = [{"seed": i, "temperature": 0.3} for i in range(width)]
            rows[slot] = base
            positions = np.arange(width)
            positions[slot] = position
            found = draw_rows(logits[order], rows, positions)
            assert found.tokens[slot] == expected[position]


@pytest.mark.parametrize(
    "other",
    [
        *({"seed": 2}, {"seed": 1 + 2**32}, {"sample_index": 1}, {"position": 1}),
        {"sample_index": 2, "position": -2},  # the parts do not just add up
    ],
)
def test_every_part_of_the_key_counts(other: dict[str, int]) -> None:
    """BB-21 (vllm#51226): different samples and seeds differ, equal ones are equal."""
    logits, positions = np.zeros((40, 300), np.float32), 2 * np.arange(5, 45)
    place = other.get("position", 0)
    params = {name: value for name, value in other.items() if name != "position"}
    one = draw_rows(logits, [{"seed": 1}] * 40, positions).tokens
    again = draw_rows(logits, [{"seed": 1}] * 40, positions).tokens
    different = draw_rows(logits, [{"seed": 1, **params}] * 40, positions + place).tokens
    np.testing.assert_array_equal(one, again)
    assert (one != different).mean() > 0.9


@pytest.mark.parametrize(
    "ignored", [{}, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.5}, {"seed": 9, "sample_index": 4}]
)
def test_greedy_is_the_first_of_the_best(ignored: dict[str, Any]) -> None:
    """BB-26 (vllm#9453): ids 5 and 9 tie, 5 is drawn; greedy ignores the filters."""
    logits = np.zeros((2, 300), np.float32)
    logits[:, [5, 9]] = 17.9
    drawn = draw_rows(logits, [{"temperature": 0.0, **ignored}] * 2, [0, 1])
    assert drawn.tokens.tolist() == [5, 5]


@pytest.mark.parametrize(
    "params",
    [
        *({"temperature": t} for t in (1e-2, 1e-4, 1e-6, 1e-30, 5e-324)),
        *({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}),
    ],
)
def test_what_leaves_only_the_best_is_greedy(params: dict[str, Any]) -> None:
    """BB-19, BB-20: beside greedy and other rows in one batch."""
    logits = random_logits(40, scale=8.0)
    rows = [{**params, "seed": i} if i % 4 else {"top_k": 64} for i in range(40)]
    drawn = draw_rows(logits, rows, np.arange(40)).tokens
    mine = np.arange(40) % 4 > 0
    np.testing.assert_array_equal(drawn[mine], logits.argmax(axis=-1)[mine])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_nan_and_inf_are_flagged_in_their_row_alone(
    temperature: float, bad: float, place: int
) -> None:
    """Promise 11, BB-41 (slime#2256): never text; the neighbours are untouched."""
    logits = np.tile(LOGITS, (3, 1))
    rows: list[dict[str, Any]] = [{"temperature": temperature, "top_p": 0.9, "logprobs": 2}] * 3
    healthy = draw_rows(logits, rows, [0, 1, 2])
    assert healthy.finite.all()
    logits[1, place] = bad
    found = draw_rows(logits, rows, [0, 1, 2])
    assert found.finite.tolist() == [True, False, True]
    for name in ("tokens", "logprobs", "best_logprobs"):
        np.testing.assert_array_equal(getattr(found, name)[::2], getattr(healthy, name)[::2])


@pytest.mark.parametrize("num_rows", [2, 32])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_logit_is_seen_anywhere_in_a_real_vocabulary(bad: float, num_rows: int) -> None:
    """A CPU's maximum passes over NaN once a row is long: the flag must not be made of it."""
    size = 49152
    logits = np.random.default_rng(0).normal(size=(num_rows, size)).astype(np.float32)
    for place in (0, 63, 20000, size - 1):
        poisoned = logits.copy()
        poisoned[-1, place] = bad
        finite = draw_rows(poisoned, [{}] * num_rows, list(range(num_rows))).finite
        assert finite[:-1].all() and not finite[-1], place


def test_the_packed_form_keeps_every_bit() -> None:
    random = np.random.default_rng(6)
    fields: dict[str, Any] = {
        "tokens": random.integers(2**31, size=5, dtype=np.int32),
        "finite": np.array([1, 0, 1, 1, 0], np.int32),
        "logprobs": np.array([-0.0, -1e-45, -np.inf, -3.4e38, np.nan], np.float32),
        "ranks": random.integers(2**31, size=5, dtype=np.int32),
        "best_ids": random.integers(2**31, size=(5, 20), dtype=np.int32),
        "best_logprobs": random.normal(size=(5, 20)).astype(np.float32),
    }
    found = unpacked(pack(Drawn(**jax.tree.map(jnp.asarray, fields))))
    for name, value in fields.items():
        assert getattr(found, name).astype(value.dtype).tobytes() == value.tobytes(), name
    assert found.finite.dtype == bool and found.logprobs.dtype == np.float32


def test_limits_bind_greedy_and_drawn_tokens_but_not_raw_logprobs() -> None:
    """BB-19: one batch of greedy and random rows, with and without limits."""
    logits = random_logits(40)
    best = logits.argsort(axis=-1)[:, ::-1]
    plain = [{"temperature": t, "logprobs": 1, "seed": i} for i, t in enumerate((0.0, 1.0) * 20)]
    rows = [
        {**row, "bad_word_ids": [[int(best[i, 0])]]} if i % 4 < 2 else row
        for i, row in enumerate(plain)
    ]
    found, free = draw_seated(logits, seats(300, *rows)), draw_seated(logits, seats(300, *plain))
    limited = np.arange(40) % 4 < 2
    np.testing.assert_array_equal(found.tokens[::4], best[::4, 1])
    assert (found.tokens[limited] != best[limited, 0]).all() and (found.ranks[limited] > 1).all()
    np.testing.assert_array_equal(found.best_ids, best[:, :20])
    np.testing.assert_array_equal(found.best_logprobs, free.best_logprobs)
    for name in ("tokens", "logprobs", "ranks"):  # the others do not notice
        np.testing.assert_array_equal(getattr(found, name)[~limited], getattr(free, name)[~limited])


def test_the_law_under_limits_is_that_of_the_limited_logits() -> None:
    row = {"allowed_token_ids": [0, 1, 3], "logit_bias": {1: 1.5}, "temperature": 1.5, "seed": 11}
    made = seats(6, {**row, "output_ids": [3], "presence_penalty": 1.0})
    rows, tokens = repeated(made.rows, MANY), []
    slots, every = np.repeat(made.slots, MANY), np.tile(LOGITS, (MANY, 1))
    for positions in np.arange(20_000, dtype=np.int32).reshape(-1, MANY):
        tokens.append(unpacked(seated_program(every, rows, positions, made.state, slots)).tokens)
    scores = reference.limited(
        LOGITS,
        allowed_token_ids=[0, 1, 3],
        logit_bias={1: 1.5},
        output_ids=[3],
        presence_penalty=1.0,
    )
    law = reference.softmax(reference.filtered(scores, temperature=1.5))
    found, bound = reference.chi_square(np.bincount(np.concatenate(tokens), minlength=6), law)
    assert found < bound


def test_a_seated_row_s_bits_do_not_depend_on_the_rows_beside_it() -> None:
    """Promise 2: with 2, 8 and 32 rows, beside seated and plain ones, in both modes."""
    logits = random_logits(32, scale=4.0)
    rows: list[dict[str, Any]] = [
        {
            "prompt_ids": [i, 1, 2],
            "output_ids": [i + 1, i + 1, 9],
            "seed": i,
            "logprobs": 20,
            "temperature": (0.0, 0.8, 1.3)[i % 3],
            "top_k": (0, 40)[i % 2],
            "top_p": (1.0, 0.9)[i % 5 < 2],
            **({"repetition_penalty": 1.7, "frequency_penalty": 0.3} if i % 4 != 1 else {}),
        }
        for i in range(32)
    ]
    for mode in ("raw", "processed"):
        whole = draw_seated(logits, seats(300, *rows), mode)
        for count in (2, 8):
            few = draw_seated(logits[-count:], seats(300, *rows[-count:], num_slots=33), mode)
            for name in ("tokens", "logprobs", "ranks", "best_ids", "best_logprobs"):
                np.testing.assert_array_equal(getattr(few, name), getattr(whole, name)[-count:])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_logit_that_a_limit_hides_is_still_flagged(bad: float) -> None:
    logits = random_logits(2)
    logits[0, 4] = bad
    found = draw_seated(logits, seats(300, {"bad_word_ids": [[4]]}, {}))
    assert found.finite.tolist() == [False, True]


def test_a_block_of_rows_after_another_gives_what_all_at_once_do() -> None:
    """As a GPU draws; 40 rows are no whole number of blocks. Greedy and drawn rows, limits, and
    log-probabilities of some."""
    kinds = [
        {"seed": 1, "temperature": 0.0},
        {"seed": 2, "top_p": 0.9, "logprobs": 3},
        {"seed": 3, "temperature": 0.7, "logit_bias": {5: 2.0}, "prompt_ids": [1, 2]},
    ]
    made = seats(300, *(kinds[row % 3] for row in range(40)))
    operands = (random_logits(40), made.rows, made.positions, made.slots, None)

    def whole(*operands: Any) -> Drawn:
        logits, rows, positions, slots, ahead = operands
        return draw(logits, rows, positions, made.state, slots, ahead=ahead)

    together = jax.jit(whole)(*operands)
    blocks = jax.jit(lambda *operands: draw_in_blocks(whole, *operands))(*operands)
    assert 40 % BLOCK_ROWS
    jax.tree.map(np.testing.assert_array_equal, blocks, together)
    plain = sampling_rows(*[{"temperature": 0.0}] * 40)
    greedy = jax.jit(lambda *operands: draw_in_blocks(whole, *operands))
    simple = greedy(operands[0], plain, *operands[2:])
    np.testing.assert_array_equal(simple.tokens, operands[0].argmax(axis=1))
    assert not np.asarray(simple.best_ids).any()
