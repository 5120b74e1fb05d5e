"""JOINT. Plans to batches and packed results back to records: the host/device line itself."""

import numpy as np

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, SamplingPlan, StepResult
from jaxinfer.models.transformer import TokenRows
from jaxinfer.runner.batch import DecodeBatch, PrefillBatch
from jaxinfer.sampling.logits import SamplingRows


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


def unpack(packed: np.ndarray) -> StepResult:
    """What a step drew; the layout is `sampling.draw.pack`'s."""
    best = 3 + MAX_LOGPROBS
    return StepResult(
        tokens=packed[:, 0],
        finite=packed[:, 1] > 0,
        logprobs=np.ascontiguousarray(packed[:, 2]).view(np.float32),
        best_ids=packed[:, 3:best],
        best_logprobs=np.ascontiguousarray(packed[:, best:]).view(np.float32),
    )


def _stage_sampling(plan: SamplingPlan) -> SamplingRows:
    return SamplingRows(
        temperature=plan.temperature,  # type: ignore[arg-type]  # numpy in place of device arrays
        top_k=plan.top_k,  # type: ignore[arg-type]
        top_p=plan.top_p,  # type: ignore[arg-type]
        min_p=plan.min_p,  # type: ignore[arg-type]
        seeds=plan.seeds,  # type: ignore[arg-type]
        sample_index=plan.sample_index,  # type: ignore[arg-type]
        num_logprobs=plan.num_logprobs,  # type: ignore[arg-type]
    )
