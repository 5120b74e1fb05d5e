"""What is said of one call where it runs; what is compiled for a GPU, the tests of kernels say."""

import math

import jax.numpy as jnp

from jaxinfer.jobs.kernel_report import time_call


def test_a_call_takes_a_time() -> None:
    taken = time_call(jnp.matmul, jnp.ones((8, 8)), jnp.ones((8, 8)), repeats=3)
    assert taken > 0 and math.isfinite(taken)
