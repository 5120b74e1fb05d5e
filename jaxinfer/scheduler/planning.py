"""HOST. The rows of a step as the arrays that travel to the device.

Knows requests that were chosen and their page tables; chooses nobody and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import Chore, DecodePlan, Plan, PrefillPlan, VerifyPlan
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.sampling_rows import SlotSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A request's part in a step: its tokens [start, end), and whether their end draws one.

    drafts: tokens that are verified after `end`; zeros in place of those the device drafts.
    """

    request: Request
    start: int
    end: int
    draws: bool
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the device does next: chores in order, then the plan; rows are those of the plan."""

    chores: tuple[Chore, ...]
    plan: Plan
    rows: tuple[StepRow, ...]


def prefill_plan(
    rows: Sequence[StepRow], geometry: Geometry, pages: PageTables, sampling: SlotSampling
) -> PrefillPlan:
    """As many rows as one of the prefill programs has."""
    tokens = np.zeros((len(rows), geometry.chunk_tokens), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : row.end - row.start] = row.request.known_ids(row.start, row.end)
    held = np.array([slot_of(row.request) for row in rows], np.int32)
    draws = np.array([row.draws for row in rows])
    return PrefillPlan(
        tokens=tokens,
        starts=np.array([row.start for row in rows], np.int32),
        lengths=np.array([row.end - row.start for row in rows], np.int32),
        tables=pages.tables[:, held],
        slots=np.where(draws, held, np.int32(geometry.num_slots)),
        sampling=sampling.rows(held),
    )


def decode_plan(
    rows: Sequence[StepRow], geometry: Geometry, pages: PageTables, sampling: SlotSampling
) -> DecodePlan:
    """Rows in the narrowest decode program that holds them."""
    slots, positions = _places(rows, geometry.decode_widths, geometry)
    return DecodePlan(
        slots=slots,
        positions=positions,
        tables=pages.tables[:, slots],
        sampling=sampling.rows(slots),
    )


def verify_plan(
    rows: Sequence[StepRow],
    geometry: Geometry,
    pages: PageTables,
    sampling: SlotSampling,
    *,
    on_device: bool = False,
) -> VerifyPlan:
    """Rows in the narrowest verify program that holds them.

    on_device: steps before it draft, as many as the row with most drafts has.
    """
    slots, positions = _places(rows, geometry.verify_widths, geometry)
    drafts = np.zeros((slots.size, geometry.draft_tokens), np.int32)
    num_drafts = np.zeros(slots.size, np.int32)
    for place, row in enumerate(rows):
        drafts[place, : len(row.drafts)] = row.drafts
        num_drafts[place] = len(row.drafts)
    return VerifyPlan(
        slots=slots,
        positions=positions,
        tables=pages.tables[:, slots],
        drafts=drafts,
        num_drafts=num_drafts,
        sampling=sampling.rows(slots),
        num_draft_steps=int(num_drafts.max()) if on_device else 0,
    )


def _places(
    rows: Sequence[StepRow], widths: Sequence[int], geometry: Geometry
) -> tuple[np.ndarray, np.ndarray]:
    """Slots and positions [W] of the narrowest program."""
    width = min(width for width in widths if width >= len(rows))
    slots = np.full(width, geometry.num_slots, np.int32)
    positions = np.zeros(width, np.int32)
    slots[: len(rows)] = [slot_of(row.request) for row in rows]
    positions[: len(rows)] = [row.start for row in rows]
    return slots, positions


def slot_of(request: Request) -> int:
    """The slot of a request that was planned."""
    assert request.slot is not None, "a planned request has no slot"
    return request.slot
