"""HOST. How one request wants its tokens drawn; names, defaults and rules as in vLLM."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.errors import ConfigError, RequestError

MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
MAX_STOP_IDS = 64


_PLANNED = {
    "presence_penalty": Planned("penalties", (None, 0)),
    "frequency_penalty": Planned("penalties", (None, 0)),
    "repetition_penalty": Planned("penalties", (None, 1)),
    "min_tokens": Planned("a least number of tokens", (None, 0)),
    "prompt_logprobs": Planned("log-probabilities of the prompt"),
    "logit_bias": Planned("a bias on logits"),
    "allowed_token_ids": Planned("a list of allowed tokens"),
    "bad_words": Planned("a list of banned words", (None, (), [])),
    "best_of": Planned("best_of", (None, 1)),
    "use_beam_search": Planned("beam search", (None, False)),
    "structured_outputs": Planned("structured output"),
}


class _NamedOptions(type):
    """Gives a record's constructor our errors for unknown names in place of a TypeError."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        known = [entry.name for entry in fields(cls) if entry.init]  # type: ignore[arg-type]
        return super().__call__(*args, **accepted_options(options, known, _PLANNED))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(metaclass=_NamedOptions):
    """Sampling parameters of one request.

    n: completions a prompt; more than one needs a temperature above 0.
    temperature: 0 is greedy and ignores top_k, top_p and min_p.
    top_p: in (0, 1]. top_k: 0 or -1 is off. min_p: in [0, 1], relative to the likeliest token.
    seed: None draws one from the engine's; the one used is reported.
    stop: strings that end the text and are cut from it. stop_token_ids: ids that end it.
    max_tokens: at least 1, or None for as many as max_model_len leaves.
    logprobs: None, or how many best tokens to report beside the sampled one (at most 20).

    Raises:
        ConfigError: an unknown name, or a value outside its rule (it is a ValueError too).
        UnsupportedError: a name of the contract whose feature is not built yet.
        RequestError: more stop ids or log-probabilities than the ceilings allow (likewise).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    stop_strings: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        object.__setattr__(self, "stop_strings", stops)
        ids = _as_tuple("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        self._check_drawing()
        self._check_ending()
        self._check_ceilings()
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize"):
            _require_bool(name, getattr(self, name))
        _require_bool("skip_special_tokens", self.skip_special_tokens)

    def _check_drawing(self) -> None:
        _require(_is_int(self.n) and self.n >= 1, "n", self.n, "an int of at least 1")
        _require(
            _is_real(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE,
            "temperature",
            self.temperature,
            f"in [0, {MAX_TEMPERATURE}]",
        )
        _require(
            self.n == 1 or self.temperature > 0, "n", self.n, "1 where temperature is 0 (greedy)"
        )
        _require(_is_real(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(_is_int(self.top_k) and self.top_k >= -1, "top_k", self.top_k, "an int, -1 or up")
        _require(_is_real(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**63),
            "seed",
            self.seed,
            "None or an int in [0, 2**63)",
        )

    def _check_ending(self) -> None:
        for text in self.stop_strings:
            _require(isinstance(text, str) and text != "", "stop", text, "non-empty strings")
        for token in self.stop_token_ids:
            _require(_is_int(token) and token >= 0, "stop_token_ids", token, "ids of 0 or more")
        _require(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            self.max_tokens,
            "an int of at least 1, or None (up to max_model_len)",
        )
        _require(
            self.logprobs is None or (_is_int(self.logprobs) and self.logprobs >= 0),
            "logprobs",
            self.logprobs,
            f"None or an int in [0, {MAX_LOGPROBS}]",
        )
        _require(
            self.detokenize or not self.stop_strings,
            "detokenize",
            self.detokenize,
            "True where stop strings are given: they are looked for in the text",
        )

    def _check_ceilings(self) -> None:
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            raise RequestError(
                f"SamplingParams.stop_token_ids has {len(self.stop_token_ids)} ids, "
                f"{MAX_STOP_IDS} are allowed; pass fewer"
            )
        if (self.logprobs or 0) > MAX_LOGPROBS:
            raise RequestError(
                f"SamplingParams.logprobs={self.logprobs}: at most {MAX_LOGPROBS} are reported; "
                "ask for fewer"
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_tuple(name: str, values: object) -> tuple:
    if values is None:
        return ()
    _require(isinstance(values, Iterable), name, values, "a list")
    return tuple(values)  # type: ignore[arg-type]


def _require_bool(name: str, value: object) -> None:
    _require(isinstance(value, bool), name, value, "True or False")


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ConfigError(f"SamplingParams.{name}={value!r}: must be {rule}; pass another value")
