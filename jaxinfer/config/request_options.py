"""HOST. How one request is to be served, beside what it wants drawn (`SamplingParams`)."""

import sys
from dataclasses import dataclass

from jaxinfer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Service of one request; nothing here changes its tokens.

    priority: lower is served first where `scheduling_policy` is "priority".
    latency_sensitive: admitted ahead of others; see `latency_max_num_seqs` of `EngineConfig`.
    timeout_s: seconds from arrival after which it is aborted; None is never.
    use_prefix_cache: read pages that an earlier request left, and leave its own.
    """

    priority: int = 0
    latency_sensitive: bool = False
    timeout_s: float | None = None
    use_prefix_cache: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise ConfigError(f"priority={self.priority!r} must be an int; lower is served first")
        for name in ("latency_sensitive", "use_prefix_cache"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.timeout_s is not None and not _is_positive(self.timeout_s):
            raise ConfigError(
                f"timeout_s={self.timeout_s!r} must be None (never) or a number of seconds above 0"
            )


def _is_positive(value: object) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and 0 < value <= sys.float_info.max  # type: ignore[operator]
