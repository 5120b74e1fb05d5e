"""Sampling parameters as rows: what float32 and int32 cannot hold is kept in its meaning."""

from dataclasses import asdict

import numpy as np
import pytest

from jaxinfer.config.step_plan import empty_sampling
from jaxinfer.scheduler.sampling_rows import SlotSampling
from tests.support.records import request


def row_of(**params):
    rows = SlotSampling(3)
    rows.set(1, request(**params))
    return rows.rows(np.array([1]))


def test_values_arrive() -> None:
    row = row_of(
        temperature=0.75, top_k=5, top_p=0.5, min_p=0.25, logprobs=3, sample_index=2, seed=7
    )
    assert row.temperature == np.float32(0.75) and row.top_k == 5 and row.top_p == np.float32(0.5)
    assert row.min_p == np.float32(0.25) and row.num_logprobs == 3 and row.sample_index == 2
    assert row.seeds.tolist() == [[7, 0]]


@pytest.mark.parametrize("logprobs", [None, 0, 20])
def test_no_logprobs_differs_from_none_best(logprobs: int | None) -> None:
    assert row_of(logprobs=logprobs).num_logprobs[0] == (-1 if logprobs is None else logprobs)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 - 1])
def test_a_seed_keeps_all_its_bits(seed: int) -> None:
    low, high = (int(word) for word in row_of(seed=seed).seeds[0])
    assert low + (high << 32) == seed


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39, 1e-30, 1e-6])
def test_a_tiny_temperature_stays_above_zero(temperature: float) -> None:
    """BB-20 (vllm#3063): rounded to 0 it would turn greedy; a float32 denormal counts as 0."""
    value = row_of(temperature=temperature).temperature[0]
    assert value >= np.finfo(np.float32).tiny


def test_zero_temperature_is_greedy() -> None:
    assert row_of(temperature=0.0).temperature[0] == 0


@pytest.mark.parametrize(("given", "kept"), [(-1, 0), (0, 0), (1, 1), (2**40, 2**31 - 1)])
def test_top_k_in_an_int32(given: int, kept: int) -> None:
    """BB-19 (sendnn-inference#542): a top_k beyond any vocabulary is no overflow."""
    assert row_of(top_k=given).top_k[0] == kept


def test_a_tiny_top_p_stays_above_zero() -> None:
    assert row_of(top_p=5e-324).top_p[0] > 0


def test_penalties_and_limits_arrive() -> None:
    row = row_of(
        prompt_ids=[4, 5, 6],
        repetition_penalty=1.25,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        min_tokens=4,
    )
    assert row.repetition_penalty == 1.25 and row.presence_penalty == -0.5
    assert row.frequency_penalty == 0.75 and row.first_end == 7 and row.seated == 1


def test_a_request_without_limits_is_not_seated() -> None:
    assert row_of(temperature=0.5, top_k=3, stop_token_ids=[3], logprobs=5).seated == 0


@pytest.mark.parametrize("penalty", [1e-320, 1e-45, 1e-30, 1.0, 1e30, 1e300])
def test_a_repetition_penalty_is_neither_zero_nor_infinite(penalty: float) -> None:
    kept = row_of(repetition_penalty=penalty).repetition_penalty[0]
    assert np.finfo(np.float32).tiny <= kept <= np.finfo(np.float32).max


def test_a_min_tokens_beyond_int32_is_never_reached() -> None:
    assert row_of(min_tokens=2**40, max_tokens=None).first_end[0] == 2**31 - 1


def test_a_slot_s_next_request_overwrites_everything() -> None:
    rows = SlotSampling(1)
    rows.set(0, request(presence_penalty=1, frequency_penalty=1, min_tokens=2, logprobs=2, top_k=4))
    rows.set(0, request(temperature=0.0))
    for name, value in asdict(empty_sampling(1)).items():
        if name != "first_end":  # the length of the prompt: without ends it says nothing
            np.testing.assert_array_equal(getattr(rows.rows(np.array([0])), name), value)


def test_rows_are_copies_in_the_order_asked() -> None:
    rows = SlotSampling(3)
    rows.set(0, request(seed=10))
    rows.set(2, request(seed=12))
    taken = rows.rows(np.array([2, 0, 2]))
    assert taken.seeds[:, 0].tolist() == [12, 10, 12]
    rows.set(2, request(seed=99))
    assert taken.seeds[:, 0].tolist() == [12, 10, 12]


def test_the_row_past_the_last_slot_is_empty() -> None:
    rows = SlotSampling(2)
    rows.set(1, request(temperature=1.5, top_k=3, top_p=0.5, min_p=0.1, logprobs=2, seed=2**40))
    for slots in ([0, 2], [2, 2]):
        for name, value in asdict(empty_sampling(2)).items():
            np.testing.assert_array_equal(getattr(rows.rows(np.array(slots)), name), value)
