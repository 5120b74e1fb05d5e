"""HOST. Where the device memory goes, as numbers and as lines for people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of an engine, before weights are placed.

    temporary_bytes: the most that any program needs beside its arguments.
    free_bytes: what the device had free when the engine was planned.
    """

    weights_bytes: int
    kv_cache_bytes: int
    temporary_bytes: int
    free_bytes: int
    num_programs: int
    num_slots: int
    max_model_len: int
    cached_tokens: int

    @property
    def needed_bytes(self) -> int:
        """Weights, cache and temporaries together."""
        return self.weights_bytes + self.kv_cache_bytes + self.temporary_bytes

    def lines(self) -> list[str]:
        """The plan to be logged."""
        full = self.cached_tokens / self.max_model_len
        return [
            f"weights {_mib(self.weights_bytes)}, KV cache {_mib(self.kv_cache_bytes)}, "
            f"temporaries {_mib(self.temporary_bytes)} of {_mib(self.free_bytes)} free",
            f"{self.num_programs} programs, {self.num_slots} slots, {self.cached_tokens} cached "
            f"tokens: {full:.1f} requests of {self.max_model_len} tokens at once",
        ]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
