"""A runner without a device: the token after i is `next_tokens[i]`, or `nan` for a broken row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import (
    Chore,
    DecodePlan,
    PrefillPlan,
    SeatPlan,
    StepResult,
    SwapPlan,
    VerifyPlan,
    VerifyResult,
)
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.intake import Intake
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.engine.trace import NoTimeline, Timeline
from jaxinfer.scheduler.drafting import Drafter
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END
from tests.support.records import geometry

NAN = -1
PROMPT_LOGPROB, DRAWN_LOGPROB = -0.5, -0.25


def chain_of(text: str, *ends: int) -> dict[int, int]:
    """Each byte of `text` leads to the next, the last to the ids in `ends`, one after another."""
    ids = [*text.encode(), *ends]
    return dict(zip(ids, ids[1:], strict=False))


@dataclass(frozen=True, slots=True)
class ChainLaunched:
    """What a step drew; its hidden rows hold the tokens themselves."""

    drawn: StepResult | VerifyResult
    hidden: np.ndarray


class ChainRunner:
    """Answers plans as a `Runner` does, and keeps the order of what it was asked in `calls`.

    nan_scores: tokens that no prompt may hold where its log-probabilities are wanted.
    """

    def __init__(
        self, made: Geometry, next_tokens: Mapping[int, int], *, nan_scores: tuple[int, ...] = ()
    ) -> None:
        self.geometry = made
        self.next_tokens = next_tokens
        self.nan_scores = nan_scores
        self.calls: list[str] = []
        self.host_copies: set[int] = set()
        self.num_revivals = 0
        self._last = np.zeros(made.num_slots, np.int32)

    def launch(self, plan: PrefillPlan | DecodePlan | VerifyPlan) -> ChainLaunched:
        self.calls.append("launch")
        if isinstance(plan, VerifyPlan):
            return self._verify(plan)
        if isinstance(plan, PrefillPlan):
            rows = np.arange(plan.lengths.size)
            ends, hidden = plan.tokens[rows, plan.lengths - 1], plan.tokens
        else:
            ends = self._last[np.minimum(plan.slots, self.geometry.num_slots - 1)]
            hidden = ends[:, None]
        drawn = self._after(ends)
        for row, slot in enumerate(plan.slots):
            if slot < self.geometry.num_slots:
                self._last[slot] = drawn.tokens[row]
        return ChainLaunched(drawn, hidden[:, :, None].astype(np.float32))

    def read(self, launched: ChainLaunched) -> StepResult | VerifyResult:
        self.calls.append("read")
        return launched.drawn

    def do(self, chore: Chore) -> None:
        self.calls.append(type(chore).__name__)
        if isinstance(chore, SeatPlan):
            self._last[chore.slot] = chore.recent[-1]
        elif isinstance(chore, SwapPlan):
            (self.host_copies.add if chore.is_out else self.host_copies.remove)(chore.key)

    def score(self, hidden: np.ndarray, targets: np.ndarray) -> StepResult:
        assert hidden.shape == (targets.size, 1)
        finite = ~np.isin(targets, self.nan_scores)
        return _result(targets, finite, np.full(targets.size, PROMPT_LOGPROB, np.float32))

    def forget(self, key: int) -> None:
        self.host_copies.discard(key)

    def revive(self) -> None:
        self.host_copies.clear()
        self.num_revivals += 1

    def close(self) -> None:
        self.calls.append("close")

    def _verify(self, plan: VerifyPlan) -> ChainLaunched:
        """Draws after the last token and after each draft; those count whose drafts all stand."""
        last = self._last[np.minimum(plan.slots, self.geometry.num_slots - 1)]
        given = np.concatenate([last[:, None], plan.drafts], axis=1)
        drawn = self._after(given.reshape(-1))
        tokens = drawn.tokens.reshape(given.shape)
        is_draft = np.arange(plan.drafts.shape[1])[None, :] < plan.num_drafts[:, None]
        stands = (tokens[:, :-1] == plan.drafts) & is_draft
        accepted = np.cumprod(stands, axis=1).sum(axis=1)
        for row, slot in enumerate(plan.slots):
            if slot < self.geometry.num_slots:
                self._last[slot] = tokens[row, accepted[row]]
        return ChainLaunched(VerifyResult(draws=drawn, num_accepted=accepted), given[:, :, None])

    def _after(self, tokens: np.ndarray) -> StepResult:
        drawn = np.array([self.next_tokens.get(int(token), int(token)) for token in tokens])
        scores = np.full(drawn.size, DRAWN_LOGPROB, np.float32)
        return _result(np.maximum(drawn, 0).astype(np.int32), drawn != NAN, scores)


def _result(tokens: np.ndarray, finite: np.ndarray, logprobs: np.ndarray) -> StepResult:
    rows = tokens.size
    return StepResult(
        tokens=tokens,
        finite=finite,
        logprobs=logprobs,
        ranks=np.full(rows, 30, np.int32),
        best_ids=np.tile(np.arange(97, 117, dtype=np.int32), (rows, 1)),
        best_logprobs=np.tile(-1 - np.arange(20, dtype=np.float32), (rows, 1)),
    )


def chain_engine(
    next_tokens: Mapping[int, int],
    tokenizer: Tokenizer | None,
    *,
    ask: EngineConfig | None = None,
    timeline: Timeline | None = None,
    drafter: Drafter | None = None,
    nan_scores: tuple[int, ...] = (),
    **shape: Any,
) -> Engine:
    """An engine over the chain; `shape` changes the geometry."""
    made = geometry(**shape)
    return Engine(
        ask=ask or EngineConfig(),
        intake=Intake(
            vocab_size=320,
            max_model_len=made.max_model_len,
            tokenizer=tokenizer,
            eos_token_ids=(END,),
            seed=11,
            max_logprobs=20,
        ),
        runner=ChainRunner(made, next_tokens, nan_scores=nan_scores),  # type: ignore[arg-type]
        drafter=drafter,
        metrics=EngineMetrics(),
        timeline=timeline or NoTimeline(),
    )
