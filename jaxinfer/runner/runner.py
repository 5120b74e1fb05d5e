"""JOINT. Owns what lives on the device (parameters, cache, loop state) and runs compiled steps.

Steps are launched and read apart: `launch` returns while the device works, `read` waits for what it
drew. Does not know requests, pages' owners or text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.cache import PagedKV
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import (
    Chore,
    CopyPlan,
    DecodePlan,
    Plan,
    PrefillPlan,
    SeatPlan,
    StepResult,
    SwapPlan,
    VerifyPlan,
    VerifyResult,
)
from jaxinfer.runner.batch import VerifyBatch
from jaxinfer.runner.programs import Programs
from jaxinfer.runner.staging import (
    stage_decode,
    stage_pages,
    stage_prefill,
    stage_seat,
    stage_verify,
    unpack,
    unpack_verify,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A step under way: what it draws, packed, and its hidden rows ([R, T, E] or [W, Q, E]).

    drafts: [W, J] i32 – of a step that verifies, drafted by the steps before it or known already.
    """

    packed: jax.Array
    hidden: jax.Array
    drafts: jax.Array | np.ndarray | None = None


class Runner:
    """Runs steps. Every array it holds is gone after `close`."""

    def __init__(self, params: Any, programs: Programs, geometry: Geometry) -> None:
        self.params = params
        self.programs = programs
        self.geometry = geometry
        self.cache, self.state = programs.small["init"]()
        (self._device,) = self.state.recent.devices()
        self._swapped: dict[int, list[PagedKV]] = {}

    def launch(self, plan: Plan) -> Launched:
        """Starts a step; one that verifies has the steps before it that draft."""
        drafts = None
        match plan:
            case PrefillPlan():
                program, batch = self.programs.prefill[plan.tokens.shape[0]], stage_prefill(plan)
            case DecodePlan():
                program, batch = self.programs.decode[plan.slots.size], stage_decode(plan)
            case VerifyPlan():
                program, batch = self.programs.verify[plan.slots.size], self._draft(plan)
                drafts = batch.drafts
        self.cache, self.state, packed, hidden = program(self.params, self.cache, self.state, batch)
        return Launched(packed=packed, hidden=hidden, drafts=drafts)

    def _draft(self, plan: VerifyPlan) -> VerifyBatch:
        """The batch of a verify step; drafts that the host does not know never come to it."""
        batch = stage_verify(plan)
        if not plan.num_draft_steps:
            return batch
        program = self.programs.draft[plan.slots.size]
        batch = jax.device_put(batch, self._device)  # once, for all steps of the round
        drafts = batch.drafts
        for place in range(plan.num_draft_steps):
            self.cache, drafts = program(
                self.params, self.cache, self.state, drafts, np.int32(place), batch
            )
        return batch.replace(drafts=drafts)

    def wait_for_drafts(self, launched: Launched) -> None:
        """Returns once a step's drafts are there: nothing is transferred."""
        jax.block_until_ready(launched.drafts)

    def read(self, launched: Launched) -> StepResult | VerifyResult:
        """What a step drew, once it is done: the one transfer from the device."""
        packed = np.asarray(launched.packed)
        return unpack_verify(packed) if packed.ndim == 3 else unpack(packed)

    def do(self, chore: Chore) -> None:
        """Starts a chore; steps launched after it find it done."""
        match chore:
            case SeatPlan():
                self.state = self.programs.small["seat"](self.state, stage_seat(chore))
            case CopyPlan():
                sources, targets = (
                    np.array([pages[0] for pages in side], np.int32)
                    for side in (chore.sources, chore.targets)
                )
                self.cache = self.programs.small["copy"](self.cache, sources, targets)
            case SwapPlan(is_out=True):
                self._swapped[chore.key] = [
                    jax.tree.map(np.asarray, self.programs.small["swap_out"](self.cache, pages))
                    for pages in stage_pages(chore.pages, self.geometry.swap_pages)
                ]
            case SwapPlan():
                parts = stage_pages(chore.pages, self.geometry.swap_pages)
                for pages, content in zip(parts, self._swapped.pop(chore.key), strict=True):
                    self.cache = self.programs.small["swap_in"](self.cache, pages, content)

    def forget(self, key: int) -> None:
        """Drops the host's copy of pages that will not come back."""
        self._swapped.pop(key, None)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of any number of hidden rows: [rows, E] → [rows, V] f32, HEAD_ROWS at a time."""
        targets = np.zeros(hidden.shape[0], np.int32)
        pieces = [np.asarray(logits) for logits, _ in self._head(hidden, targets)]
        return np.concatenate(pieces)[: hidden.shape[0]]

    def score(self, hidden: np.ndarray, targets: np.ndarray) -> StepResult:
        """Log-probabilities of the tokens [rows] i32 that come after hidden rows [rows, E]."""
        pieces = [np.asarray(packed) for _, packed in self._head(hidden, targets)]
        return unpack(np.concatenate(pieces)[: hidden.shape[0]])

    def set_last_tokens(self, tokens: np.ndarray) -> None:
        """Puts tokens [B] i32 into the loop state, in place of drawn ones (teacher forcing)."""
        recent = np.asarray(self.state.recent).copy()
        recent[:, -1] = tokens
        self.state = self.state.replace(recent=jax.device_put(recent, self._device))

    def revive(self) -> None:
        """Makes cache and loop state anew if a step that was interrupted took them along."""
        self._swapped.clear()
        if any(leaf.is_deleted() for leaf in jax.tree.leaves((self.cache, self.state))):
            self.cache, self.state = self.programs.small["init"]()

    def close(self) -> None:
        """Frees the device memory of parameters, cache and state."""
        self._swapped.clear()
        for leaf in jax.tree.leaves((self.params, self.cache, self.state)):
            if not leaf.is_deleted():
                leaf.delete()

    def _head(self, hidden: np.ndarray, targets: np.ndarray) -> Iterator[tuple[jax.Array, Any]]:
        for piece in zip(self._pieces(hidden), self._pieces(targets), strict=True):
            yield self.programs.small["head"](self.params, *piece)

    def _pieces(self, rows: np.ndarray) -> list[np.ndarray]:
        """HEAD_ROWS rows at a time, the last ones padded with zeros."""
        width = self.geometry.head_rows
        missing = [(0, -rows.shape[0] % width)] + [(0, 0)] * (rows.ndim - 1)
        padded = np.pad(rows, missing)
        return [padded[first : first + width] for first in range(0, padded.shape[0], width)]
