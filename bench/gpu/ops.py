"""Ops checked against float64 on fresh data and timed, XLA beside Pallas.

Those with cases of their own; `layer_ops` has the others, but for `grouped_matmul`.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import Machine, Row, Setting, relative_error, time_on_device, with_time

from pallas_kernels.paged_attention import (
    HeadScaledPages,
    Pages,
    TokenScaledPages,
    paged_attention,
)
from pallas_kernels.paged_attention.cases import CASES as ATTENTION_CASES
from pallas_kernels.paged_attention.pages import as_floats, round_by_head, round_by_token
from pallas_kernels.quant_matmul import dequantize, quant_matmul
from pallas_kernels.quant_matmul.cases import CASES as QUANT_CASES
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.rms_norm.cases import CASES as NORM_CASES
from pallas_kernels.row_matmul import row_matmul

_CHECKED_ROWS = 2  # of attention, in float64 on the host
_CHECKED_OUTPUTS = 128  # of a matrix, likewise
_ADDENDS = ("zeros", "offsets")


def measure_machine(is_tiny: bool) -> tuple[Machine, list[Row]]:
    """What a plain copy and a plain matmul reach here."""
    size = (1 << 20) if is_tiny else (1 << 30)
    block = jnp.ones((size // 2,), jnp.bfloat16)
    copy_ms = time_on_device(lambda x: x + jnp.bfloat16(1), (block,), 2 if is_tiny else 10)
    bandwidth = 2 * size / copy_ms * 1e3
    side = 256 if is_tiny else 8192
    matrix = jnp.ones((side, side), jnp.bfloat16)
    matmul_ms = time_on_device(row_matmul, (matrix, matrix), 2 if is_tiny else 10)
    flops = 2 * side**3 / matmul_ms * 1e3
    rows = [
        Row(section="machine", case=f"copy {size:,} bytes", implementation="xla", ms=copy_ms,
            rate=bandwidth / 1e9, unit="GB/s"),
        Row(section="machine", case=f"bf16 matmul {side}", implementation="xla", ms=matmul_ms,
            rate=flops / 1e12, unit="TFLOP/s"),
    ]  # fmt: skip
    return Machine(copy_bytes_per_s=bandwidth, matmul_flops_per_s=flops), rows


def norm_rows(setting: Setting) -> Iterator[Row]:
    """rms_norm: the form for XLA and the kernel."""
    cases = [case for case in NORM_CASES if case.is_small == setting.is_tiny]
    names = ("xla", setting.kernels[1])
    for case in with_time(setting, cases[:3]):
        random = np.random.default_rng(setting.seed)
        values = random.normal(size=(case.rows, case.columns)) * (case.deviation or 1)
        x = jnp.asarray(values, case.dtype)
        weight = jnp.asarray(random.normal(size=case.columns), jnp.float32)
        wide = np.asarray(x, np.float64)
        exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(weight)
        for name in names:
            call = functools.partial(rms_norm, eps=1e-6, implementation=name)
            moved = 2 * x.size * x.dtype.itemsize
            yield measured_row(
                setting, "rms_norm", case.name, name, call, (x, weight), exact, moved=moved
            )


def attention_rows(setting: Setting, step: str) -> Iterator[Row]:
    """Decode (share of the copy bandwidth) or prefill attention (TFLOP/s, causal half counted)."""
    tier = "quick" if setting.is_tiny else "bench"
    cases = [case for case in ATTENTION_CASES if case.tier == tier and case.name.startswith(
        step if setting.is_tiny else f"8b {step}")]  # fmt: skip
    for case in with_time(setting, cases[:2] if setting.is_tiny else cases):
        arrays = _pages_and_rows(case, setting.seed)
        options = {"scale": case.head_dim**-0.5, "window": case.window, "softcap": case.softcap}
        checked = range(len(case.starts))[-_CHECKED_ROWS:]
        exact = np.stack([_exact_attention(case, arrays, row) for row in checked])
        tokens = [start + length for start, length in zip(case.starts, case.lengths, strict=True)]
        live = sum(tokens) if step == "decode" else max(tokens)
        sizes = {"floats": 2 * case.head_dim, "int8": case.head_dim + 2, "fp8": case.head_dim}
        moved = live * case.num_kv_heads * (sizes[case.keys] + sizes[case.values])
        flops = (
            4
            * case.num_heads
            * case.head_dim
            * sum(
                length * (start + (length + 1) / 2)
                for start, length in zip(case.starts, case.lengths, strict=True)
            )
        )
        for name in setting.kernels:
            call = functools.partial(paged_attention, implementation=name, **options)
            work = {"moved": moved} if step == "decode" else {"flops": flops}
            yield measured_row(setting, f"{step} attention", case.name, name, call, arrays, exact,
                       pick=lambda found, case=case, rows=checked: _real(case, found, rows),
                       **work)  # fmt: skip


def quant_rows(setting: Setting) -> Iterator[Row]:
    """W4A16 and W8A16 against the bf16 matmul: the rate is the speed over it."""
    tier = "quick" if setting.is_tiny else "bench"
    cases = [case for case in QUANT_CASES if case.tier == tier]
    plain: dict[tuple[int, int, int], float] = {}
    if setting.is_tiny:
        cases = cases[:2] + [next(one for one in cases if one.addend == kind) for kind in _ADDENDS]
    for case in with_time(setting, cases):
        x, arrays = _packed(case, setting.seed)
        decode = functools.partial(dequantize, columns=case.columns, group=case.group)
        matrix = jax.jit(decode)(*arrays)
        few = slice(0, _CHECKED_OUTPUTS)
        exact = np.asarray(x, np.float64) @ np.asarray(matrix[few], np.float64).T
        shape = (case.rows, case.outputs, case.columns)
        if shape not in plain:
            dense = matrix.astype(jnp.bfloat16)
            plain[shape] = time_on_device(row_matmul, (x, dense), setting.repeats())
        bits = 4 if case.codes == "int4" else 8
        moved = case.outputs * (case.columns * bits // 8 + 2 * math.ceil(case.columns / case.group))
        for name in setting.kernels:
            call = functools.partial(quant_matmul, group=case.group, implementation=name)
            row = measured_row(setting, "quant matmul", case.name, name, call, (x, *arrays), exact,
                       pick=lambda found: found[..., :_CHECKED_OUTPUTS], moved=moved)  # fmt: skip
            yield _speedup(row, plain[shape])


def _speedup(row: Row, plain_ms: float) -> Row:
    if row.ms is None:
        return row
    return replace(row, note=f"{plain_ms / row.ms:.2f}x of bf16 ({plain_ms:.3f} ms)")


def measured_row(
    setting: Setting,
    section: str,
    case: str,
    name: str,
    call: Any,
    arguments: tuple[Any, ...],
    exact: np.ndarray,
    *,
    pick: Callable[[Any], Any] = lambda found: found,
    moved: float = 0,
    flops: float = 0,
) -> Row:
    """Checks (what `pick` takes of the result) and times one call; one that raises says so."""
    try:
        error = relative_error(pick(jax.jit(call)(*arguments)), exact)
        ms = time_on_device(call, arguments, setting.repeats())
    except Exception as failure:  # the others are still worth measuring
        note = f"{type(failure).__name__}: {str(failure).splitlines()[0][:120]}"
        return Row(section=section, case=case, implementation=name, error=float("inf"), note=note)
    rate, unit, share = 0.0, "GB/s", 0.0
    if moved:
        rate, share = moved / ms / 1e6, moved / ms * 1e3 / setting.machine.copy_bytes_per_s
    if flops:
        rate, unit = flops / ms / 1e9, "TFLOP/s"
        share = flops / ms * 1e3 / setting.machine.matmul_flops_per_s
    return Row(section=section, case=case, implementation=name, error=error, ms=ms, rate=rate,
               unit=unit, share=share)  # fmt: skip


def _real(case: Any, found: jax.Array, rows: Sequence[int]) -> np.ndarray:
    """The checked rows, zeros where their queries end."""
    values = np.array(found[jnp.asarray(list(rows))], np.float64)
    for place, row in enumerate(rows):
        values[place, case.lengths[row] :] = 0
    return values


@functools.partial(jax.jit, static_argnums=1)
def _as_kind(pages: jax.Array, kind: str) -> Pages:
    """Pages of floats as what a case's pages hold."""
    if kind == "int8":
        return TokenScaledPages(*round_by_token(pages))
    if kind == "fp8":
        scales = jnp.full((pages.shape[1],), 0.02, jnp.float32)
        codes = round_by_head(pages.swapaxes(1, 2), scales).swapaxes(1, 2)
        return HeadScaledPages(codes, scales)
    return pages


