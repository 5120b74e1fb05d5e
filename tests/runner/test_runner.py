"""The runner with a tiny random model: aliasing, bits, poison that does not spread, memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config.geometry import cache_bytes
from jaxinfer.config.step_plan import PrefillPlan
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.spec import Leaf
from jaxinfer.runner.compile import CompileLog, counted_compiles
from jaxinfer.runner.runner import Programs, Runner, compile_programs
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.support.records import geometry, model_config, request

CONFIG = model_config(windows=(0, 5))
GEOMETRY = geometry(
    windows=(0, 5), num_slots=3, prefill_rows=(1,), chunk_tokens=16, decode_widths=(3,)
)


def random_params(*, poisoned_token: int | None = None) -> Any:
    """Parameters in the structure of the leaves; one token's embedding may be NaN."""
    random = np.random.default_rng(0)

    def make(leaf: Leaf) -> jax.Array:
        values = 0.2 * random.normal(size=leaf.shape) + (leaf.role == "norm")
        return jnp.asarray(values, jnp.float32)

    params = jax.tree.map(make, architecture_named("llama").leaves(CONFIG))
    if poisoned_token is not None:
        params["embedding"] = params["embedding"].at[poisoned_token].set(jnp.nan)
    return params


@pytest.fixture(scope="module")
def programs() -> Programs:
    return compile_programs(random_params(), CONFIG, GEOMETRY)


def requests() -> list[Request]:
    """Greedy and sampled ones, over several chunks, more than there are slots; none has token 0."""
    prompts = [range(1, 30), range(50, 53), range(60, 77), range(90, 100)]
    return [
        request(
            list(prompt), order=i, max_new_tokens=7, seed=i, temperature=0.8 * (i % 2), logprobs=2
        )
        for i, prompt in enumerate(prompts)
    ]


def serve(runner: Runner, todo: list[Request]) -> list[Request]:
    scheduler = Scheduler(GEOMETRY)
    for one in todo:
        scheduler.add(one)
    while (plan := scheduler.schedule()) is not None:
        if isinstance(plan, PrefillPlan):
            drew = scheduler.update_prefill(runner.prefill(plan)[0])
        else:
            drew = scheduler.update_decode(plan, runner.decode(plan)[0])
        for one in drew:
            if one.is_finished:
                scheduler.finish(one)
    return todo


def results(served: list[Request]) -> list[tuple[Any, ...]]:
    return [(one.finish_reason, one.output_ids, one.logprobs) for one in served]


def test_steps_alias_exactly_the_cache_and_the_loop_state(programs: Programs) -> None:
    donated = cache_bytes(CONFIG, GEOMETRY) + 4 * GEOMETRY.num_slots
    for name, program in programs.named().items():
        aliased = program.memory_analysis().alias_size_in_bytes
        assert aliased == (donated if name.startswith(("prefill", "decode")) else 0), name


def test_nothing_is_compiled_while_serving(programs: Programs) -> None:
    runner, log = Runner(random_params(), programs, GEOMETRY), CompileLog()
    with counted_compiles(log):
        served = serve(runner, requests())
        runner.logits(np.zeros((5, CONFIG.hidden_size), np.float32))
    assert log.num_compiles == 0
    assert [one.finish_reason for one in served] == ["length"] * 4


def test_together_and_alone_are_the_same_bits(programs: Programs) -> None:
    """Promise 2, with slots that others used before: nothing of them is left over."""
    runner = Runner(random_params(), programs, GEOMETRY)
    together = results(serve(runner, requests()))
    for index, one in enumerate(requests()):
        assert results(serve(runner, [one])) == [together[index]]


@pytest.mark.parametrize("poisoned", [0, 51])
def test_poison_ends_its_own_request_and_touches_no_other(
    programs: Programs, poisoned: int
) -> None:
    """Promise 11, BB-41 (slime#2256). Token 0 is what padding holds, 51 is in the second prompt.

    Padding writes NaN to the null page then, which rows with a window read where their old pages
    were, and a later request takes over pages that hold NaN.
    """
    clean = serve(Runner(random_params(), programs, GEOMETRY), requests())
    runner = Runner(random_params(poisoned_token=poisoned), programs, GEOMETRY)
    for _ in range(2):
        for one, other in zip(serve(runner, requests()), clean, strict=True):
            is_touched = poisoned in one.prompt_ids + other.output_ids[:-1]
            assert (one.finish_reason == "error") == is_touched
            assert is_touched or results([one]) == results([other])


def test_logits_of_any_number_of_rows(programs: Programs) -> None:
    runner = Runner(random_params(), programs, GEOMETRY)
    hidden = np.random.default_rng(1).normal(size=(11, 64)).astype(np.float32)
    found = runner.logits(hidden)
    exact = hidden.astype(np.float64) @ np.asarray(runner.params["head"].value, np.float64).T
    assert found.shape == (11, 320) and found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=1e-4)
    np.testing.assert_array_equal(runner.logits(hidden[5:6]), found[5:6])


def test_forced_tokens_take_the_place_of_drawn_ones(programs: Programs) -> None:
    runner = Runner(random_params(), programs, GEOMETRY)
    runner.set_last_tokens(np.array([3, 1, 2]))
    assert np.asarray(runner.state.last_tokens).tolist() == [3, 1, 2]


def test_close_gives_all_memory_back(programs: Programs) -> None:
    runner = Runner(random_params(), programs, GEOMETRY)
    leaves = jax.tree.leaves((runner.params, runner.cache, runner.state))
    runner.close()
    assert all(leaf.is_deleted() for leaf in leaves)
    runner.close()
