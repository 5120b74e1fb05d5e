"""HOST. How tokens are drafted ahead and when; values checked, nothing decided."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike, fspath
from typing import Any, Literal

from jaxinfer.config.option_names import accepted_options
from jaxinfer.config.quantization import Quantization, quantization_from
from jaxinfer.errors import ConfigError, UnsupportedError

MAX_DRAFT_TOKENS = 512
DEFAULT_RUNNING = 4  # requests in a step up to which drafting pays where nothing was set
METHODS = ("ngram", "draft_model", "self")
_PLANNED_METHODS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp")
# Options that only some methods look at.
_ONLY_FOR = {
    "model": ("draft_model",),
    "quantization": ("draft_model", "self"),
    "num_layers": ("self",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding; names as in vLLM where it has them.

    method: "ngram" drafts what followed the last tokens when they last occurred; "draft_model" asks
        another model of the same vocabulary; "self" asks this one, cheaper than it is.
    num_speculative_tokens: J, the most tokens drafted for a request in a step.
    model: of "draft_model": folder, GGUF file, hub id or demo name.
    quantization: of what drafts: "int8", "int4" or "fp8", or a mapping of `Quantization`'s fields.
    num_layers: of "self": only so many layers draft, the first ones.
    prompt_lookup_max, prompt_lookup_min: lengths of the n-grams, the longest is tried first.
    tokens_by_running: pairs (up to so many requests in a step, draft so many tokens), ascending;
        above the last pair nothing is drafted. None decides: it pays while few requests run.
    adaptive: a request whose drafts are not accepted drafts only now and then.
    """

    method: Literal["ngram", "draft_model", "self"] = "ngram"
    num_speculative_tokens: int = 5
    model: str | None = None
    quantization: Quantization | None = None
    num_layers: int | None = None
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2
    tokens_by_running: tuple[tuple[int, int], ...] | None = None
    adaptive: bool = True

    @property
    def drafting_table(self) -> tuple[tuple[int, int], ...]:
        """`tokens_by_running`, decided where it was not set."""
        if self.tokens_by_running is None:
            return ((DEFAULT_RUNNING, self.num_speculative_tokens),)
        return self.tokens_by_running

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"speculative_config method={self.method!r} must be one of "
                f"{', '.join(map(repr, METHODS))}"
            )
        self._check_model()
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

    @property
    def has_model(self) -> bool:
        """True where a model drafts, on the device; False where tokens are looked up."""
        return self.method != "ngram"

    def _check_model(self) -> None:
        for name, methods in _ONLY_FOR.items():
            if getattr(self, name) is not None and self.method not in methods:
                raise ConfigError(
                    f"speculative_config {name}={getattr(self, name)!r} is for method "
                    f"{' or '.join(map(repr, methods))}, not {self.method!r}; leave it out"
                )
        object.__setattr__(self, "quantization", quantization_from(self.quantization))
        if self.method == "draft_model":
            if not self.model or not isinstance(self.model, str | PathLike):
                raise ConfigError(
                    f"speculative_config model={self.model!r} must name the draft model: a folder, "
                    "a GGUF file, a hub id or a demo name"
                )
            object.__setattr__(self, "model", fspath(self.model))
        if self.num_layers is not None:
            _count("num_layers", self.num_layers, least=1, most=None)
        if self.method == "self" and self.num_layers is None and self.quantization is None:
            raise ConfigError(
                "speculative_config method='self' needs something that makes drafts cheaper than "
                "the model: set quantization (such as 'int4') or num_layers"
            )

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
            f"speculative_config method={method!r} is not built yet; use one of "
            f"{', '.join(map(repr, METHODS))}"
        )
    known = [entry.name for entry in fields(SpeculativeConfig)]
    accepted = accepted_options(given, known, {})
    if "method" not in accepted and "model" in accepted:
        accepted["method"] = "draft_model"
    return SpeculativeConfig(**accepted)


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
