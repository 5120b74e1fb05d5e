"""A device that computes nothing: a position of a page holds what was there to compute from.

That is the digest of all tokens up to that position, so that pages of equal prefixes are equal
whoever wrote them. Every position that attention would read must hold what the request's own tokens
demand, whatever was copied, swapped, shared or freed before. The token drawn follows from the
digest, the seed and the sample index: any schedule must give each request what it gets alone.
"""

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import (
    PROMPT_FLAG,
    RECENT_TOKENS,
    Chore,
    CopyPlan,
    DecodePlan,
    PrefillPlan,
    SeatPlan,
    StepResult,
    SwapPlan,
    VerifyPlan,
    VerifyResult,
)
from jaxinfer.scheduler.planning import Step, StepRow
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler

STRIDE = 100
VOCAB = 1000
EOS = 1
_MASK = (1 << 62) - 1


def prompt_of(order: int, length: int) -> list[int]:
    """A prompt that shares no token with that of another order below 10."""
    return [order * STRIDE + position for position in range(length)]


def mixed(before: int, value: int) -> int:
    """A number in [0, 2**62) that two different pairs hardly ever share."""
    mixing = (before ^ (value * 0x9E3779B97F4A7C15 + 0x7F4A7C15)) & _MASK
    mixing = mixing * 0xBF58476D1CE4E5B9 & _MASK
    return mixing ^ mixing >> 29


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn after a prefix: a token of 1..num_tokens, each as likely.

    error_one_in: so often the logits are no numbers; 0 is never.
    """

    num_tokens: int = 15
    error_one_in: int = 0

    def token(self, digest: int, seed: int, sample_index: int) -> tuple[int, bool]:
        """The token and whether its logits are finite."""
        value = mixed(mixed(digest, seed), sample_index)
        is_error = self.error_one_in and (value >> 20) % self.error_one_in == 0
        return value % self.num_tokens + 1, not is_error


@dataclass(frozen=True, kw_only=True)
class Alone:
    """All that a request draws when nothing else runs, on beyond its end.

    digests: what the positions of its pages must hold. output_ids, finish_reason: its end included.
    """

    tokens: list[int]
    digests: np.ndarray
    output_ids: list[int]
    finish_reason: str


def run_alone(request: Request, drawing: Drawing) -> Alone:
    """The reference: one token after another, no pages, no steps."""
    tokens, digests, before = list(request.prompt_ids), [], 0
    for token in tokens:
        digests.append(before := mixed(before, token))
    end, reason = request.max_new_tokens, "length"
    for count in range(request.max_new_tokens):
        token, is_finite = drawing.token(before, request.seed, request.sample_index)
        if end == request.max_new_tokens and reason == "length":
            if not is_finite:
                end, reason = count, "error"
            elif token in request.end_ids and count + 1 > request.params.min_tokens:
                end, reason = count + 1, "stop"
        tokens.append(token)
        digests.append(before := mixed(before, token))
    length = len(request.prompt_ids)
    return Alone(
        tokens=tokens,
        digests=np.array(digests, np.int64),
        output_ids=tokens[length : length + end],
        finish_reason=reason,
    )


class FakeDevice:
    """Runs chores and steps in the order in which they are launched.

    draft_share: of the tokens that it drafts itself, those that come.
    """

    def __init__(
        self, geometry: Geometry, drawing: Drawing | None = None, *, draft_share: float = 1.0
    ) -> None:
        self.geometry = geometry
        self.draft_share = draft_share
        self.drawing = drawing or Drawing()
        self.pages = [np.full((n, geometry.page_tokens), -1, np.int64) for n in geometry.num_pages]
        self.swapped: dict[int, list[np.ndarray]] = {}
        self.chunks: dict[int, list[tuple[int, int]]] = {}
        self.decoded: dict[int, list[int]] = {}
        self._recent = np.full((geometry.num_slots, RECENT_TOKENS), -9, np.int64)
        self._seen: dict[int, np.ndarray] = {}
        self._alone: dict[Request, Alone] = {}

    def step(self, scheduler: Scheduler) -> tuple[Step, list[Request]] | None:
        """Schedules, runs, updates and finishes, as the engine does: the step and who came."""
        step = scheduler.schedule()
        if step is None:
            return None
        came = list(scheduler.update(step, self.run(step)))
        for request in came:
            if request.is_finished:
                scheduler.finish(request)
                self.forget(request.order)
        return step, came

    def run(self, step: Step) -> StepResult | VerifyResult:
        """Does the chores and the step."""
        for chore in step.chores:
            self._do(chore)
        plan, rows = step.plan, step.rows
        if isinstance(plan, PrefillPlan):
            self._check_prefill(plan, rows)
        else:
            self._check_decode(plan, rows)
        if isinstance(plan, VerifyPlan) and plan.num_draft_steps:
            assert plan.num_draft_steps == plan.num_drafts.max() and not plan.drafts.any()
            rows = tuple(replace(row, drafts=self._drafted(row)) for row in rows)
        for place, row in enumerate(rows):  # all rows write before any reads
            self._write(plan.tables[:, place], row)
        for place, row in enumerate(rows):
            self._read(plan.tables[:, place], row)
        if isinstance(plan, VerifyPlan):
            return self._verify(plan, rows)
        drawn = empty_result(plan.sampling.seeds.shape[0])
        for place, row in enumerate(rows):
            if row.draws:
                drawn.tokens[place], drawn.finite[place] = self._draw(plan, place, row, 0)
                self._take(row, [int(drawn.tokens[place])])
        return drawn

    def alone(self, request: Request) -> Alone:
        """What the request draws alone, computed once."""
        if request not in self._alone:
            self._alone[request] = run_alone(request, self.drawing)
        return self._alone[request]

    def forget(self, key: int) -> None:
        """Drops the host's copy of pages that will not come back."""
        self.swapped.pop(key, None)

    def _drafted(self, row: StepRow) -> tuple[int, ...]:
        """What a model would draft after the row's token: mostly what comes."""
        coming = self.alone(row.request).tokens[row.end : row.end + len(row.drafts)]
        random = Random(f"{row.request.order} {row.end}")
        return tuple(one + (random.random() >= self.draft_share) for one in coming)

    # --- chores -------------------------------------------------------------------------------

    def _do(self, chore: Chore) -> None:
        match chore:
            case SeatPlan():
                self._recent[chore.slot] = chore.recent
                self._seen[chore.slot] = chore.seen.copy()
            case CopyPlan():
                sides = zip(self.pages, chore.sources, chore.targets, strict=True)
                for pages, (source,), (target,) in sides:
                    assert source and target, "the null page is copied"
                    pages[target] = pages[source]
            case SwapPlan(is_out=True):
                assert chore.key not in self.swapped, "a copy on the host is overwritten"
                self.swapped[chore.key] = [
                    pages[list(held)].copy()
                    for pages, held in zip(self.pages, chore.pages, strict=True)
                ]
            case SwapPlan():
                content = self.swapped.pop(chore.key)
                for pages, held, kept in zip(self.pages, chore.pages, content, strict=True):
                    assert all(held), "content is written to the null page"
                    pages[list(held)] = kept

    # --- steps --------------------------------------------------------------------------------

    def _check_prefill(self, plan: PrefillPlan, rows: tuple[StepRow, ...]) -> None:
        made = self.geometry
        assert plan.tokens.shape == (len(rows), made.chunk_tokens)
        assert len(rows) in made.prefill_rows
        for place, row in enumerate(rows):
            tokens = self.alone(row.request).tokens[row.start : row.end]
            assert plan.tokens[place].tolist() == tokens + [0] * (made.chunk_tokens - len(tokens))
            assert plan.starts[place] == row.start and plan.lengths[place] == len(tokens) > 0
            assert row.start % made.chunk_tokens == 0, "a chunk off the grid"
            assert plan.slots[place] == (row.request.slot if row.draws else made.num_slots)
            self.chunks.setdefault(row.request.order, []).append((row.start, len(tokens)))

    def _check_decode(self, plan: DecodePlan | VerifyPlan, rows: tuple[StepRow, ...]) -> None:
        made, count = self.geometry, len(rows)
        is_verify = isinstance(plan, VerifyPlan)
        widths = made.verify_widths if is_verify else made.decode_widths
        assert plan.slots.size == plan.positions.size == min(w for w in widths if w >= count)
        assert (plan.slots[count:] == made.num_slots).all() and not plan.tables[:, count:].any()
        assert (plan.sampling.num_logprobs[count:] == -1).all()
        assert not plan.sampling.temperature[count:].any()
        assert len({row.request.slot for row in rows}) == count, "a slot has two rows"
        for place, row in enumerate(rows):
            assert row.draws and row.end == row.start + 1 == plan.positions[place] + 1
            assert plan.slots[place] == row.request.slot and (is_verify or not row.drafts)
            token = self.alone(row.request).tokens[row.start]
            assert self._recent[row.request.slot, -1] == token, "another token goes in"
            self.decoded.setdefault(row.request.order, []).append(row.start)
            if isinstance(plan, VerifyPlan):
                drafts = list(row.drafts)
                assert plan.num_drafts[place] == len(drafts) <= made.draft_tokens
                padding = [0] * (made.draft_tokens - len(drafts))
                assert plan.drafts[place].tolist() == drafts + padding

    def _digests(self, row: StepRow) -> np.ndarray:
        """What the pages hold up to the row's last token: its own tokens, then its drafts."""
        digests = self.alone(row.request).digests[: row.end].tolist()
        for draft in row.drafts:
            digests.append(mixed(digests[-1], draft))
        return np.array(digests, np.int64)

    def _write(self, tables: np.ndarray, row: StepRow) -> None:
        digests = self._digests(row)[row.start :]
        positions = np.arange(row.start, row.start + digests.size)
        columns, places = np.divmod(positions, self.geometry.page_tokens)
        for pages, table in zip(self.pages, tables, strict=True):
            held = table[columns]
            assert held.all(), "a token would be written to the null page"
            pages[held, places] = digests

    def _read(self, tables: np.ndarray, row: StepRow) -> None:
        digests = self._digests(row)
        groups = zip(self.pages, tables, self.geometry.group_windows, strict=True)
        for pages, table, window in groups:
            first = max(0, row.start - window + 1) if window else 0
            positions = np.arange(first, digests.size)
            columns, places = np.divmod(positions, self.geometry.page_tokens)
            found = pages[table[columns], places]
            assert (found == digests[first:]).all(), "what is read is not its own"

    def _verify(self, plan: VerifyPlan, rows: tuple[StepRow, ...]) -> VerifyResult:
        """Draws after the last token and each draft; drafts stand up to the first that is wrong."""
        width, each = plan.slots.size, self.geometry.draft_tokens + 1
        drawn, accepted = empty_result(width * each), np.zeros(width, np.int32)
        for place, row in enumerate(rows):
            tokens, stands = [], True
            for index in range(len(row.drafts) + 1):
                token, is_finite = self._draw(plan, place, row, index)
                drawn.tokens[place * each + index] = token
                drawn.finite[place * each + index] = is_finite
                tokens += [token] * stands
                stands = stands and index < len(row.drafts) and token == row.drafts[index]
            accepted[place] = len(tokens) - 1
            self._take(row, tokens)
        return VerifyResult(draws=drawn, num_accepted=accepted)

    def _draw(
        self, plan: PrefillPlan | DecodePlan | VerifyPlan, place: int, row: StepRow, index: int
    ) -> tuple[int, bool]:
        """What comes after the row's token and `index` drafts."""
        slot, sampling = row.request.slot, plan.sampling
        assert slot is not None
        if sampling.seated[place] and not index:
            self._check_seat(slot, row)
        low, high = sampling.seeds[place].tolist()
        column, position = divmod(row.end - 1 + index, self.geometry.page_tokens)
        digest = int(self.pages[0][plan.tables[0, place, column], position])
        return self.drawing.token(digest, low | high << 32, int(sampling.sample_index[place]))

    def _take(self, row: StepRow, tokens: list[int]) -> None:
        slot = row.request.slot
        assert slot is not None
        for token in tokens:
            self._recent[slot] = [*self._recent[slot, 1:], token]
            if slot in self._seen:
                self._seen[slot][token] += 1

    def _check_seat(self, slot: int, row: StepRow) -> None:
        """What draws with penalties or limits rests on: the last tokens and all counts."""
        tokens, length = self.alone(row.request).tokens, len(row.request.prompt_ids)
        known = ([-2] * RECENT_TOKENS + tokens[: row.end])[-RECENT_TOKENS:]
        assert self._recent[slot].tolist() == known, "not its last tokens"
        seen = np.bincount(tokens[length : row.end], minlength=self._seen[slot].size)
        seen[tokens[:length]] += PROMPT_FLAG
        assert (self._seen[slot] == seen).all(), "not its own counts"


def empty_result(rows: int) -> StepResult:
    """Rows that drew token 0."""
    return StepResult(
        tokens=np.zeros(rows, np.int32),
        finite=np.ones(rows, bool),
        logprobs=np.full(rows, -0.5, np.float32),
        ranks=np.ones(rows, np.int32),
        best_ids=np.tile(np.arange(20, dtype=np.int32), (rows, 1)),
        best_logprobs=np.tile(-np.arange(20, dtype=np.float32), (rows, 1)),
    )
