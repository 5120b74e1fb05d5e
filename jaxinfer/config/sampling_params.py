"""HOST. How one request wants its tokens drawn; names, defaults and rules as in vLLM."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.config.step_plan import MAX_BAD_WORDS, MAX_BIAS_IDS
from jaxinfer.errors import ConfigError, RequestError

MAX_COMPLETIONS = 65_536  # a request for each is made when the prompt is taken in
MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
MAX_STOP_IDS = 64
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
_MAX_REAL = sys.float_info.max  # an int of any length can be compared with it

_NUMBERS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logprobs", "prompt_logprobs"),
)

_PLANNED = {
    "best_of": Planned("best_of", (None, 1)),
    "use_beam_search": Planned("beam search", (None, False)),
    "structured_outputs": Planned("structured output"),
    "guided_decoding": Planned("structured output"),
    "lora_request": Planned("LoRA"),
}


class _NamedOptions(type):
    """Gives a record's constructor our errors for unknown names in place of a TypeError."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        known = [entry.name for entry in fields(cls) if entry.init]  # type: ignore[arg-type]
        return super().__call__(*args, **accepted_options(options, known, _PLANNED))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(metaclass=_NamedOptions):
    """Sampling parameters of one request.

    n: completions a prompt, at most 65,536; more than one needs a temperature above 0.
    temperature: 0 is greedy and ignores top_k, top_p and min_p.
    top_p: in (0, 1]. top_k: 0 or -1 is off. min_p: in [0, 1], relative to the likeliest token.
    seed: None draws one from the engine's; the one used is reported.
    stop: strings that end the text and are cut from it. stop_token_ids: ids that end it.
    max_tokens: at least 1, or None for as many as max_model_len leaves.
    min_tokens: until so many are out, no token and no stop string ends the text.
    presence_penalty, frequency_penalty: in [-2, 2], taken off for tokens generated before: once,
        and as often as they were.
    repetition_penalty: above 0; logits of tokens of prompt and output are divided by it (times it
        where negative).
    logprobs: None, or how many best tokens to report beside the sampled one (at most 20).
    prompt_logprobs: likewise for every token of the prompt but the first.
    logit_bias: token id → number added to its logit, cut to [-100, 100]; ids may be strings, as
        JSON has them. At most 300.
    allowed_token_ids: None, or the only ids that may be drawn.
    bad_words: strings whose last token is not drawn after the others, with and without a space
        before them; at most 64 of 8 tokens. Between the limits, allowed ids win over bad words and
        both over min_tokens where nothing would be left.

    Raises:
        ConfigError: an unknown name, or a value outside its rule (it is a ValueError too).
        UnsupportedError: a name of the contract whose feature is not built yet.
        RequestError: more than one of the ceilings allows (likewise).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = field(default=(), compare=False)
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int | str, float] | None = field(default=None, compare=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    detokenize: bool = True
    skip_special_tokens: bool = True
    # `stop` and `logit_bias` in one form, whatever was given.
    stop_strings: tuple[str, ...] = field(init=False, default=())
    bias_entries: tuple[tuple[int, float], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self._set_numbers()
        self._set_forms()
        self._check_drawing()
        self._check_penalties()
        self._check_ending()
        self._check_logprobs()
        self._check_ceilings()
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize"):
            _require_bool(name, getattr(self, name))
        _require_bool("skip_special_tokens", self.skip_special_tokens)

    def _set_numbers(self) -> None:
        """NumPy's scalars become Python's: parameters are compared, hashed and written as JSON."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool):
                continue
            if isinstance(value, Integral):
                object.__setattr__(self, name, int(value))
                continue
            with suppress(OverflowError):  # of a fraction beyond floats: it is refused below
                object.__setattr__(self, name, float(value))

    def _set_forms(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        allowed = self.allowed_token_ids
        forms = {
            "stop_strings": _as_texts("stop", stops),
            "stop_token_ids": _as_ids("stop_token_ids", self.stop_token_ids),
            "bad_words": _as_texts("bad_words", self.bad_words),
            "bias_entries": _as_bias_entries(self.logit_bias),
        }
        if allowed is not None:
            forms["allowed_token_ids"] = _as_ids("allowed_token_ids", allowed)
            _require(
                len(forms["allowed_token_ids"]) > 0,
                "allowed_token_ids",
                allowed,
                "None or at least one id",
            )
        for name, value in forms.items():
            object.__setattr__(self, name, value)

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

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            in_range = _is_real(value) and abs(value) <= MAX_PENALTY
            _require(in_range, name, value, f"in [-{MAX_PENALTY}, {MAX_PENALTY}]")
        _require(
            _is_real(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "a number above 0 (1 is off)",
        )

    def _check_ending(self) -> None:
        _require(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            self.max_tokens,
            "an int of at least 1, or None (up to max_model_len)",
        )
        _require(
            _is_int(self.min_tokens) and self.min_tokens >= 0,
            "min_tokens",
            self.min_tokens,
            "an int of at least 0",
        )
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"at most max_tokens ({self.max_tokens})",
        )
        _require(
            self.detokenize or not self.stop_strings,
            "detokenize",
            self.detokenize,
            "True where stop strings are given: they are looked for in the text",
        )

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(
                value is None or (_is_int(value) and value >= 0),
                name,
                value,
                f"None or an int in [0, {MAX_LOGPROBS}]",
            )
            if (value or 0) > MAX_LOGPROBS:
                raise RequestError(
                    f"SamplingParams.{name}={_shown(value)}: at most {MAX_LOGPROBS} are reported; "
                    "ask for fewer"
                )

    def _check_ceilings(self) -> None:
        if self.n > MAX_COMPLETIONS:
            raise RequestError(
                f"SamplingParams.n={_shown(self.n)}: a prompt gets at most {MAX_COMPLETIONS} "
                "completions; ask for fewer, or for the prompt again with another seed"
            )
        for name, held, things, ceiling in (
            ("stop_token_ids", self.stop_token_ids, "ids", MAX_STOP_IDS),
            ("logit_bias", self.bias_entries, "ids", MAX_BIAS_IDS),
            ("bad_words", self.bad_words, "words", MAX_BAD_WORDS),
        ):
            if len(held) > ceiling:
                raise RequestError(
                    f"SamplingParams.{name} has {len(held)} {things}, "
                    f"{ceiling} are allowed; pass fewer"
                )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _MAX_REAL  # type: ignore[arg-type]


def _shown(value: object) -> str:
    """The value as messages have it; Python prints no int of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    return repr(value)


def _as_tuple(name: str, values: object) -> tuple:
    if values is None:
        return ()
    _require(isinstance(values, Iterable), name, values, "a list")
    return tuple(values)  # type: ignore[arg-type]


def _as_texts(name: str, values: object) -> tuple[str, ...]:
    _require(not isinstance(values, str), name, values, "a list of strings")
    texts = _as_tuple(name, values)
    for text in texts:
        _require(isinstance(text, str) and text != "", name, text, "non-empty strings")
    return texts


def _as_ids(name: str, values: object) -> tuple[int, ...]:
    ids = _as_tuple(name, values)
    for token in ids:
        _require(_is_id(token), name, token, "ids of 0 or more")
    return tuple(int(token) for token in ids)


def _is_id(value: object) -> bool:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return is_whole and value >= 0  # type: ignore[operator]


def _as_bias_entries(given: object) -> tuple[tuple[int, float], ...]:
    """(id, bias) pairs in the order of the ids, cut to ±MAX_BIAS."""
    rule = "a mapping of token ids to numbers"
    _require(given is None or isinstance(given, Mapping), "logit_bias", given, rule)
    entries: dict[int, float] = {}
    for key, bias in (given or {}).items():  # type: ignore[attr-defined]
        is_text = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20
        token = int(key) if is_text else key
        _require(_is_id(token), "logit_bias", key, f"{rule}; an id is an int of 0 or more")
        _require(int(token) not in entries, "logit_bias", key, "an id that is there once")
        # Infinity is cut like any other; only NaN is no number.
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool) and bias == bias
        _require(is_number, "logit_bias", bias, rule)
        entries[int(token)] = float(max(-MAX_BIAS, min(MAX_BIAS, bias)))
    return tuple(sorted(entries.items()))


def _require_bool(name: str, value: object) -> None:
    _require(isinstance(value, bool), name, value, "True or False")


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ConfigError(
            f"SamplingParams.{name}={_shown(value)}: must be {rule}; pass another value"
        )
