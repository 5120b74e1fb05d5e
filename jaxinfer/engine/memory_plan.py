"""HOST. Where the device memory goes, as numbers and as lines for people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of an engine, before weights are placed.

    state_bytes: what the loop keeps on the device between steps (tokens, counts for penalties).
    temporary_bytes: the most that any program needs beside its arguments.
    free_bytes: what the device had free when the engine was planned.
    """

    weights_bytes: int
    kv_cache_bytes: int
    state_bytes: int = 0
    temporary_bytes: int
    free_bytes: int
    num_programs: int
    num_slots: int
    max_model_len: int
    cached_tokens: int

    @property
    def needed_bytes(self) -> int:
        """Weights, cache, state and temporaries together."""
        return self.weights_bytes + self.kv_cache_bytes + self.state_bytes + self.temporary_bytes

    @property
    def left_bytes(self) -> int:
        """What stays free; negative where it does not fit."""
        return self.free_bytes - self.needed_bytes

    def lines(self) -> list[str]:
        """The plan, to be logged at the start and quoted where memory does not suffice."""
        full = self.cached_tokens / self.max_model_len
        outcome = "left" if self.left_bytes >= 0 else "missing"
        return [
            f"weights {_mib(self.weights_bytes)}, KV cache {_mib(self.kv_cache_bytes)}, "
            f"loop state {_mib(self.state_bytes)}, temporaries {_mib(self.temporary_bytes)} of "
            f"{_mib(self.free_bytes)} free: {_mib(abs(self.left_bytes))} {outcome}",
            f"{self.num_programs} programs, {self.num_slots} slots, {self.cached_tokens} cached "
            f"tokens: {full:.1f} requests of {self.max_model_len} tokens at once",
        ]


def _mib(count: int) -> str:
    """Whole MiB, or tenths where they matter."""
    return f"{count / 2**20:,.{0 if count >= 10 * 2**20 or count == 0 else 1}f} MiB"
