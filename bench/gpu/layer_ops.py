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

from pallas_kernels.quant_matmul import coded_matmul_parts, dequantize, plain_matmul_parts
from pallas_kernels.quant_matmul.cases import PRODUCT_CASES, WHOLE_ROW, ProductCase
from pallas_kernels.rms_norm import add_rms_norm
from pallas_kernels.rms_norm.cases import RESIDUAL_CASES
from pallas_kernels.rotate_write import HeadNorms, rotate_write
from pallas_kernels.rotate_write.cases import CASES as WRITE_CASES
from pallas_kernels.rotate_write.cases import Case as WriteCase

_EPS = 1e-6
_CHECKED_OUTPUTS = 128  # of a matrix, in float64 on the host
# What is multiplied, and the deviation of its random values.
_KINDS: dict[str, tuple[Any, float]] = {
    "bf16": (jnp.bfloat16, 1.0),
    "int8": (jnp.int8, 8.0),
    "fp8": (jnp.float8_e4m3fn, 20.0),
}


def residual_rows(setting: Setting) -> Iterator[Row]:
    """add_rms_norm, of an output that comes in parts."""
    cases = [case for case in RESIDUAL_CASES if case.is_small == setting.is_tiny]
    for case in with_time(setting, cases[:4]):
        random = np.random.default_rng(setting.seed)
        shape = (case.rows, case.columns)
        x = jnp.asarray(random.normal(size=shape) * case.deviation, case.dtype)
        parts = random.normal(size=(case.parts, *shape)) * case.deviation
        parts = jnp.asarray(parts, jnp.float32)
        weight = jnp.asarray(random.normal(size=case.columns), jnp.float32)
        addend = np.asarray(parts, np.float64).sum(axis=0)
        if case.norms_addend:
            addend = _normed(addend, weight)
        exact = _normed(np.asarray(x, np.float64) + addend, weight)
        moved = 3 * x.size * x.dtype.itemsize + 4 * parts.size
        arguments = (x, parts, weight, weight if case.norms_addend else None)
        for name in ("xla", setting.kernels[1]):
            call = functools.partial(add_rms_norm, eps=_EPS, implementation=name)
            yield measured_row(setting, "add_rms_norm", case.name, name, call, arguments, exact,
                               pick=lambda found: found[1], moved=moved)  # fmt: skip


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
    tier = "quick" if setting.is_tiny else "bench"
    cases = [case for case in PRODUCT_CASES if case.tier == tier]
    for case in with_time(setting, _one_of_each(cases) if setting.is_tiny else cases):
        call, arguments, exact = _product_call(case, setting.seed)
        kinds = "plain" if case.kind == "bf16" else f"{case.kind} by {case.kind}"
        has_xla = case.kind != "bf16" and case.group == WHOLE_ROW and not setting.is_tiny
        moved = case.outputs * case.columns * jnp.dtype(_KINDS[case.kind][0]).itemsize
        for name in ("xla" if has_xla else "reference", setting.kernels[1]):
            run = functools.partial(call, implementation=name)
            yield measured_row(setting, f"{kinds} product", case.name, name, run, arguments, exact,
                               pick=_few_outputs, moved=moved)  # fmt: skip


def _one_of_each(cases: list[ProductCase]) -> list[ProductCase]:
    """The last of each kind."""
    return list({case.kind: case for case in cases}.values())


def _product_call(case: ProductCase, seed: int) -> tuple[Any, tuple[jax.Array, ...], np.ndarray]:
    """The op with its options, random arrays, and some outputs in float64."""
    keys, (dtype, deviation) = jax.random.split(jax.random.key(seed), 4), _KINDS[case.kind]
    x, matrix = (
        (jax.random.normal(key, (size, case.columns), jnp.bfloat16) * deviation).astype(dtype)
        for key, size in zip(keys, (case.rows, case.outputs), strict=False)
    )
    wide, few = np.asarray(x.astype(jnp.float32), np.float64), matrix[:_CHECKED_OUTPUTS]
    if case.kind == "bf16":
        return plain_matmul_parts, (x, matrix), wide @ np.asarray(few, np.float64).T
    groups, blocks = -(-case.columns // case.group), -(-case.outputs // case.out_group)
    scales = jax.random.uniform(keys[2], (groups, blocks), jnp.float32, 0.01, 0.1)
    row_scales = jax.random.uniform(keys[3], (case.rows, groups), jnp.float32, 0.01, 0.1)
    options = {"group": min(case.group, case.columns), "out_group": case.out_group}
    used = scales[:, : -(-len(few) // case.out_group)].astype(case.scales)
    decoded = np.asarray(dequantize(few, used, columns=case.columns, **options), np.float64)
    wide *= np.repeat(np.asarray(row_scales), options["group"], axis=1)[:, : case.columns]
    arrays = (x, row_scales, matrix, scales.astype(case.scales))
    return functools.partial(coded_matmul_parts, **options), arrays, wide @ decoded.T


def _few_outputs(parts: jax.Array) -> jax.Array:
    return parts.sum(axis=0)[:, :_CHECKED_OUTPUTS]


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
