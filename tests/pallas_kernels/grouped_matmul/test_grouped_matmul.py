"""`grouped_matmul`: reference and simulation against float64, and compiled for GPUs not here."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import Platform
from pallas_kernels.grouped_matmul import grouped_matmul, mosaic, resolve_implementation
from pallas_kernels.grouped_matmul.cases import CASES, Case
from pallas_kernels.grouped_matmul.mosaic import BLOCK_INPUTS, BLOCK_OUTPUTS, STAGES
from tests.support.aot import (
    HOPPERS,
    KernelPlan,
    check_kernels,
    compile_kernels,
    needs_aot,
    on_target,
)
from tests.support.tolerances import KERNELS

SMALL = [case for case in CASES if case.is_small]
HOPPER = Platform(kind="gpu", compute_capability=(9, 0))


def counts_of(case: Case) -> np.ndarray:
    return np.resize(np.array(case.counts, np.int32), case.groups)


def check(case: Case, implementation: str, seed: int = 0) -> None:
    """Rows that are not wanted hold NaN, and so do matrices of groups without any."""
    random, counts = np.random.default_rng(seed), counts_of(case)
    x = jnp.asarray(random.normal(size=(case.groups, case.rows, case.inputs)), jnp.bfloat16)
    shape = (case.groups, case.outputs, case.inputs)
    matrices = jnp.asarray(random.normal(size=shape), jnp.bfloat16)
    wanted = np.arange(case.rows)[None, :] < counts[:, None]
    exact = np.einsum("xci,xoi->xco", np.asarray(x, np.float64), np.asarray(matrices, np.float64))
    x = jnp.where(wanted[:, :, None], x, jnp.nan)
    matrices = jnp.where((counts > 0)[:, None, None], matrices, jnp.nan)
    found = grouped_matmul(x, matrices, jnp.asarray(counts), implementation=implementation)  # type: ignore[arg-type]
    assert found.dtype == jnp.float32 and found.shape == exact.shape
    difference = np.linalg.norm((np.asarray(found, np.float64) - exact)[wanted])
    assert difference <= KERNELS["float32"] * np.linalg.norm(exact[wanted])


@pytest.mark.parametrize("implementation", ["reference", "simulated"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_equals_float64(case: Case, implementation: str) -> None:
    check(case, implementation)


def check_any(counts: list[int], sizes: tuple[int, int, int], seed: int) -> None:
    tiles, steps, outputs = sizes
    given = {"groups": len(counts), "rows": 64 * tiles, "inputs": 64 * steps, "outputs": outputs}
    check(Case(name="any", counts=tuple(counts), **given), "simulated", seed)


COUNTS, OUTPUTS = st.integers(0, 64), st.sampled_from([64, 96, 128, 192, 320])


@settings(max_examples=2, derandomize=True, deadline=None, database=None)
@given(
    st.lists(COUNTS, min_size=1, max_size=3),
    st.tuples(st.just(1), st.integers(1, 9), OUTPUTS),
    st.integers(0, 99),
)
def test_any_shape(counts: list[int], sizes: tuple[int, int, int], seed: int) -> None:
    check_any(counts, sizes, seed)


@pytest.mark.slow
@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 128), min_size=1, max_size=5),
    st.tuples(st.just(2), st.integers(1, 20), OUTPUTS),
    st.integers(0, 99),
)
def test_any_larger_shape(counts: list[int], sizes: tuple[int, int, int], seed: int) -> None:
    check_any(counts, sizes, seed)


def choose(rows: int = 64, outputs: int = 768, inputs: int = 2048, dtype: str = "bfloat16") -> str:
    shapes = {"x": (128, rows, inputs), "matrices": (128, outputs, inputs)}
    return resolve_implementation("auto", shapes, {"x": dtype, "matrices": dtype}, HOPPER)


def test_what_the_kernel_takes() -> None:
    assert choose() == "mosaic"
    assert choose(rows=65) == choose(outputs=80) == choose(inputs=96) == "reference"
    assert choose(dtype="float32") == "reference"
    cpu = Platform(kind="cpu")
    shapes = {"x": (1, 64, 64), "matrices": (1, 128, 64)}
    dtypes = {"x": "bfloat16", "matrices": "bfloat16"}
    assert resolve_implementation("auto", shapes, dtypes, cpu) == "reference"
    with pytest.raises(ValueError, match="groups have 8 rows"):
        mosaic.grouped_matmul(
            jnp.zeros((1, 8, 64), jnp.bfloat16),
            jnp.zeros((1, 128, 64), jnp.bfloat16),
            jnp.zeros(1, jnp.int32),
        )


def compile_case(case: Case) -> KernelPlan:
    shapes = (
        jax.ShapeDtypeStruct((case.groups, case.rows, case.inputs), jnp.bfloat16),
        jax.ShapeDtypeStruct((case.groups, case.outputs, case.inputs), jnp.bfloat16),
        jax.ShapeDtypeStruct((case.groups,), jnp.int32),
    )
    lowered = jax.jit(mosaic.grouped_matmul).lower(*on_target(HOPPERS[0], shapes))
    compiled, reports = compile_kernels(lowered)
    assert compiled.memory_analysis().temp_size_in_bytes < 2**20
    assert len(reports) == 1
    return reports[0]


@needs_aot
def test_compiles_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in CASES if not case.is_small]
    check_kernels({case.name: compile_case(case) for case in cases}, capsys)


@needs_aot
@pytest.mark.slow
def test_every_choice_compiles_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    """What a call may get: a block of outputs that divides them, and no more stages than steps."""
    rows, steps = {}, (*range(1, STAGES + 1), STAGES + 1, 44)
    for block, count in itertools.product(BLOCK_OUTPUTS, steps):
        inputs, outputs = count * BLOCK_INPUTS, block * 11  # which a larger block does not divide
        name = f"{block} outputs, {min(count, STAGES)} stages, {inputs} inputs"
        case = Case(name=name, groups=8, rows=64, inputs=inputs, outputs=outputs, counts=())
        rows[name] = compile_case(case)
    check_kernels(rows, capsys)
