"""The ops between attention and quantized products of a decode layer, checked and timed.

The norm that adds, the kernel that rotates and writes new keys, and products of few rows: of
bfloat16 with bfloat16, and of codes with codes.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import Row, Setting, with_time
from ops import measured_row

from pallas_kernels.quant_matmul import coded_matmul_parts, plain_matmul_parts
from pallas_kernels.rms_norm import add_rms_norm
from pallas_kernels.rms_norm.cases import CASES as NORM_CASES
from pallas_kernels.rotate_write import HeadNorms, rotate_write
from pallas_kernels.rotate_write.cases import CASES as WRITE_CASES
from pallas_kernels.rotate_write.cases import Case as WriteCase

_EPS, _PARTS = 1e-6, 3
_CHECKED_OUTPUTS = 128  # of a matrix, in float64 on the host
# Rows, outputs and columns: q, k and v, then gate and up of an 8B Llama.
_TINY_PRODUCTS = ((2, 256, 256), (3, 128, 512))
_PRODUCTS = tuple((rows, outputs, 4096) for outputs in (6144, 28672) for rows in (1, 16, 64, 128))


def residual_rows(setting: Setting) -> Iterator[Row]:
    """add_rms_norm, of an output that comes in parts."""
    cases = [case for case in NORM_CASES if case.is_small == setting.is_tiny and case.deviation]
    for case in with_time(setting, cases[:3]):
        random = np.random.default_rng(setting.seed)
        shape = (case.rows, case.columns)
        x = jnp.asarray(random.normal(size=shape) * case.deviation, case.dtype)
        parts = jnp.asarray(random.normal(size=(_PARTS, *shape)) * case.deviation, jnp.float32)
        weight = jnp.asarray(random.normal(size=case.columns), jnp.float32)
        total = np.asarray(x, np.float64) + np.asarray(parts, np.float64).sum(axis=0)
        exact = _normed(total, weight)
        moved = 3 * x.size * x.dtype.itemsize + 4 * parts.size
        for name in ("xla", setting.kernels[1]):
            call = functools.partial(add_rms_norm, eps=_EPS, implementation=name)
            arguments, pick = (x, parts, weight), lambda found: found[1]
            yield measured_row(setting, "add_rms_norm", case.name, name, call, arguments, exact,
                               pick=pick, moved=moved)  # fmt: skip


def write_rows(setting: Setting) -> Iterator[Row]:
    """rotate_write: queries, and keys and values where they were written."""
    cases = [case for case in WRITE_CASES if case.is_small == setting.is_tiny]
    for case in with_time(setting, cases[1:3] if setting.is_tiny else cases):
        arrays, exact = _write_call(case, setting.seed)
        heads = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim * case.num_tokens
        for name in setting.kernels:
            options: dict[str, Any] = {"num_heads": case.num_heads, "eps": _EPS}
            call = functools.partial(rotate_write, implementation=name, **options)
            yield measured_row(setting, "rotate_write", case.name, name, call, arrays, exact,
                               pick=functools.partial(_written, arrays[5], arrays[6]),
                               moved=heads * (4 * case.parts + 2))  # fmt: skip


def product_rows(setting: Setting) -> Iterator[Row]:
    """Products of few rows: bfloat16, int8 by int8, FP8 by FP8."""
    shapes = _TINY_PRODUCTS if setting.is_tiny else _PRODUCTS
    for rows, outputs, columns in with_time(setting, shapes):
        keys = jax.random.split(jax.random.key(setting.seed), 2)
        x = jax.random.normal(keys[0], (rows, columns), jnp.bfloat16)
        matrix = jax.random.normal(keys[1], (outputs, columns), jnp.bfloat16)
        case = f"{rows} × {columns} by {outputs}"
        for name in setting.kernels:
            call = functools.partial(plain_matmul_parts, implementation=name)
            yield measured_row(setting, "plain product", case, name, call, (x, matrix),
                               _exact(x, matrix), pick=_few_outputs,
                               moved=2 * matrix.size)  # fmt: skip
        yield from _coded_rows(setting, case, x, matrix)


def _coded_rows(setting: Setting, case: str, x: jax.Array, matrix: jax.Array) -> Iterator[Row]:
    columns = x.shape[1]
    for kind, dtype, largest in (("int8", jnp.int8, 40.0), ("fp8", jnp.float8_e4m3fn, 100.0)):
        codes, rows = ((one * largest / 5).astype(dtype) for one in (matrix, x))
        scales = jnp.full((1, matrix.shape[0]), 0.02, jnp.float32)
        row_scales = jnp.full((x.shape[0], 1), 0.03, jnp.float32)
        exact = _exact(rows, codes) * 0.02 * 0.03
        arguments = (rows, row_scales, codes, scales)
        for name in ("xla", setting.kernels[1]):
            if name == "xla" and setting.is_tiny:
                name = "reference"  # XLA has no product of these codes on a CPU
            call = functools.partial(coded_matmul_parts, group=columns, implementation=name)
            yield measured_row(setting, f"{kind} by {kind} product", case, name, call, arguments,
                               exact, pick=_few_outputs, moved=matrix.size)  # fmt: skip


def _few_outputs(parts: jax.Array) -> jax.Array:
    return parts.sum(axis=0)[:, :_CHECKED_OUTPUTS]


def _exact(x: jax.Array, matrix: jax.Array) -> np.ndarray:
    few = matrix[:_CHECKED_OUTPUTS].astype(jnp.float32)
    return np.asarray(x.astype(jnp.float32), np.float64) @ np.asarray(few, np.float64).T


def _normed(x: np.ndarray, weight: Any) -> np.ndarray:
    mean = (x**2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + _EPS) * np.asarray(weight, np.float64)


def _written(pages: jax.Array, offsets: jax.Array, found: tuple[jax.Array, ...]) -> np.ndarray:
    """All that a call made, as one array: queries, then keys and values from their pages."""
    queries, *cache = (np.asarray(one, np.float64) for one in found)
    new = (held[np.asarray(pages), :, np.asarray(offsets)] for held in cache)
    return np.concatenate([one.reshape(len(queries), -1) for one in (queries, *new)], axis=1)


def _write_call(case: WriteCase, seed: int) -> tuple[tuple[Any, ...], np.ndarray]:
    """Arguments of a call, every token in a place of its own, and what it must make."""
    random, half = np.random.default_rng(seed), case.head_dim // 2
    num_pages = 2 + -(-case.num_tokens // case.page_tokens)
    shape = (num_pages, case.num_kv_heads, case.page_tokens, case.head_dim)
    count = case.num_heads + 2 * case.num_kv_heads
    parts = random.normal(size=(case.parts, case.num_tokens, count * case.head_dim))
    angles = random.uniform(0, 6, (case.num_tokens, half))
    places = random.permutation((num_pages - 1) * case.page_tokens)[: case.num_tokens]
    scales = [np.float32(random.normal(size=case.head_dim)) for _ in range(2)]
    norms = HeadNorms(*map(jnp.asarray, scales)) if case.has_norms else None
    arrays = [jnp.asarray(one, jnp.float32) for one in (parts, np.cos(angles), np.sin(angles))]
    held = [jnp.zeros(shape, jnp.bfloat16) for _ in range(2)]
    page, offset = 1 + places // case.page_tokens, places % case.page_tokens
    where = [jnp.asarray(one, jnp.int32) for one in (page, offset)]
    heads = parts.sum(axis=0).reshape(case.num_tokens, count, case.head_dim)
    q, k, v = np.split(heads, (case.num_heads, case.num_heads + case.num_kv_heads), axis=1)
    if case.has_norms:
        q, k = _normed(q, scales[0]), _normed(k, scales[1])
    made = (_turned(q, angles), _turned(k, angles), v)
    exact = np.concatenate([one.reshape(case.num_tokens, -1) for one in made], axis=1)
    return (arrays[0], *held, *arrays[1:], *where, norms), exact


def _turned(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None, :]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)
