"""JOINT. Logits of given tokens through the engine's own steps (teacher forcing).

Uses slot 0 and the pages of an engine that is idle; knows no requests.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, empty_sampling
from jaxinfer.runner.runner import Runner
from jaxinfer.scheduler.page_tables import PageTables


def forced_logits(
    runner: Runner,
    pages: PageTables,
    token_ids: list[int],
    *,
    decode_from: int | None = None,
    places: Sequence[int] | None = None,
) -> np.ndarray:
    """Logits after each of the tokens, or after those at `places`.

    Args:
        token_ids: T ids, checked.
        decode_from: tokens from this place on (at least 1) go in one by one through the decode
            step, the others through prefill; None prefills them all.
        places: indices into the tokens; None is every one.

    Returns:
        [T, V] or [places, V] f32.
    """
    hidden = forced_hidden(runner, pages, token_ids, decode_from=decode_from)
    rows = np.concatenate(list(hidden))
    return runner.logits(rows if places is None else rows[np.asarray(places)])


def forced_hidden(
    runner: Runner, pages: PageTables, token_ids: list[int], *, decode_from: int | None = None
) -> Iterator[np.ndarray]:
    """The hidden rows after each of the tokens, [chunk, E] a step, for `Runner.logits`.

    Args:
        token_ids, decode_from: as for `forced_logits`.
    """
    split = len(token_ids) if decode_from is None else decode_from
    opened = pages.open(0, len(token_ids))
    assert opened, "the caller checks that the pages are there"
    try:
        for start in range(0, split, runner.geometry.chunk_tokens):
            yield _prefill_chunk(runner, pages, token_ids[:split], start)
        for at in range(split, len(token_ids)):
            yield _decode_one(runner, pages, token_ids[at], at)
    finally:
        pages.release(0)


def _prefill_chunk(
    runner: Runner, pages: PageTables, token_ids: list[int], start: int
) -> np.ndarray:
    geometry = runner.geometry
    rows = geometry.prefill_rows[0]
    chunk = token_ids[start : start + geometry.chunk_tokens]
    tokens = np.zeros((rows, geometry.chunk_tokens), np.int32)
    tokens[0, : len(chunk)] = chunk
    pages.extend(0, start, start + len(chunk))
    plan = PrefillPlan(
        tokens=tokens,
        starts=_first(rows, start),
        lengths=_first(rows, len(chunk)),
        tables=pages.tables[:, [0] * rows],
        slots=np.full(rows, geometry.num_slots, np.int32),
        sampling=empty_sampling(rows),
    )
    return np.asarray(runner.launch(plan).hidden)[0, : len(chunk)]


def _decode_one(runner: Runner, pages: PageTables, token: int, position: int) -> np.ndarray:
    geometry = runner.geometry
    width = geometry.decode_widths[0]
    pages.extend(0, position, position + 1)
    runner.set_last_tokens(_first(geometry.num_slots, token))
    slots = np.full(width, geometry.num_slots, np.int32)
    slots[0] = 0
    plan = DecodePlan(
        slots=slots,
        positions=_first(width, position),
        tables=pages.tables[:, [0] * width],
        sampling=empty_sampling(width),
    )
    return np.asarray(runner.launch(plan).hidden)[0]


def _first(size: int, value: int) -> np.ndarray:
    array = np.zeros(size, np.int32)
    array[0] = value
    return array
