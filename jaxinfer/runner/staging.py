"""JOINT. Plans to batches and packed results back to records: the host/device line itself."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.step_plan import (
    DecodePlan,
    PrefillPlan,
    SamplingPlan,
    SeatPlan,
    StepResult,
    VerifyPlan,
    VerifyResult,
)
from jaxinfer.models.transformer import TokenRows
from jaxinfer.runner.batch import DecodeBatch, PrefillBatch, VerifyBatch
from jaxinfer.sampling.logits import SamplingRows
from jaxinfer.sampling.slot_state import SeatRow


def stage_prefill(plan: PrefillPlan) -> PrefillBatch:
    """The batch of a prefill plan; its arrays travel when the step is launched."""
    rows = TokenRows(
        tokens=plan.tokens,  # type: ignore[arg-type]  # numpy in place of device arrays
        starts=plan.starts,  # type: ignore[arg-type]
        lengths=plan.lengths,  # type: ignore[arg-type]
        tables=plan.tables,  # type: ignore[arg-type]
    )
    return PrefillBatch(rows=rows, sampling=_stage_sampling(plan.sampling), slots=plan.slots)  # type: ignore[arg-type]


def stage_decode(plan: DecodePlan) -> DecodeBatch:
    """The batch of a decode plan."""
    return DecodeBatch(
        slots=plan.slots,  # type: ignore[arg-type]  # numpy in place of device arrays
        positions=plan.positions,  # type: ignore[arg-type]
        tables=plan.tables,  # type: ignore[arg-type]
        sampling=_stage_sampling(plan.sampling),
    )


def stage_verify(plan: VerifyPlan) -> VerifyBatch:
    """The batch of a verify plan."""
    for_host = ("sampling", "num_draft_steps")
    same = {name: getattr(plan, name) for name in VerifyPlan.__slots__ if name not in for_host}
    return VerifyBatch(sampling=_stage_sampling(plan.sampling), **same)


def unpack_verify(packed: np.ndarray) -> VerifyResult:
    """What a verify step drew; `runner.steps.verify_step` packs it."""
    rows, each, columns = packed.shape
    return VerifyResult(
        draws=unpack(packed[:, :, :-1].reshape(rows * each, columns - 1)),
        num_accepted=packed[:, 0, -1],
    )


def unpack(packed: np.ndarray) -> StepResult:
    """What a step drew; the layout is `sampling.draw.pack`'s."""
    best = 4 + MAX_LOGPROBS
    return StepResult(
        tokens=packed[:, 0],
        finite=packed[:, 1] > 0,
        logprobs=np.ascontiguousarray(packed[:, 2]).view(np.float32),
        ranks=packed[:, 3],
        best_ids=packed[:, 4:best],
        best_logprobs=np.ascontiguousarray(packed[:, best:]).view(np.float32),
    )


def stage_seat(plan: SeatPlan) -> SeatRow:
    """What the device is told of a request that got a slot."""
    kept = {name: getattr(plan, name) for name in SeatPlan.__slots__ if name != "slot"}
    return SeatRow(slot=np.int32(plan.slot), **kept)  # type: ignore[arg-type]


def stage_pages(pages: Sequence[Sequence[int]], width: int) -> list[np.ndarray]:
    """Pages of each group, `width` at a time: [groups, width] i32, padded with null pages."""
    longest = max(map(len, pages), default=0)
    table = np.zeros((len(pages), -(-longest // width) * width), np.int32)
    for group, held in enumerate(pages):
        table[group, : len(held)] = held
    return [table[:, first : first + width] for first in range(0, table.shape[1], width)]


def _stage_sampling(plan: SamplingPlan) -> SamplingRows:
    # The same names, numpy in place of device arrays.
    return SamplingRows(**{name: getattr(plan, name) for name in SamplingPlan.__slots__})
