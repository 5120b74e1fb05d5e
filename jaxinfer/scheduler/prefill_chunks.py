"""HOST. The chunks of one prefill step while they are gathered.

Prefill programs have one or a few rows (R); chunks beyond the largest R that was reached are left
for the next step. The prefix cache notes only what certainly runs, and at once: a request admitted
later in the same step may share it, since a step writes all its pages before it reads any.
"""

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.planning import StepRow, slot_of
from jaxinfer.scheduler.request import Request


class PrefillChunks:
    """Rows of a prefill step, filled request by request."""

    def __init__(self, geometry: Geometry, ask: EngineConfig, admission: Admission) -> None:
        self._geometry = geometry
        self._admission = admission
        self._rows: list[StepRow] = []
        self._num_certain = 0  # rows that will run
        self._others: set[Request] = set()  # that are not latency-sensitive
        threshold = ask.long_prefill_token_threshold
        most = geometry.prefill_rows[-1]
        self._most_per_prompt = max(1, threshold // geometry.chunk_tokens) if threshold else most

    @property
    def has_room(self) -> bool:
        """True while the largest program has a row left."""
        return len(self._rows) < self._geometry.prefill_rows[-1]

    def may_add(self, request: Request, most_others: int | None) -> bool:
        """False where the step has enough requests beside the latency-sensitive ones."""
        if most_others is None or request.options.latency_sensitive:
            return True
        return len(self._others) < most_others

    def add(self, request: Request) -> None:
        """The next chunks of a request that has a slot: as many as there is room for."""
        start = request.num_scheduled
        for begin in range(start, request.prefill_end, self._geometry.chunk_tokens):
            if not self.has_room or begin >= start + self._most_tokens:
                return
            end = min(begin + self._geometry.chunk_tokens, request.prefill_end)
            # From the request's first chunk of this step: that one still reads its window.
            extended = self._admission.pages.extend(slot_of(request), start, end)
            assert extended, "the pages of a prompt are promised when it is admitted"
            draws = end == request.prefill_end and request.num_to_draw > 0
            self._rows.append(StepRow(request=request, start=begin, end=end, draws=draws))
            if not request.options.latency_sensitive:
                self._others.add(request)
            self._note_certain()

    def rows(self) -> list[StepRow]:
        """As many as one of the programs has."""
        return self._rows[: self._num_certain]

    @property
    def _most_tokens(self) -> int:
        return self._most_per_prompt * self._geometry.chunk_tokens

    def _note_certain(self) -> None:
        if len(self._rows) not in self._geometry.prefill_rows:
            return
        for row in self._rows[self._num_certain :]:
            self._admission.register(row.request, row.end)
        self._num_certain = len(self._rows)
