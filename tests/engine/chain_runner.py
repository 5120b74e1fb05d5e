"""A runner without a device: the token after i is `next_tokens[i]`, or `nan` for a broken row."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.scheduler.scheduler import Scheduler
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END
from tests.support.records import geometry, model_config

NAN = -1


def chain_of(text: str, *ends: int) -> dict[int, int]:
    """Each byte of `text` leads to the next, the last to the ids in `ends`, one after another."""
    ids = [*text.encode(), *ends]
    return dict(zip(ids, ids[1:], strict=False))


class ChainRunner:
    """Answers plans as a `Runner` does."""

    def __init__(self, made: Geometry, next_tokens: Mapping[int, int]) -> None:
        self.geometry = made
        self.next_tokens = next_tokens
        self._last = np.zeros(made.num_slots, np.int32)

    def prefill(self, plan: PrefillPlan) -> tuple[StepResult, None]:
        rows = np.arange(plan.lengths.size)
        drawn = self._after(plan.tokens[rows, plan.lengths - 1])
        for row, slot in enumerate(plan.slots):
            if slot < self.geometry.num_slots:
                self._last[slot] = drawn.tokens[row]
        return drawn, None

    def decode(self, plan: DecodePlan) -> tuple[StepResult, None]:
        busy = plan.slots < self.geometry.num_slots
        tokens = np.zeros(plan.slots.size, np.int32)
        tokens[busy] = self._last[plan.slots[busy]]
        drawn = self._after(tokens)
        self._last[plan.slots[busy]] = drawn.tokens[busy]
        return drawn, None

    def _after(self, tokens: np.ndarray) -> StepResult:
        drawn = np.array([self.next_tokens.get(int(token), int(token)) for token in tokens])
        rows = drawn.size
        return StepResult(
            tokens=np.maximum(drawn, 0).astype(np.int32),
            finite=drawn != NAN,
            logprobs=np.full(rows, -0.25, np.float32),
            best_ids=np.tile(np.arange(97, 117, dtype=np.int32), (rows, 1)),
            best_logprobs=np.tile(-1 - np.arange(20, dtype=np.float32), (rows, 1)),
        )


def chain_engine(
    next_tokens: Mapping[int, int], tokenizer: Tokenizer | None, **shape: Any
) -> Engine:
    """An engine over the chain; `shape` changes the geometry."""
    made = geometry(**shape)
    return Engine(
        config=model_config(),
        runner=ChainRunner(made, next_tokens),  # type: ignore[arg-type]
        scheduler=Scheduler(made),
        tokenizer=tokenizer,
        eos_token_ids=(END,),
        seed=11,
        metrics=EngineMetrics(),
    )
