"""Random traces: whatever is scheduled how, each request gets what it gets alone.

After every step: pages partition the pool, a page has as many holders as tables list it, promises
are covered, no page has two writers (see `fake_loop`).
"""

from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from jaxinfer.config.step_plan import CopyPlan, SeatPlan, SwapPlan
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.drafters import DeviceDrafter, KnowingDrafter
from tests.scheduler.fake_device import Drawing, FakeDevice, run_alone
from tests.scheduler.fake_loop import FakeLoop
from tests.scheduler.random_traces import (
    LAST_ARRIVAL,
    NUM_TOKENS,
    Arrival,
    Trace,
    random_trace,
    smaller,
)
from tests.support.records import request

DRAWING = Drawing(num_tokens=NUM_TOKENS, error_one_in=150)


def requests_of(trace: Trace) -> list[list[Request]]:
    """The completions of each prompt, the later ones as siblings of the first."""
    tasks: list[list[Request]] = []
    order = 1
    for arrival in trace.arrivals:
        prompt = list(arrival.prompt)
        if arrival.follows is not None:
            turn = run_alone(tasks[arrival.follows][0], DRAWING).tokens
            prompt = turn[: len(prompt)]
        tasks.append(completions_of(arrival, prompt, order))
        order += arrival.num_completions
    return tasks


def completions_of(arrival: Arrival, prompt: list[int], first_order: int) -> list[Request]:
    made = [
        request(
            prompt,
            order=first_order + index,
            max_new_tokens=arrival.max_new,
            end_ids=arrival.end_ids,
            seed=sum(prompt) << 30,
            sample_index=index,
            **arrival.params,
        )
        for index in range(arrival.num_completions)
    ]
    for one in made:
        one.options, one.arrival_s = arrival.options, float(arrival.tick)
        one.num_prompt_logprobs = None if arrival.max_new else 0
        one.leader = None if one is made[0] else made[0]
    made[0].siblings = made[1:]
    return made


class Player:
    """Plays one trace to its end."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        share = trace.draft_share
        device = FakeDevice(trace.geometry, DRAWING, draft_share=share or 1.0)
        makes = (
            DeviceDrafter(device) if trace.drafts_on_device else KnowingDrafter(device, share or 0)
        )
        self.drafter = None if share is None else makes
        self.scheduler = Scheduler(trace.geometry, trace.ask, NUM_TOKENS + 2, self.drafter)
        self.tasks = requests_of(trace)
        self.requests = [one for task in self.tasks for one in task]
        self.text_ends = {
            one: arrival.text_ends
            for arrival, task in zip(trace.arrivals, self.tasks, strict=True)
            for one in task
            if arrival.text_ends is not None
        }
        self.loop = FakeLoop(
            self.scheduler,
            device,
            depth=trace.depth,
            burst=trace.burst,
            ends_text=lambda one: len(one.output_ids) == self.text_ends.get(one),
        )
        self.added: set[Request] = set()

    def play(self) -> None:
        for tick in range(self._most_ticks()):
            self._arrive(tick)
            self._end_overdue(tick)
            self._abort(tick, is_early=True)
            self.loop.launch_ahead(float(tick))
            self._abort(tick, is_early=False)
            self.loop.read()
            if tick in self.trace.resets:
                self.scheduler.reset_prefix_cache()
            if tick > LAST_ARRIVAL and not self.scheduler.has_work and not self.loop.flights:
                break
        assert not self.scheduler.has_work, "somebody starves"
        self.loop.check_drained()
        self.loop.check_prefix_cache(self.requests)
        for one in self.added:
            self._check_output(one)
            assert not one.num_preemptions or self.trace.ask.admission == "optimistic"

    def _most_ticks(self) -> int:
        """Steps that are always enough: each request by itself, and once more if preempted."""
        work = sum(len(one.prompt_ids) + one.max_new_tokens + 1 for one in self.requests)
        return LAST_ARRIVAL + 2 + 3 * work // 2

    def _arrive(self, tick: int) -> None:
        for arrival, task in zip(self.trace.arrivals, self.tasks, strict=True):
            if arrival.tick != tick:
                continue
            assert self.scheduler.why_never(task[0].max_cached_tokens) is None
            most = self.trace.ask.max_num_waiting
            queued = self.scheduler.num_waiting + len(task) - self.scheduler.slots.count(None)
            if most is None or queued <= most:
                self.scheduler.add(task[0])
                self.added.update(task)
            else:
                with pytest.raises(RequestError, match="max_num_waiting"):
                    self.scheduler.add(task[0])

    def _end_overdue(self, tick: int) -> None:
        late = self.scheduler.overdue(float(tick))
        for one in self.added:
            limit = one.options.timeout_s
            is_late = limit is not None and tick > one.arrival_s + limit and not one.is_finished
            assert is_late == (one in late)
        for one in late:
            self.loop.end(one)

    def _abort(self, tick: int, *, is_early: bool) -> None:
        """Before this tick's steps are launched, or while they are under way."""
        for arrival, task in zip(self.trace.arrivals, self.tasks, strict=True):
            for when, index in arrival.aborts:
                one = task[index]
                if when == tick and one in self.added and not one.is_finished:
                    if is_early == bool(when % 2):
                        self.loop.end(one)

    def _check_output(self, one: Request) -> None:
        alone, end = self.loop.device.alone(one), self.text_ends.get(one)
        # A text that ends with the last token before an error has not seen that.
        is_cut = end is not None and end < len(alone.output_ids) + (alone.finish_reason == "error")
        assert one.num_in_flight == one.num_drawing == 0 and one.slot is None
        assert one.num_cached_tokens < len(one.prompt_ids)
        if one.leader is None and (
            one.num_prompt_logprobs == 0 or not one.options.use_prefix_cache
        ):
            assert one.num_cached_tokens == 0
        if one.finish_reason == "abort":
            assert one.output_ids == alone.output_ids[: len(one.output_ids)]
        elif is_cut:
            assert (one.output_ids, one.finish_reason) == (alone.output_ids[:end], "stop")
        else:
            assert (one.output_ids, one.finish_reason) == (alone.output_ids, alone.finish_reason)


