"""Random calls of `rotate_write`, and what they must give, in float64 from the definition."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.rotate_write import HeadNorms
from pallas_kernels.rotate_write.cases import Case

EPS = 1e-6


def make_call(case: Case, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """The op's arguments; pages hold random values, and every token has a place of its own."""
    random, half = np.random.default_rng(seed), case.head_dim // 2
    count = case.num_heads + 2 * case.num_kv_heads
    parts = random.normal(size=(case.parts, case.num_tokens, count * case.head_dim))
    num_pages = 1 + -(-case.num_tokens // case.page_tokens) + 1
    shape = (num_pages, case.num_kv_heads, case.page_tokens, case.head_dim)
    pages = [random.normal(size=shape).astype(ml_dtypes.bfloat16) for _ in range(2)]
    angles = random.uniform(0, 6, (case.num_tokens, half))
    places = random.permutation((num_pages - 1) * case.page_tokens)[: case.num_tokens]
    where = (1 + places // case.page_tokens, places % case.page_tokens)
    norms = None
    if case.has_norms:
        scales = (random.normal(size=case.head_dim).astype(np.float32) for _ in range(2))
        norms = HeadNorms(*map(jnp.asarray, scales))
    arrays = [parts, *pages, np.cos(angles), np.sin(angles)]
    arrays = [jnp.asarray(one if one.dtype != np.float64 else one.astype("f4")) for one in arrays]
    arrays += [jnp.asarray(one, jnp.int32) for one in where]
    return [*arrays, norms], {"num_heads": case.num_heads, "eps": EPS}


def poisoned(arrays: list[Any], real: list[int], seed: int = 0) -> list[Any]:
    """The call with NaN of random bits in all pages, and with NaN in the place of every token that
    is not real; those go to the first place of the null page."""
    parts, k_pages, v_pages, cos, sin, pages, offsets, norms = arrays
    random = np.random.default_rng(seed)
    is_real = np.isin(np.arange(parts.shape[1]), real)

    def of_nan(one: Any) -> Any:
        bits = random.integers(0x7F81, 0x8000, one.shape) | random.integers(0, 2, one.shape) << 15
        return jnp.asarray(bits.astype(np.uint16).view(ml_dtypes.bfloat16))

    return [
        jnp.where(is_real[None, :, None], parts, jnp.nan),
        of_nan(k_pages),
        of_nan(v_pages),
        *(jnp.where(is_real[:, None], one, jnp.nan) for one in (cos, sin)),
        *(jnp.where(is_real, one, 0) for one in (pages, offsets)),
        norms,
    ]


def exact(arrays: list[Any], num_heads: int, eps: float) -> list[np.ndarray]:
    parts, *pages, cos, sin, page, offset = (np.asarray(one, np.float64) for one in arrays[:-1])
    num_kv_heads, head_dim = pages[0].shape[1], pages[0].shape[3]
    heads = parts.sum(axis=0).reshape(parts.shape[1], -1, head_dim)
    q, k, v = np.split(heads, (num_heads, num_heads + num_kv_heads), axis=1)
    if (norms := arrays[-1]) is not None:
        q, k = normed(q, norms.q_scale, eps), normed(k, norms.k_scale, eps)
    for new, kept in ((turned(k, cos, sin), pages[0]), (v, pages[1])):
        kept[page.astype(int), :, offset.astype(int)] = new
    return [turned(q, cos, sin), *pages]


def normed(x: np.ndarray, scale: Any, eps: float) -> np.ndarray:
    mean = (x**2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + eps) * np.asarray(scale, np.float64)


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    factors = (cos + 1j * sin)[:, None, :]
    complex_pairs = (x[..., :half] + 1j * x[..., half:]) * factors
    return np.concatenate([complex_pairs.real, complex_pairs.imag], axis=-1)
