"""The runner with a tiny random model: bits, chores, poison that does not spread, memory."""

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.step_plan import CopyPlan, SwapPlan
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.spec import Leaf
from jaxinfer.runner.compile import CompileLog, counted_compiles
from jaxinfer.runner.programs import Programs, compile_programs
from jaxinfer.runner.runner import Runner
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.support.records import geometry, model_config, request

CONFIG = model_config(windows=(0, 5))
GEOMETRY = geometry(
    windows=(0, 5),
    num_slots=3,
    prefill_rows=(1,),
    chunk_tokens=16,
    decode_widths=(3,),
    num_pages=(13, 13),
    swap_pages=2,
)
RESERVE = EngineConfig(enable_prefix_caching=False)
LIMITS: dict[str, Any] = {
    "repetition_penalty": 1.4,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {7: 1.0},
}


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


@pytest.fixture
def runner(programs: Programs) -> Runner:
    return Runner(random_params(), programs, GEOMETRY)


def requests(max_new_tokens: int = 14) -> list[Request]:
    """Greedy and sampled ones, over several chunks, more than there are slots; none has token 0."""
    prompts = [range(1, 30), range(50, 53), range(60, 77), range(90, 100)]
    return [
        request(
            list(prompt),
            order=i,
            max_new_tokens=max_new_tokens,
            seed=i,
            temperature=0.8 * (i % 2),
            logprobs=2,
            **(LIMITS if i > 1 else {}),
        )
        for i, prompt in enumerate(prompts)
    ]


def serve(
    runner: Runner, todo: list[Request], ask: EngineConfig = RESERVE, *, ahead: int = 1
) -> list[Request]:
    """Runs requests to their end, up to `ahead` steps under way."""
    scheduler = Scheduler(GEOMETRY, ask, CONFIG.vocab_size)
    for one in todo:
        scheduler.add(one)
    flights: deque[tuple] = deque()
    while scheduler.has_work:
        while len(flights) < ahead and (step := scheduler.schedule()) is not None:
            for chore in step.chores:
                runner.do(chore)
            flights.append((step, runner.launch(step.plan)))
        step, launched = flights.popleft()
        for one in scheduler.update(step, runner.read(launched)):
            if one.is_finished:
                scheduler.finish(one)
                runner.forget(one.order)
    return todo


def results(served: list[Request]) -> list[tuple[Any, ...]]:
    return [(one.finish_reason, one.output_ids, one.logprobs) for one in served]


def test_nothing_is_compiled_while_serving(runner: Runner) -> None:
    log = CompileLog()
    with counted_compiles(log):
        served = serve(runner, requests())
        runner.logits(np.zeros((5, CONFIG.hidden_size), np.float32))
        runner.score(np.zeros((5, CONFIG.hidden_size), np.float32), np.zeros(5, np.int32))
        runner.set_last_tokens(np.zeros(3, np.int32))
        runner.do(SwapPlan(key=0, is_out=True, pages=((1, 2, 3), (4,))))
        runner.do(SwapPlan(key=0, is_out=False, pages=((1, 2, 3), (4,))))
        runner.do(CopyPlan(sources=((1,), (2,)), targets=((3,), (4,))))
    assert log.num_compiles == 0
    assert [one.finish_reason for one in served] == ["length"] * 4


def test_together_and_alone_are_the_same_bits(runner: Runner) -> None:
    """Promise 2, with slots that others used before: nothing of them is left over."""
    together = results(serve(runner, requests()))
    for index, one in enumerate(requests()):
        assert results(serve(runner, [one])) == [together[index]]
    assert results(serve(runner, requests(), ahead=2)) == together


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("ahead", [1, 2])
def test_preempted_requests_have_the_same_bits(runner: Runner, preemption: Any, ahead: int) -> None:
    """Promise 2, BB-33: counts for penalties and last tokens come back too."""
    plain = results(serve(runner, requests(30)))
    ask = EngineConfig(admission="optimistic", preemption=preemption, enable_prefix_caching=False)
    served = serve(runner, requests(30), ask, ahead=ahead)
    assert sum(one.num_preemptions for one in served) > 0
    assert results(served) == plain
    assert not runner._swapped


@pytest.mark.parametrize("poisoned", [0, 51])
def test_poison_ends_its_own_request_and_touches_no_other(
    programs: Programs, runner: Runner, poisoned: int
) -> None:
    """Promise 11, BB-41 (slime#2256). Token 0 is what padding holds, 51 is in the second prompt.

    Padding writes NaN to the null page then, which rows with a window read where their old pages
    were, and a later request takes over pages that hold NaN.
    """
    clean = serve(runner, requests())
    other_runner = Runner(random_params(poisoned_token=poisoned), programs, GEOMETRY)
    for _ in range(2):
        for one, other in zip(serve(other_runner, requests()), clean, strict=True):
            is_touched = poisoned in one.prompt_ids + other.output_ids[:-1]
            assert (one.finish_reason == "error") == is_touched
            assert is_touched or results([one]) == results([other])


