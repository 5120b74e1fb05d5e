"""The loop with drafts: what stands comes as if drawn one by one, what does not leaves nothing."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.task import Task
from jaxinfer.scheduler.drafting import DraftCounts
from jaxinfer.scheduler.request import Request
from jaxinfer.text.tokenizer import Tokenizer
from tests.engine.chain_runner import ChainRunner, chain_engine, chain_of
from tests.engine.test_engine import assert_drained, drain
from tests.support.byte_tokenizer import END

CHAIN = chain_of("abcdefghij", END)
WRONG = 319
SHAPE: dict[str, Any] = {"draft_tokens": 4, "verify_widths": (2, 4)}


class ChainDrafter:
    """Drafts what the chain says, or a token that never comes; nothing after `silent` tokens."""

    on_device = False

    def __init__(
        self, next_tokens: Mapping[int, int], *, is_right: bool, silent: tuple[int, ...]
    ) -> None:
        self.counts = DraftCounts()
        self._next_tokens, self._is_right, self._silent = next_tokens, is_right, silent

    def num_tokens(self, num_running: int) -> int:
        return 4

    def is_due(self, request: Request) -> bool:
        return True

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        (token,) = request.known_ids(request.num_tokens - 1, request.num_tokens)
        drafted: list[int] = []
        for _ in range(0 if token in self._silent else most):
            token = self._next_tokens.get(token, token) if self._is_right else WRONG
            drafted.append(token)
        return tuple(drafted)

    def see(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.counts.see(num_drafted, num_accepted)


def drafting_engine(
    next_tokens: Mapping[int, int],
    tokenizer: Tokenizer | None,
    *,
    is_right: bool = True,
    silent: tuple[int, ...] = (),
    **options: Any,
) -> Engine:
    drafter = ChainDrafter(next_tokens, is_right=is_right, silent=silent)
    return chain_engine(next_tokens, tokenizer, drafter=drafter, **{**SHAPE, **options})


def add(engine: Engine, prompt: Any, **params: Any) -> Task:
    return engine.add(prompt, SamplingParams(**params))


def outcome(task: Task) -> tuple[str, list[int], str | None, Any]:
    (one,) = task.output(None).outputs
    return one.text, one.token_ids, one.finish_reason, one.stop_reason


def counted(engine: Engine) -> tuple[int, int, int]:
    counts = engine.numbers()
    names = ("drafts", "draft_tokens", "accepted_tokens")
    return tuple(int(counts[f"spec_decode_num_{name}"]) for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("a", {}),
        ("a", {"stop": "f"}),
        ("a", {"stop": ["gh", "zz"], "include_stop_str_in_output": True}),
        ("a", {"max_tokens": 4}),
        ("a", {"stop_token_ids": [101], "min_tokens": 6}),
        ("a", {"min_tokens": 6, "stop": ["e", "i"]}),
        ("j", {"ignore_eos": True, "max_tokens": 3}),
        ("x" * 60, {"max_tokens": None}),  # max_model_len is 64 (BB-43, vllm#5342)
    ],
)
def test_a_request_ends_where_it_would_without_drafts(
    tokenizer: Tokenizer, prompt: str, params: dict[str, Any], is_right: bool
) -> None:
    """BB-42 (transformers#47912), promise 6: in the middle of a run too."""
    plain = chain_engine(CHAIN, tokenizer)
    wanted = add(plain, prompt, **params)
    drain(plain)
    engine = drafting_engine(CHAIN, tokenizer, is_right=is_right)
    task = add(engine, prompt, **params)
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    assert outcome(task) == outcome(wanted)
    assert "".join(delta.text for delta in deltas) == outcome(task)[0]
    assert all(len(delta.token_ids) == 1 for delta in deltas)
    assert engine.metrics.generation_tokens == plain.metrics.generation_tokens
    assert_drained(engine)


def test_right_drafts_save_steps_and_are_counted() -> None:
    """Nine tokens: one by prefill, five and three by two steps, of which the last may draft two."""
    engine = drafting_engine({}, None)
    task = add(engine, [7], max_tokens=9)
    drain(engine)
    assert outcome(task)[1] == [7] * 9
    runner = engine.runner
    assert isinstance(runner, ChainRunner) and runner.calls.count("launch") == 3
    assert counted(engine) == (2, 6, 6)
    assert engine.metrics.num_decode_steps == 2


def test_accepted_tokens_after_the_end_do_not_count(tokenizer: Tokenizer) -> None:
    """BB-42: the stop comes second of five; counters count what was committed."""
    engine = drafting_engine(CHAIN, tokenizer)
    task = add(engine, "a", stop="c")
    drain(engine)
    assert outcome(task) == ("b", [*b"bc"], "stop", "c")
    assert counted(engine) == (1, 4, 1)
    assert engine.metrics.generation_tokens == 2


def test_wrong_drafts_cost_nothing_but_time() -> None:
    engine = drafting_engine({}, None, is_right=False)
    task = add(engine, [7], max_tokens=5)
    drain(engine)
    assert outcome(task)[1] == [7] * 5
    assert counted(engine) == (3, 6, 0)  # 3, 2 and 1 drafts; the last token needs none
    assert_drained(engine)


def test_more_requests_than_a_verify_step_has_rows_are_not_drafted() -> None:
    engine = drafting_engine({}, None, verify_widths=(2,))
    tasks = [add(engine, [token], max_tokens=6) for token in (5, 6, 7)]
    engine.step()
    drain(engine)
    assert [outcome(task)[1] for task in tasks] == [[token] * 6 for token in (5, 6, 7)]
    assert_drained(engine)


@pytest.mark.parametrize("way", ["abort", "reset"])
def test_ending_a_request_while_its_drafts_are_verified(way: str) -> None:
    engine = drafting_engine({}, None, is_right=False)
    task, other = (add(engine, [token], max_tokens=20) for token in (5, 6))
    for _ in range(3):
        engine.step()
    if way == "abort":
        engine.abort(task)
    else:
        engine.reset()
    drain(engine)
    assert outcome(task)[2] == "abort"
    assert outcome(other)[2] == ("length" if way == "abort" else "abort")
    assert outcome(add(engine, [8], max_tokens=3))[2] is None
    drain(engine)
    assert_drained(engine)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_requests_leave_the_pages_of_their_drafts_behind(preemption: Any) -> None:
    """Promises 2 and 7: what comes back from the host is what was computed, not what was tried.

    The second request takes a page for drafts that fail; the first, which drafts nothing, then
    finds none left, and the second has to give up its own.
    """
    ask = EngineConfig(admission="optimistic", preemption=preemption)
    num_preemptions = 0
    for first, second, num_pages in product((10, 12, 14), (7, 9, 11), (6, 7)):
        shape = {"num_pages": (num_pages,), "page_tokens": 8, "num_slots": 2}
        engine = drafting_engine({}, None, is_right=False, silent=(5,), ask=ask, **shape)
        tasks = [
            add(engine, [token] * length, max_tokens=20)
            for token, length in ((5, first), (6, second), (5, first))
        ]
        drain(engine)
        assert [outcome(task)[1] for task in tasks] == [[5] * 20, [6] * 20, [5] * 20]
        assert_drained(engine)
        num_preemptions += engine.metrics.num_preemptions
    assert num_preemptions > 0
