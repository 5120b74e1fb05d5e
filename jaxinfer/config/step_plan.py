"""HOST. The records that go into a step and come out of one. Plain numpy; no device, no text."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How each row draws; the arrays of `sampling.logits.SamplingRows`, row by row."""

    temperature: np.ndarray  # [B] f32
    top_k: np.ndarray  # [B] i32
    top_p: np.ndarray  # [B] f32
    min_p: np.ndarray  # [B] f32
    seeds: np.ndarray  # [B, 2] u32
    sample_index: np.ndarray  # [B] i32
    num_logprobs: np.ndarray  # [B] i32, -1 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """R chunks of prompts. A row that ends its prompt draws a token into its slot.

    slots: the slot of such a row; B (one past the last) for a row that draws nothing.
    """

    tokens: np.ndarray  # [R, T] i32
    starts: np.ndarray  # [R] i32
    lengths: np.ndarray  # [R] i32, 0 for an empty row
    tables: np.ndarray  # [groups, R, N] i32
    slots: np.ndarray  # [R] i32
    sampling: SamplingPlan  # R rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """One token for each of up to W busy slots; the tokens themselves are on the device.

    slots: the slot of each row; B (one past the last) for an empty row.
    """

    slots: np.ndarray  # [W] i32
    positions: np.ndarray  # [W] i32, position of the token that goes in
    tables: np.ndarray  # [groups, W, N] i32
    sampling: SamplingPlan  # W rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step drew, row by row; rows that draw nothing hold zeros."""

    tokens: np.ndarray  # [B] i32
    finite: np.ndarray  # [B] bool, False where the logits held NaN or Inf
    logprobs: np.ndarray  # [B] f32
    best_ids: np.ndarray  # [B, 20] i32
    best_logprobs: np.ndarray  # [B, 20] f32


def empty_sampling(rows: int) -> SamplingPlan:
    """Rows that draw greedily and report nothing."""
    return SamplingPlan(
        temperature=np.zeros(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        seeds=np.zeros((rows, 2), np.uint32),
        sample_index=np.zeros(rows, np.int32),
        num_logprobs=np.full(rows, -1, np.int32),
    )
