"""`rotate_write` on Mosaic GPU: simulated against float64, and compiled for GPUs not here."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.rotate_write import mosaic, resolve_implementation, rotate_write
from pallas_kernels.rotate_write.cases import CASES, Case
from tests.pallas_kernels.rotate_write.calls import exact, make_call
from tests.support.aot import compile_kernels, needs_aot, on_target, table
from tests.support.tolerances import KERNELS

SMALL = [case for case in CASES if case.is_small]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_simulated_equals_float64(case: Case) -> None:
    arrays, options = make_call(case)
    expected = exact(arrays, **options)
    run = functools.partial(rotate_write, **options, implementation="simulated")
    for found, wanted in zip(jax.jit(run)(*arrays), expected, strict=True):
        wide = np.asarray(found, np.float64)
        assert np.linalg.norm(wide - wanted) <= KERNELS["bfloat16"] * np.linalg.norm(wanted)


def test_other_places_of_the_pages_keep_their_bits() -> None:
    arrays, options = make_call(SMALL[1])
    found = jax.jit(functools.partial(mosaic.rotate_write, interpret=True, **options))(*arrays)
    for before, after in zip(arrays[1:3], found[1:], strict=True):
        mask = np.zeros(before.shape, bool)
        mask[np.asarray(arrays[5]), :, np.asarray(arrays[6])] = True
        kept = [np.asarray(one, np.float32)[~mask] for one in (before, after)]
        np.testing.assert_array_equal(*kept)


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    given = {"heads": 32, "kv_heads": 8, "size": 128, "pairs": 64, "dtype": "bfloat16"} | changes
    pages = (9, given["kv_heads"], 128, given["size"])
    shapes = {"cos": (1, given["pairs"]), "k_pages": pages, "v_pages": pages}
    return shapes, dict.fromkeys(("k_pages", "v_pages"), given["dtype"]), given["heads"]


@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, HOPPER, None),
        ({"size": 256, "pairs": 128, "heads": 16}, HOPPER, None),
        ({"dtype": "int8"}, HOPPER, "k_pages are int8; it takes bfloat16"),
        ({"size": 96, "pairs": 48}, HOPPER, "heads have 96 values"),
        ({"pairs": 32}, HOPPER, "32 pairs of 128 values are turned; it turns all"),
        ({"heads": 28, "kv_heads": 4}, HOPPER, None),
        ({"heads": 7, "kv_heads": 1}, HOPPER, "7 and twice 1 heads"),
        ({"heads": 64}, HOPPER, None),
        ({"heads": 66, "kv_heads": 2}, HOPPER, "66 and twice 2 heads"),
        ({}, Platform(kind="cpu"), "this is a cpu"),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    shapes, dtypes, num_heads = call(**changes)
    found = mosaic.why_not(shapes, dtypes, platform, num_heads=num_heads)
    assert found is None if reason is None else reason in str(found)
    for wanted in ("auto", "mosaic"):  # nobody is refused: the reference is two steps for XLA
        chosen = resolve_implementation(
            wanted, shapes, dtypes, num_heads=num_heads, platform=platform
        )
        assert chosen == ("reference" if reason else "mosaic")


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    arrays, options = make_call(Case(name="odd", num_tokens=1, num_kv_heads=1))
    with pytest.raises(ValueError, match="cannot use 'mosaic'.*8 and twice 1 heads"):
        mosaic.rotate_write(*arrays, **options)


@needs_aot
@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("h200", "8b decode"),
        pytest.param("h200", "", marks=pytest.mark.slow),
        pytest.param("h100", "", marks=pytest.mark.slow),
    ],
)
def test_compiles_without_spills_and_in_place(
    target: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {}
    for case in [case for case in CASES if wanted in case.name]:
        arrays, options = make_call(case)
        shapes = jax.eval_shape(lambda *given: given, *arrays)
        run = jax.jit(functools.partial(mosaic.rotate_write, **options), donate_argnums=(1, 2))
        lowered = run.lower(*on_target(target, shapes))
        executable, reports = compile_kernels(lowered)
        pages = 2 * np.prod(arrays[1].shape) * jnp.dtype("bfloat16").itemsize
        assert executable.memory_analysis().alias_size_in_bytes == pages
        assert " copy(" not in executable.as_text()
        rows[f"{target} rotate_write: {case.name}"] = reports[0]
    with capsys.disabled():
        print(f"\n{table(rows)}")
    assert not {label: one for label, one in rows.items() if one.spill_bytes}
