"""HOST. The records that go into a step and come out of one. Plain numpy; no device, no text."""

from dataclasses import dataclass

import numpy as np

PROMPT_FLAG = 1 << 30  # in `SeatPlan.seen`
RECENT_TOKENS = 7  # tokens a slot remembers: a bad word has at most one more
MAX_BIAS_IDS = 300
MAX_BAD_WORDS = 64
MAX_BAD_WORD_TOKENS = RECENT_TOKENS + 1
BAD_WORD_ROWS = 2 * MAX_BAD_WORDS  # each word with and without a space before it


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
    repetition_penalty: np.ndarray  # [B] f32
    presence_penalty: np.ndarray  # [B] f32
    frequency_penalty: np.ndarray  # [B] f32
    first_end: np.ndarray  # [B] i32, first position where a token may end the request
    seated: np.ndarray  # [B] i32, 1 where the slot's limits on the device are this request's


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatPlan:
    """What the device keeps of one request while it holds a slot; written once, not every step.

    Only for requests that need it: limits or penalties, or a last token that no step drew there.
    """

    slot: int
    recent: np.ndarray  # [RECENT_TOKENS] i32, the last tokens in order, -2 where there were none
    seen: np.ndarray  # [V] i32, how often each token was generated; + PROMPT_FLAG if in the prompt
    allowed: np.ndarray  # [ceil(V / 32)] u32, bit i % 32 of word i // 32: token i may be drawn
    ends: np.ndarray  # [ceil(V / 32)] u32, likewise: tokens that end the request
    bias_ids: np.ndarray  # [MAX_BIAS_IDS] i32, V where there is none
    bias_values: np.ndarray  # [MAX_BIAS_IDS] f32
    bad_words: np.ndarray  # [BAD_WORD_ROWS, MAX_BAD_WORD_TOKENS] i32, words at the right, else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """Pages to be copied inside the pool: `sources[g]` to `targets[g]` in cache group g."""

    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """Pages of one request to be copied to host memory, or back into pages of the pool.

    key: names the copy. is_out: to the host. pages: a tuple of pages a cache group.
    """

    key: int
    is_out: bool
    pages: tuple[tuple[int, ...], ...]


Chore = SeatPlan | CopyPlan | SwapPlan  # what a step needs done before it is launched


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
class VerifyPlan:
    """The last token of each of up to W busy slots, and drafts of those that may come next.

    slots: the slot of each row; B for an empty row. num_drafts: 0 for a row that only decodes.
    num_draft_steps: steps that draft on the device first, one for each place; 0 where `drafts` are
    known, else they hold nothing.
    """

    slots: np.ndarray  # [W] i32
    positions: np.ndarray  # [W] i32, position of the last token
    tables: np.ndarray  # [groups, W, N] i32
    drafts: np.ndarray  # [W, J] i32
    num_drafts: np.ndarray  # [W] i32
    sampling: SamplingPlan  # W rows
    num_draft_steps: int = 0


Plan = PrefillPlan | DecodePlan | VerifyPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What a verify step drew: J + 1 tokens a row, of which the first num_accepted + 1 count.

    draws: row w's token i at w * (J + 1) + i. num_accepted: drafts that equal what was drawn there.
    """

    draws: "StepResult"
    num_accepted: np.ndarray  # [W] i32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step drew, row by row; rows that draw nothing hold zeros."""

    tokens: np.ndarray  # [B] i32
    finite: np.ndarray  # [B] bool, False where the logits held NaN or Inf
    logprobs: np.ndarray  # [B] f32
    ranks: np.ndarray  # [B] i32, 1 is the likeliest
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
        repetition_penalty=np.ones(rows, np.float32),
        presence_penalty=np.zeros(rows, np.float32),
        frequency_penalty=np.zeros(rows, np.float32),
        first_end=np.zeros(rows, np.int32),
        seated=np.zeros(rows, np.int32),
    )
