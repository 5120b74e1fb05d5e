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