def _floats_of(pages: Pages, picked: jax.Array) -> np.ndarray:
    """What some of the pages hold, float64."""
    if isinstance(pages, TokenScaledPages):
        codes, scales = (np.asarray(as_floats(part[picked]), np.float64) for part in pages)
        return codes * scales[..., None]
    if isinstance(pages, HeadScaledPages):
        codes = np.asarray(as_floats(pages.codes[picked]), np.float64)
        return codes * np.asarray(pages.scales, np.float64)[:, None, None]
    return np.asarray(pages[picked], np.float64)


def _pages_and_rows(case: Any, seed: int) -> tuple[Any, ...]:
    """Random q and pages, scattered; in a prefill all rows are chunks of one request."""
    keys = jax.random.split(jax.random.key(seed), 3)
    tokens = [start + length for start, length in zip(case.starts, case.lengths, strict=True)]
    columns = max(case.table_columns, -(-max(tokens) // case.page_tokens))
    num_rows, is_shared = len(case.starts), len(case.starts) > 1 and case.num_queries > 64
    num_pages = 1 + columns * (1 if is_shared else num_rows)
    pages = (num_pages, case.num_kv_heads, case.page_tokens, case.head_dim)
    order = np.random.default_rng(seed).permutation(np.arange(1, num_pages)).astype(np.int32)
    table = np.broadcast_to(order.reshape(-1, columns), (num_rows, columns))
    q = jax.random.normal(keys[0], (num_rows, case.num_queries, case.num_heads, case.head_dim))
    k, v = (
        _as_kind(jax.random.normal(key, pages, jnp.bfloat16), kind)
        for key, kind in zip(keys[1:], (case.keys, case.values), strict=True)
    )
    starts, lengths = (jnp.asarray(some, jnp.int32) for some in (case.starts, case.lengths))
    return q.astype(jnp.bfloat16), k, v, jnp.asarray(table), starts, lengths


def _exact_attention(case: Any, arrays: tuple[Any, ...], row: int) -> np.ndarray:
    """One row in float64; zeros where its queries end."""
    q, k_pages, v_pages, table, starts, lengths = arrays
    start, length = int(starts[row]), int(lengths[row])
    held = -(-(start + length) // case.page_tokens)
    picked = table[row, :held]
    keys, values = (
        _floats_of(pages, picked).swapaxes(0, 1).reshape(
            case.num_kv_heads, -1, case.head_dim)[:, : start + length]
        for pages in (k_pages, v_pages)
    )  # fmt: skip
    out = np.zeros(q.shape[1:], np.float64)
    group = case.num_heads // case.num_kv_heads
    distance = start + np.arange(length)[:, None] - np.arange(start + length)[None, :]
    visible = (distance >= 0) & ((distance < case.window) if case.window else True)
    for head in range(case.num_heads):
        scores = np.asarray(q[row, :length, head], np.float64) @ keys[head // group].T
        scores *= case.head_dim**-0.5
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
        out[:length, head] = weights @ values[head // group]
    return out


def _packed(case: Any, seed: int) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    keys = jax.random.split(jax.random.key(seed), 4)
    x = jax.random.normal(keys[0], (case.rows, case.columns), jnp.bfloat16)
    groups = -(-case.columns // case.group)
    scales = jax.random.uniform(keys[1], (groups, case.outputs), jnp.float32, 0.01, 0.1)
    if case.codes == "int4":
        codes = jax.random.bits(keys[2], (case.outputs, case.columns // 2), jnp.uint8)
    else:
        codes = jax.random.randint(keys[2], (case.outputs, case.columns), -127, 128, jnp.int8)
    zeros = offsets = None
    if case.addend == "zeros":
        zeros = jax.random.randint(keys[3], (groups, case.outputs), -8, 8, jnp.int8)
    if case.addend == "offsets":
        offsets = jax.random.normal(keys[3], (groups, case.outputs), jnp.float32)
    return x, (codes, scales.astype(jnp.bfloat16), zeros, offsets)
