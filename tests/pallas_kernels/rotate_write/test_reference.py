"""The reference of `rotate_write` against float64."""

import functools

import jax
import numpy as np
import pytest

from pallas_kernels.rotate_write import rotate_write
from pallas_kernels.rotate_write.cases import CASES, Case
from tests.pallas_kernels.rotate_write.calls import exact, make_call
from tests.support.tolerances import KERNELS

SMALL = [case for case in CASES if case.is_small]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_equals_float64(case: Case) -> None:
    arrays, options = make_call(case)
    run = functools.partial(rotate_write, **options, implementation="reference")
    for found, expected in zip(jax.jit(run)(*arrays), exact(arrays, **options), strict=True):
        wide = np.asarray(found, np.float64)
        assert np.linalg.norm(wide - expected) <= KERNELS["bfloat16"] * np.linalg.norm(expected)
