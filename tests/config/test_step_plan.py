"""The neutral sampling rows: what an empty slot holds."""

import numpy as np
import pytest

from jaxinfer.config.step_plan import SamplingPlan, empty_sampling


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_empty_rows_are_greedy_and_silent(rows: int) -> None:
    plan = empty_sampling(rows)
    assert {name: getattr(plan, name).shape[0] for name in SamplingPlan.__slots__} == dict.fromkeys(
        SamplingPlan.__slots__, rows
    )
    assert (plan.temperature == 0).all() and (plan.num_logprobs == -1).all()
    assert (plan.top_p == 1).all() and (plan.top_k == 0).all() and (plan.min_p == 0).all()


def test_dtypes_are_those_that_programs_are_compiled_for() -> None:
    plan = empty_sampling(2)
    kinds = {name: getattr(plan, name).dtype for name in SamplingPlan.__slots__}
    assert kinds == {
        "temperature": np.float32,
        "top_k": np.int32,
        "top_p": np.float32,
        "min_p": np.float32,
        "seeds": np.uint32,
        "sample_index": np.int32,
        "num_logprobs": np.int32,
        "repetition_penalty": np.float32,
        "presence_penalty": np.float32,
        "frequency_penalty": np.float32,
        "first_end": np.int32,
        "seated": np.int32,
    }
    assert plan.seeds.shape == (2, 2)
