"""HOST. What a batch job measures, in memory that does not grow with it.

Knows numbers that it is told; reads no clock.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxinfer.engine.outputs import RequestOutput

_PERCENTILES = (50, 90, 95, 99)
_STEP = 1.02  # a bin reaches this far above its lower bound: percentiles are right within 1 %

_TOTALS = ("prompt_tokens", "completion_tokens", "cached_tokens", "num_preemptions")
_DISTRIBUTIONS = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "prompt_len", "completion_len")

# What a summary has of an engine's metrics, and which of them are the highest of several engines.
_ENGINE_FACTS = (
    *("model_load_seconds", "compile_seconds", "num_compiles", "num_programs"),
    *("kv_cache_usage_peak_perc", "prefix_cache_queries", "prefix_cache_hits"),
    *("num_preemptions", "prefill_seconds", "decode_seconds", "spec_decode_num_draft_tokens"),
    *("spec_decode_num_accepted_tokens",),
)
_HIGHEST = ("kv_cache_usage_peak_perc", "num_programs")


def engine_facts(metrics: Mapping[str, float]) -> dict[str, float]:
    """What a summary has of an engine's metrics."""
    return {name: metrics[name] for name in _ENGINE_FACTS if name in metrics}


def joined_facts(engines: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Facts of several engines as one: sums, and of what is no sum the highest."""
    known = [name for name in _ENGINE_FACTS if any(name in one for one in engines)]
    return {
        name: (max if name in _HIGHEST else sum)([one.get(name, 0.0) for one in engines])
        for name in known
    }


class Distribution:
    """Counts of positive numbers in bins of 2 %; percentiles are the middle of their bin."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._num_zeros = 0
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Takes in one number; what is not above 0 counts as 0."""
        self._sum += max(0.0, value)
        if value > 0:
            self._bins[math.floor(math.log(value) / math.log(_STEP))] += 1
        else:
            self._num_zeros += 1

    def summary(self) -> dict[str, float] | None:
        """Count, mean and percentiles; None if there is no number."""
        count = self._num_zeros + sum(self._bins.values())
        if not count:
            return None
        percentiles = {f"p{one}": self._percentile(one / 100 * count) for one in _PERCENTILES}
        return {"count": count, "mean": self._sum / count, **percentiles}

    def merge(self, other: Mapping[str, Any]) -> None:
        """Takes in what `state` of another gave."""
        self._num_zeros += other["zeros"]
        self._sum += other["sum"]
        self._bins.update({int(key): count for key, count in other["bins"].items()})

    def state(self) -> dict[str, Any]:
        """Everything of it as JSON values, for `merge`."""
        bins = {str(key): count for key, count in self._bins.items()}
        return {"zeros": self._num_zeros, "sum": self._sum, "bins": bins}

    def _percentile(self, rank: float) -> float:
        reached = self._num_zeros
        if reached >= rank:
            return 0.0
        for key in sorted(self._bins):
            reached += self._bins[key]
            if reached >= rank:
                return _STEP ** (key + 0.5)
        raise AssertionError("a rank beyond the last number")


def _distribution() -> Any:
    return field(default_factory=Distribution)


@dataclass(slots=True)
class Statistics:
    """Of the requests that this run served."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_preemptions: int = 0
    ttft_s: Distribution = _distribution()
    tpot_s: Distribution = _distribution()
    e2e_s: Distribution = _distribution()
    queue_s: Distribution = _distribution()
    prompt_len: Distribution = _distribution()
    completion_len: Distribution = _distribution()
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def observe(self, output: RequestOutput) -> None:
        """Takes in a request that was served."""
        metrics = output.metrics
        self.prompt_tokens += metrics.num_prompt_tokens
        self.completion_tokens += metrics.num_generation_tokens
        self.cached_tokens += metrics.num_cached_tokens
        self.num_preemptions += metrics.num_preemptions
        for distribution, seconds in (
            (self.ttft_s, metrics.time_to_first_token_s),
            (self.tpot_s, metrics.time_per_output_token_s),
            (self.e2e_s, metrics.e2e_latency_s),
            (self.queue_s, metrics.queue_time_s),
        ):
            if seconds is not None:
                distribution.observe(seconds)
        self.prompt_len.observe(metrics.num_prompt_tokens)
        for one in output.outputs:
            self.completion_len.observe(len(one.token_ids))
            self.finish_reasons[str(one.finish_reason)] += 1

    def state(self) -> dict[str, Any]:
        """Everything of it as JSON values, for `merge`."""
        return {
            **{name: getattr(self, name) for name in _TOTALS},
            **{name: getattr(self, name).state() for name in _DISTRIBUTIONS},
            "finish_reasons": dict(self.finish_reasons),
        }

    def merge(self, other: Mapping[str, Any]) -> None:
        """Takes in what `state` of another gave."""
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + other[name])
        for name in _DISTRIBUTIONS:
            getattr(self, name).merge(other[name])
        self.finish_reasons.update(other["finish_reasons"])

    def summary(self, seconds: float) -> dict[str, Any]:
        """Totals, rates over `seconds`, and distributions."""
        tokens = self.prompt_tokens + self.completion_tokens
        return {
            "seconds": seconds,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "preemptions": self.num_preemptions,
            "prompt_tokens_per_s": self.prompt_tokens / seconds if seconds else None,
            "completion_tokens_per_s": self.completion_tokens / seconds if seconds else None,
            "seconds_per_1000_tokens": 1000 * seconds / tokens if tokens else None,
            "seconds_per_1000_completion_tokens": (
                1000 * seconds / self.completion_tokens if self.completion_tokens else None
            ),
            "finish_reasons": dict(self.finish_reasons),
            **{name: getattr(self, name).summary() for name in _DISTRIBUTIONS},
        }
