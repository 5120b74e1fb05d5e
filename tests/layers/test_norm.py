"""The norm as models call it is the op of `pallas_kernels`, under a name for profiles."""

import jax
import numpy as np

from jaxinfer.layers.norm import rms_norm
from pallas_kernels.rms_norm import rms_norm as rms_norm_op


def test_is_the_op_under_a_named_scope() -> None:
    x = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    weight = np.full(24, 1.5, np.float32)
    named = jax.jit(lambda x, w: rms_norm(x, w, 1e-5))
    plain = jax.jit(lambda x, w: rms_norm_op(x, w, eps=1e-5))
    np.testing.assert_array_equal(np.asarray(named(x, weight)), np.asarray(plain(x, weight)))
    assert "rms_norm" in str(named.lower(x, weight).compile().as_text())
