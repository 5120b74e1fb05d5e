"""HOST. How tokens are drafted ahead and when; values checked, nothing decided."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.errors import ConfigError, UnsupportedError

MAX_DRAFT_TOKENS = 512
_PLANNED = {"model": Planned("drafting with a second model")}
_PLANNED_METHODS = ("draft_model", "self_draft", "eagle", "medusa", "mlp_speculator")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding; names as in vLLM where it has them.

    method: "ngram" drafts what followed the last tokens when they last occurred.
    num_speculative_tokens: J, the most tokens drafted for a request in a step.
    prompt_lookup_max, prompt_lookup_min: lengths of the n-grams, the longest is tried first.
    tokens_by_running: pairs (up to so many running requests, draft so many tokens), ascending;
        above the last pair nothing is drafted. None decides: it pays while few requests run.
    adaptive: a request whose drafts are not accepted drafts only now and then.
    """

    method: Literal["ngram"] = "ngram"
    num_speculative_tokens: int = 5
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    tokens_by_running: tuple[tuple[int, int], ...] | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ConfigError(f"speculative_config method={self.method!r} must be 'ngram'")
        for name in ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"):
            _count(name, getattr(self, name), least=1, most=MAX_DRAFT_TOKENS)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"speculative_config prompt_lookup_min={self.prompt_lookup_min} is above "
                f"prompt_lookup_max={self.prompt_lookup_max}; lower it"
            )
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"speculative_config adaptive={self.adaptive!r} must be a bool")
        if self.tokens_by_running is not None:
            object.__setattr__(self, "tokens_by_running", _table(self.tokens_by_running))
            self._check_table(self.tokens_by_running)

    def _check_table(self, table: tuple[tuple[int, int], ...]) -> None:
        bounds = [running for running, _ in table]
        if bounds != sorted(set(bounds)):
            raise ConfigError(
                f"speculative_config tokens_by_running={table!r}: the numbers of running requests "
                "must ascend"
            )
        for running, tokens in table:
            _count("tokens_by_running", running, least=1, most=None)
            _count("tokens_by_running", tokens, least=0, most=self.num_speculative_tokens)


def speculative_config(given: Any) -> SpeculativeConfig | None:
    """The record of a mapping, of a record, or of None.

    Raises:
        UnsupportedError: a method that is not built yet. ConfigError: a wrong name or value.
    """
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"speculative_config={given!r} must be a mapping such as {{'method': 'ngram'}}, or None"
        )
    method = given.get("method")
    if isinstance(method, str) and method in _PLANNED_METHODS:
        raise UnsupportedError(
            f"speculative_config method={method!r} is not built yet; use 'ngram'"
        )
    known = [entry.name for entry in fields(SpeculativeConfig)]
    return SpeculativeConfig(**accepted_options(given, known, _PLANNED))


def _table(value: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((running, tokens) for running, tokens in pairs)
    except (TypeError, ValueError):
        raise ConfigError(
            f"speculative_config tokens_by_running={value!r} must be pairs (running, tokens), such "
            "as ((4, 5), (8, 2))"
        ) from None


def _count(name: str, value: object, *, least: int, most: int | None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < least or (most is not None and value > most):  # type: ignore[operator]
        top = "" if most is None else f" and at most {most}"
        raise ConfigError(
            f"speculative_config {name}={value!r} must be an int of at least {least}{top}"
        )