def random_hidden(rows: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(rows, CONFIG.hidden_size)).astype(np.float32)


def test_logits_of_any_number_of_rows(runner: Runner) -> None:
    hidden = random_hidden(11)
    found = runner.logits(hidden)
    exact = hidden.astype(np.float64) @ np.asarray(runner.params["head"].value, np.float64).T
    assert found.shape == (11, 320) and found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=1e-4)
    np.testing.assert_array_equal(runner.logits(hidden[5:6]), found[5:6])


def test_scores_are_the_log_softmax_of_those_logits(runner: Runner) -> None:
    """Of any number of rows, bit for bit; ranks count what is likelier."""
    hidden, targets = random_hidden(11), np.arange(11, dtype=np.int32) * 29
    found = runner.score(hidden, targets)
    logits = runner.logits(hidden).astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    rows = np.arange(11)
    assert found.tokens.tolist() == targets.tolist() and found.finite.all()
    np.testing.assert_allclose(found.logprobs, exact[rows, targets], atol=1e-4)
    ranks = 1 + (logits > logits[rows, targets][:, None]).sum(axis=-1)
    assert found.ranks.tolist() == ranks.tolist()
    assert (found.best_ids[:, 0] == logits.argmax(axis=-1)).all()
    one = runner.score(hidden[5:6], targets[5:6])
    assert (one.logprobs[0], one.best_ids[0].tolist()) == (
        found.logprobs[5],
        found.best_ids[5].tolist(),
    )


def test_a_row_that_is_no_number_is_said_to_be_none(runner: Runner) -> None:
    hidden = random_hidden(3)
    hidden[1, 5] = np.nan
    assert runner.score(hidden, np.zeros(3, np.int32)).finite.tolist() == [True, False, True]


def test_forced_tokens_take_the_place_of_drawn_ones(runner: Runner) -> None:
    runner.set_last_tokens(np.array([3, 1, 2]))
    recent = np.asarray(runner.state.recent)
    assert recent[:, -1].tolist() == [3, 1, 2] and not recent[:, :-1].any()


def pages_of(runner: Runner, group: int, page: int) -> list[np.ndarray]:
    """The keys and values of one page in the layers of a group (one layer each here)."""
    return [
        np.asarray(side[group])[page].copy() for side in (runner.cache.keys, runner.cache.values)
    ]


@pytest.mark.parametrize("counts", [(1, 0), (2, 2), (5, 3)])
def test_swapped_pages_come_back_in_any_pages(runner: Runner, counts: tuple[int, int]) -> None:
    """More than travel at once, and groups of different size; what is not swapped stays."""
    serve(runner, requests())
    out = tuple(tuple(range(1, 1 + count)) for count in counts)
    back = tuple(tuple(range(6, 6 + count)) for count in counts)
    wanted = [[pages_of(runner, group, page) for page in out[group]] for group in (0, 1)]
    untouched = [pages_of(runner, group, 12) for group in (0, 1)]
    runner.do(SwapPlan(key=9, is_out=True, pages=out))
    serve(runner, requests()[:1])  # something else in between
    runner.do(SwapPlan(key=9, is_out=False, pages=back))
    for group in (0, 1):
        for page, content in zip(back[group], wanted[group], strict=True):
            np.testing.assert_array_equal(pages_of(runner, group, page), content)
        np.testing.assert_array_equal(pages_of(runner, group, 12), untouched[group])
    assert not runner._swapped


def test_a_copied_page_is_the_same_and_its_source_stays(runner: Runner) -> None:
    serve(runner, requests())
    wanted = [pages_of(runner, 0, 2), pages_of(runner, 1, 3)]
    runner.do(CopyPlan(sources=((2,), (3,)), targets=((11,), (10,))))
    for group, (source, target) in enumerate(((2, 11), (3, 10))):
        np.testing.assert_array_equal(pages_of(runner, group, source), wanted[group])
        np.testing.assert_array_equal(pages_of(runner, group, target), wanted[group])


def test_a_copy_that_nobody_wants_back_is_forgotten(runner: Runner) -> None:
    runner.do(SwapPlan(key=9, is_out=True, pages=((1,), (1,))))
    runner.forget(9)
    runner.forget(9)
    assert not runner._swapped


def test_revive_makes_anew_only_what_is_gone(runner: Runner) -> None:
    runner.do(SwapPlan(key=9, is_out=True, pages=((1,), (1,))))
    cache = runner.cache
    runner.revive()
    assert runner.cache is cache and not runner._swapped
    jax.tree.leaves(runner.state)[0].delete()
    runner.revive()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((runner.cache, runner.state)))
    assert [one.finish_reason for one in serve(runner, requests())] == ["length"] * 4


def test_close_gives_all_memory_back(runner: Runner) -> None:
    runner.do(SwapPlan(key=9, is_out=True, pages=((1,), (1,))))
    leaves = jax.tree.leaves((runner.params, runner.cache, runner.state))
    runner.close()
    assert all(leaf.is_deleted() for leaf in leaves) and not runner._swapped
    runner.close()