def play(trace: Trace) -> Player:
    player = Player(trace)
    player.play()
    return player


def failure_of(trace: Trace) -> Exception | None:
    try:
        play(trace)
    except Exception as error:
        return error
    return None


def smallest_failing(trace: Trace) -> Trace:
    """What is left of a failing trace when nothing more can be taken away."""
    for less in smaller(trace):
        if failure_of(less) is not None:
            return smallest_failing(less)
    return trace


def check(seed: int) -> Player:
    """Plays a seed's trace; a failing one is made small and played again."""
    trace = random_trace(seed)
    try:
        return play(trace)
    except Exception:
        least = smallest_failing(trace)
        print(f"seed {seed}: {least}")
        play(least)
        raise


def what_happened(player: Player) -> list[str]:
    chores = [chore for step in player.loop.steps for chore in step.chores]
    ways = [name for name, kind in KINDS.items() if any(isinstance(one, kind) for one in chores)]
    ways += ["hit"] * any(one.num_cached_tokens for one in player.requests)
    if player.drafter and player.drafter.counts.num_accepted_tokens:
        ways.append("drafted on device" if player.drafter.on_device else "drafted")
    ways += ["preempted"] * any(one.num_preemptions for one in player.requests)
    return ways + ["often"] * any(one.num_preemptions > 1 for one in player.requests)


KINDS = {"copied": CopyPlan, "seated": SeatPlan, "swapped": SwapPlan}
DRAFTED = ("drafted", "drafted on device")
SEEDS = st.integers(0, 2**63 - 1)
PLAIN = settings(deadline=None, database=None, phases=[Phase.generate])  # `check` makes it small


def test_random_traces() -> None:
    """The fast tier: 150 traces, and they are about what can go wrong."""
    tally: Counter[str] = Counter()

    @settings(PLAIN, max_examples=150, derandomize=True)
    @given(SEEDS)
    def run(seed: int) -> None:
        tally.update(what_happened(check(seed)))

    run()
    assert min(tally[way] for way in (*KINDS, "hit", "preempted", *DRAFTED)) >= 8, tally
    assert tally["often"] >= 2, tally


@pytest.mark.slow
@settings(PLAIN, max_examples=10_000)
@given(SEEDS)
def test_many_random_traces(seed: int) -> None:
    check(seed)
