"""Random requests that use every parameter there is, and what they give, in a form to compare."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer import LLM, RequestOptions, RequestOutput, SamplingParams
from tests.end_to_end.engines import bits

_MOST_TOKENS = 40
_LETTERS = "etaoins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    prompt: list[int]
    params: SamplingParams
    options: RequestOptions


def random_requests(
    seed: int, count: int, *, longest: int = 120, vocab_size: int = 320
) -> list[Asked]:
    """Requests whose prompts mostly begin alike; every one has a seed of its own."""
    numbers = random.Random(seed)
    shared = [numbers.randrange(vocab_size) for _ in range(longest)]
    return [
        Asked(
            prompt=_prompt(numbers, shared, vocab_size),
            params=SamplingParams(**_params(numbers, place, vocab_size)),
            options=_options(numbers),
        )
        for place in range(count)
    ]


def _prompt(numbers: random.Random, shared: list[int], vocab_size: int) -> list[int]:
    """The first tokens of `shared`, then others; now and then one without either."""
    length = numbers.choice((1, 5, 15, 16, 17, 33, 64, 70, len(shared)))
    alike = numbers.choice((0, length // 2, length, length))
    others = [numbers.randrange(vocab_size) for _ in range(length - alike)]
    return shared[:alike] + others


def _params(numbers: random.Random, place: int, vocab_size: int) -> dict[str, Any]:
    def some(*values: Any) -> Any:
        """One of the values; half the time the first, which is the default."""
        return values[0] if numbers.random() < 0.5 else numbers.choice(values)

    def token_ids(count: int) -> list[int]:
        return sorted(numbers.sample(range(vocab_size), count))

    temperature = numbers.choice((0.0, 0.0, 0.7, 1.0, 1.5, 2.0))
    most = numbers.randrange(1, _MOST_TOKENS)
    detokenize = some(True, False)
    return {
        "n": some(1, 2, 3) if temperature else 1,
        "temperature": temperature,
        "top_p": some(1.0, 0.9, 0.3),
        "top_k": some(0, 1, 5, 300),
        "min_p": some(0.0, 0.05),
        "presence_penalty": some(0.0, 1.5, -0.5),
        "frequency_penalty": some(0.0, 0.7, -0.3),
        "repetition_penalty": some(1.0, 1.4, 0.8),
        "seed": 1000 + place,
        "stop": some((), _LETTERS[numbers.randrange(7)], ["qu", *_LETTERS]) if detokenize else (),
        "stop_token_ids": some((), token_ids(10)),
        "include_stop_str_in_output": some(False, True),
        "ignore_eos": some(False, True),
        "max_tokens": most,
        "min_tokens": some(0, most // 2, most),
        "logprobs": some(None, 0, 3, 20),
        "prompt_logprobs": some(None, None, 0, 2, 20),
        "logit_bias": some(None, {token: 4.0 for token in token_ids(5)}),
        "allowed_token_ids": some(None, token_ids(40)),
        "bad_words": some((), ["e", "th", "<end>"]),
        "detokenize": detokenize,
        "skip_special_tokens": some(True, False),
    }


def _options(numbers: random.Random) -> RequestOptions:
    return RequestOptions(
        priority=numbers.randrange(-2, 3),
        latency_sensitive=numbers.random() < 0.2,
        timeout_s=numbers.choice((None, 3600.0)),
        use_prefix_cache=numbers.random() < 0.8,
    )


def run_all(llm: LLM, asked: Sequence[Asked], order: Sequence[int] | None = None) -> list[Any]:
    """What each request gives when they run together, queued in `order`; by place."""
    order = range(len(asked)) if order is None else order
    queued = [asked[place] for place in order]
    outputs = llm.generate(
        [one.prompt for one in queued],
        [one.params for one in queued],
        options=[_served_by(llm, one.options) for one in queued],
        use_tqdm=False,
    )
    by_place = dict(zip(order, outputs, strict=True))
    return [everything(by_place[place]) for place in range(len(asked))]


def _served_by(llm: LLM, options: RequestOptions) -> RequestOptions:
    """Priorities only where the policy looks at them: elsewhere they are refused."""
    if llm.engine.ask.scheduling_policy == "priority":
        return options
    return replace(options, priority=0)


def run_each(llm: LLM, asked: Sequence[Asked]) -> list[Any]:
    """What each request gives alone."""
    return [run_all(llm, [one])[0] for one in asked]


def everything(output: RequestOutput) -> tuple[Any, ...]:
    """What batching must not change: tokens, texts, ends and log-probabilities."""
    return output.error, bits(output), output.prompt_logprobs
