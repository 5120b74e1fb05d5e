"""HOST. What an engine counts, under the names that vLLM's users know (without their prefix).

Knows times and counts that it is told; reads no clock, and knows neither steps nor pages.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from jaxinfer.scheduler.request import Request

# Upper bounds in seconds: vLLM's, with finer ones below for models that are quick.
_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS = (
    *(0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """How often a time fell between which bounds, and the sum of all."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)  # the last: beyond every bound
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Notes one time."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def numbers(self, name: str) -> dict[str, float]:
        """As Prometheus has them: `_bucket{le="…"}` counts all times up to that bound."""
        numbers, reached = {}, 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            reached += count
            numbers[f'{name}_bucket{{le="{bound}"}}'] = float(reached)
        return numbers | {f"{name}_sum": self._sum, f"{name}_count": float(reached)}


def _histogram(bounds: Sequence[float]) -> Histogram:
    return field(default_factory=lambda: Histogram(bounds))


@dataclass(slots=True, kw_only=True)
class EngineMetrics:
    """Running totals; `snapshot` gives them as numbers by name.

    prefill_seconds, decode_seconds: from the launch of such steps until they were read.
    prefix_cache_queries, prefix_cache_hits: prompt tokens looked up in the prefix cache, and found.
    finished: requests by the reason they ended for, refused ones with "error".
    time_to_first_token_seconds: from arrival; of every request that came so far.
    inter_token_latency_seconds: between one token of a request and its next, as the host sees them.
    The other histograms have one entry a request that ended by itself ("stop" or "length"):
    time_per_output_token_seconds: (end to end - TTFT) / (tokens - 1), of two tokens or more.
    e2e_request_latency_seconds: arrival to end. request_queue_time_seconds: arrival to admission.
    request_prefill_time_seconds: admission to first token. request_decode_time_seconds: from there.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    kv_cache_usage_perc: float = 0.0
    kv_cache_usage_peak_perc: float = 0.0
    model_load_seconds: float = 0.0
    num_programs: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    time_to_first_token_seconds: Histogram = _histogram(_FIRST_TOKEN_BOUNDS)
    inter_token_latency_seconds: Histogram = _histogram(_TOKEN_BOUNDS)
    time_per_output_token_seconds: Histogram = _histogram(_TOKEN_BOUNDS)
    e2e_request_latency_seconds: Histogram = _histogram(_REQUEST_BOUNDS)
    request_queue_time_seconds: Histogram = _histogram(_REQUEST_BOUNDS)
    request_prefill_time_seconds: Histogram = _histogram(_REQUEST_BOUNDS)
    request_decode_time_seconds: Histogram = _histogram(_REQUEST_BOUNDS)

    def see_usage(self, share: float) -> None:
        """Notes the share of pages in use, 0 to 1."""
        self.kv_cache_usage_perc = share
        self.kv_cache_usage_peak_perc = max(self.kv_cache_usage_peak_perc, share)

    def see_queues(self, *, num_running: int, num_waiting: int) -> None:
        """Notes how many requests have a slot and how many wait for one."""
        self.num_requests_running = num_running
        self.num_requests_waiting = num_waiting

    def see_prefix_lookup(self, *, num_tokens: int, num_hits: int) -> None:
        """Notes a prompt that was looked up in the prefix cache, and how much of it was there."""
        self.prefix_cache_queries += num_tokens
        self.prefix_cache_hits += num_hits

    def see_first_token(self, seconds: float) -> None:
        """Notes a request's time from arrival to its first token."""
        self.time_to_first_token_seconds.observe(seconds)

    def see_next_token(self, gap_seconds: float) -> None:
        """Notes the time between a request's last token and the one before."""
        self.inter_token_latency_seconds.observe(gap_seconds)

    def see_finished(self, request: Request) -> None:
        """Notes a request that has its finish reason; its times are read where it was served."""
        reason = request.finish_reason or "abort"
        self.finished[reason] += 1
        arrived, admitted = request.arrival_s, request.admitted_s
        first, end = request.first_token_s, request.finished_s
        if reason not in ("stop", "length") or admitted is None or first is None or end is None:
            return
        self.e2e_request_latency_seconds.observe(end - arrived)
        self.request_queue_time_seconds.observe(admitted - arrived)
        self.request_prefill_time_seconds.observe(first - admitted)
        self.request_decode_time_seconds.observe(end - first)
        if len(request.output_ids) > 1:
            gaps = len(request.output_ids) - 1
            self.time_per_output_token_seconds.observe((end - first) / gaps)

    def snapshot(self) -> dict[str, float]:
        """Every number by name; a finish reason or a bucket's bound is part of the name."""
        numbers: dict[str, float] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Histogram):
                numbers |= value.numbers(entry.name)
            elif entry.name != "finished":
                numbers[entry.name] = float(value)
        for reason in ("stop", "length", "abort", "error"):
            numbers[f'request_success{{finished_reason="{reason}"}}'] = float(self.finished[reason])
        return numbers
