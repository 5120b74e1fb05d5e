"""HOST. Counters of an engine, under the names that vLLM's users know (without their prefix)."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineMetrics:
    """Running totals; `snapshot` gives them as numbers by name."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    kv_cache_usage_perc: float = 0.0
    kv_cache_usage_peak_perc: float = 0.0
    model_load_seconds: float = 0.0
    num_programs: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    num_first_tokens: int = 0
    ttft_seconds: float = 0.0

    def see_usage(self, share: float) -> None:
        """Notes the share of pages in use, 0 to 1."""
        self.kv_cache_usage_perc = share
        self.kv_cache_usage_peak_perc = max(self.kv_cache_usage_peak_perc, share)

    def see_first_token(self, seconds: float) -> None:
        """Notes a request's time from arrival to its first token."""
        self.num_first_tokens += 1
        self.ttft_seconds += seconds

    def snapshot(self) -> dict[str, float]:
        """Every number by name; a finish reason is part of its counter's name."""
        separate = ("finished", "num_first_tokens", "ttft_seconds")
        names = [name for name in self.__slots__ if name not in separate]
        numbers = {name: float(getattr(self, name)) for name in names}
        for reason in ("stop", "length", "abort", "error"):
            numbers[f'request_success{{finished_reason="{reason}"}}'] = float(self.finished[reason])
        numbers["time_to_first_token_seconds_count"] = float(self.num_first_tokens)
        numbers["time_to_first_token_seconds_sum"] = self.ttft_seconds
        return numbers
