"""What may happen to a scheduler, at random: a machine, its settings, and what arrives when.

Made from one seed, so that every choice is as likely as it looks; `smaller` is for finding out what
a failing trace needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry, pages_needed
from jaxinfer.config.request_options import RequestOptions
from tests.support.records import geometry

NUM_TOKENS = 15  # ids 1 to 15 in prompts and outputs
LAST_ARRIVAL = 12
NO_DRAFTS = {"draft_share": None}
_TEXTS = (
    [(7 * i + i * i // 3) % NUM_TOKENS + 1 for i in range(64)],
    [i % 3 + 1 for i in range(64)],
)
_WINDOWS = [(0,), (0,), (0, 3), (5,), (0, 1, 9), (0, 16), (1,), (4, 12)]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A prompt: when it comes, what it asks for, and when which completion is aborted.

    follows: the arrival before it whose prompt and output it begins with, as a next chat turn does;
    `prompt` says how long it is then.
    """

    tick: int
    prompt: tuple[int, ...]
    follows: int | None = None
    max_new: int
    num_completions: int = 1
    end_ids: tuple[int, ...] = ()
    params: dict[str, Any]
    options: RequestOptions
    aborts: tuple[tuple[int, int], ...] = ()  # (tick, completion)
    text_ends: int | None = None  # after so many tokens a stop string is seen


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trace.

    depth, burst: as in `FakeLoop`. resets: when the prefix cache is reset. draft_share: how many of
    the drafts are right; None is no speculation. drafts_on_device: they are made there.
    """

    geometry: Geometry
    ask: EngineConfig
    depth: int
    burst: int
    arrivals: tuple[Arrival, ...]
    resets: tuple[int, ...] = ()
    draft_share: float | None = None
    drafts_on_device: bool = False


def random_trace(seed: int) -> Trace:
    """The trace of a seed."""
    random = Random(seed)
    is_pressed = random.random() < 0.4  # long outputs, few pages: preemption
    made, count = _geometry(random, is_pressed), random.randint(0, 10)
    resets = [random.randint(0, 30)] if random.random() < 0.2 else []
    arrivals = [_arrival(random, made.max_model_len, is_pressed) for _ in range(count)]
    arrivals.sort(key=lambda one: one.tick)
    for place, one in enumerate(arrivals):
        if place and random.random() < 0.15:
            arrivals[place] = replace(one, follows=random.randrange(place))
        elif place and random.random() < 0.3:  # asked once more: one computes what the other finds
            other = random.choice(arrivals[:place])
            most = min(one.max_new, max(1, other.max_new))
            arrivals[place] = replace(one, prompt=other.prompt, max_new=most)
    return Trace(
        geometry=made,
        ask=_ask(random, is_pressed),
        depth=random.randint(1, 3),
        burst=random.choice([1, 1, 2, 4]),
        arrivals=tuple(arrivals),
        resets=tuple(resets),
        draft_share=random.choice([0.5, 0.9]) if made.draft_tokens else None,
        drafts_on_device=random.random() < 0.5,
    )


def smaller(trace: Trace) -> Iterator[Trace]:
    """The trace with one thing less."""
    arrivals = trace.arrivals
    for place, one in enumerate(arrivals):
        before, after = arrivals[:place], arrivals[place + 1 :]
        if all(other.follows is None for other in after):
            yield replace(trace, arrivals=before + after)
        for changes in _plainer(one):
            changed = replace(one, **changes)
            if changed != one:
                yield replace(trace, arrivals=before + (changed,) + after)
    plain = EngineConfig(admission=trace.ask.admission)
    for name in EngineConfig.__slots__:
        ask = replace(trace.ask, **{name: getattr(plain, name)})
        if ask != trace.ask:
            yield replace(trace, ask=ask)
    for changes in ({"depth": trace.depth - 1}, {"burst": 1}, {"resets": ()}, NO_DRAFTS):
        changed = replace(trace, **changes)
        if changed != trace and changed.depth:
            yield changed


def _plainer(one: Arrival) -> Iterator[dict[str, Any]]:
    plain = RequestOptions()
    yield {"follows": None}
    yield {"aborts": one.aborts[1:]}
    yield {"text_ends": None}
    yield {"num_completions": max(1, one.num_completions - 1), "aborts": ()}
    yield {"params": {}}
    yield {"end_ids": ()}
    yield {"max_new": max(min(1, one.max_new), one.max_new // 2)}
    yield {"max_new": max(min(1, one.max_new), one.max_new - 1)}
    yield {"prompt": one.prompt[: max(1, len(one.prompt) // 2)]}
    yield {"prompt": one.prompt[: max(1, len(one.prompt) - 1)]}
    for name in RequestOptions.__slots__:
        yield {"options": replace(one.options, **{name: getattr(plain, name)})}


def _geometry(random: Random, is_pressed: bool) -> Geometry:
    windows, slots = random.choice(_WINDOWS), random.randint(2 if is_pressed else 1, 6)
    page = random.choice([1, 2] if is_pressed else [2, 4, 8])
    chunk = random.choice([2, 4, 8])
    rows = random.choice([(1,), (1, 2), (1, 4), (1, 3, 6)])
    length = random.randint(6, 40)
    needs = [pages_needed(length, page, window, chunk * rows[-1]) for window in windows]
    has_drafts = random.random() < 0.3
    spare = random.choice([0, 2, 4, 8] if is_pressed else [0, 1, 3, 100])
    made = geometry(
        max_model_len=length,
        page_tokens=page,
        chunk_tokens=chunk,
        prefill_rows=rows,
        num_slots=slots,
        windows=windows,
        num_pages=tuple(need + 1 + min(spare, need * (slots - 1)) for need in needs),
        decode_widths=tuple(width for width in (2,) if width < slots) + (max(2, slots),),
    )
    if not has_drafts:
        return made
    widths = random.choice([(2,), made.decode_widths])
    return replace(made, draft_tokens=random.randint(1, 4), verify_widths=widths)


def _ask(random: Random, is_pressed: bool) -> EngineConfig:
    return EngineConfig(
        admission="optimistic" if is_pressed else random.choice(["optimistic", "reserve"]),
        preemption=random.choice(["swap", "recompute"]),
        enable_prefix_caching=random.random() < 0.7,
        enable_chunked_prefill=random.random() < 0.7,
        scheduling_policy=random.choice(["fcfs", "priority"]),
        max_prefill_steps=random.choice([1, 1, 2, 3]),
        long_prefill_token_threshold=random.choice([None, random.randint(1, 24)]),
        latency_max_num_seqs=random.choice([None, 0, 1, 2]),
        max_num_waiting=random.choice([None, None, None, random.randint(1, 6)]),
    )


def _arrival(random: Random, length: int, is_pressed: bool) -> Arrival:
    share = random.choice([3, 6] if is_pressed else [1, 2, 3])
    prompt = _prompt(random, max(1, length // share))
    most = length - len(prompt) + 1
    scores = random.random() < 0.1
    count = 1 if scores else random.choice([1, 1, 1, 2, 3])
    penalties = {"presence_penalty": 1.0, "min_tokens": random.randint(0, 2)}
    aborts = [(random.randint(0, 40), random.randrange(count)) for _ in range(count)]
    return Arrival(
        tick=random.choice([0, 0, random.randint(0, LAST_ARRIVAL)]),
        prompt=prompt,
        max_new=0 if scores else random.choice([most, random.randint(1, most)]),
        num_completions=count,
        end_ids=() if is_pressed else random.choice([(), (1,), (1, 2, 3)]),
        params=random.choice([{}, {}, penalties]),
        options=RequestOptions(
            priority=random.randint(-1, 1),
            latency_sensitive=random.random() < 0.2,
            timeout_s=random.choice([None, None, None, None, random.randint(1, 40)]),
            use_prefix_cache=random.random() < 0.85,
        ),
        aborts=tuple(aborts) if random.random() < 0.3 else (),
        text_ends=random.randint(1, 8) if random.random() < 0.15 else None,
    )


def _prompt(random: Random, most: int) -> tuple[int, ...]:
    """The beginning of a text that others have too, and some tokens of its own."""
    shared = random.choice(_TEXTS)[: random.randint(0, most)]
    own = [random.randint(1, NUM_TOKENS) for _ in range(random.randint(0, 3))]
    return tuple((shared + own)[:most]) or (1,)
