"""HOST. The argument forms of the offline API: one or many, for all or one each.

Knows shapes of arguments, not what prompts or parameters mean.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError

_log = logging.getLogger("jaxinfer")

# generation_config.json's names → ours; the ones that vLLM takes over.
_GENERATION_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def as_prompts(prompts: Any) -> list[Any]:
    """A list of prompts; a single prompt, or what is none at all, becomes a list of one."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    prompts = list(prompts)
    if prompts and all(isinstance(item, int | np.integer) for item in prompts):
        return [prompts]
    return prompts


def as_conversations(messages: Any) -> list[Any]:
    """A list of conversations; one conversation, or what is none at all, becomes a list of one."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        return [messages]
    if all(isinstance(message, Mapping) for message in messages):  # also of no messages
        return [messages]
    return list(messages)


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int, default: SamplingParams
) -> list[SamplingParams]:
    """Sampling parameters of `count` prompts.

    Raises:
        ConfigError: another type, or another number of them.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or default] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ConfigError(
            f"sampling_params={params!r}: must be SamplingParams or a list of them, such as "
            "SamplingParams(temperature=0)"
        )
    return _one_each("sampling params", list(params), count)


def options_for_each(
    options: RequestOptions | Sequence[RequestOptions] | None,
    priority: int | Sequence[int] | None,
    count: int,
) -> list[RequestOptions]:
    """Service of `count` prompts; `priority` stands for options that hold nothing else.

    Raises:
        ConfigError: both given, another type, or another number of them.
    """
    if options is not None and priority is not None:
        raise ConfigError("priority and options are given; set RequestOptions.priority instead")
    if priority is not None:
        each = list(priority) if isinstance(priority, Iterable) else [priority] * count
        return [RequestOptions(priority=one) for one in _one_each("priorities", each, count)]
    if options is None or isinstance(options, RequestOptions):
        return [options or RequestOptions()] * count
    if not isinstance(options, Sequence) or not all(
        isinstance(one, RequestOptions) for one in options
    ):
        raise ConfigError(
            f"options={options!r}: must be RequestOptions or a list of them, such as "
            "RequestOptions(timeout_s=10)"
        )
    return _one_each("request options", list(options), count)


def check_priorities(options: Sequence[RequestOptions], policy: str) -> None:
    """Raises if somebody has a priority that the policy would not look at.

    Raises:
        ConfigError: with the setting to change.
    """
    given = next((one.priority for one in options if one.priority), 0)
    if given and policy != "priority":
        raise ConfigError(
            f"priority={given} needs scheduling_policy='priority', it is {policy!r}; set it on the "
            "LLM, or leave priority out"
        )


def default_params(generation_config: Mapping[str, Any], *, wanted: bool) -> SamplingParams:
    """What a request without parameters draws with: our defaults, or (if wanted) the checkpoint's.

    Raises:
        ConfigError: a value of generation_config.json that breaks a rule.
    """
    if not wanted:
        _log.info("sampling defaults: %s", SamplingParams())
        return SamplingParams()
    given = {
        ours: generation_config[name]
        for name, ours in _GENERATION_DEFAULTS.items()
        if generation_config.get(name) is not None
    }
    try:
        params = SamplingParams(**given)
    except ConfigError as error:
        raise ConfigError(
            f"generation_config.json: {error} (or leave use_generation_config out)"
        ) from error
    _log.info("sampling defaults of generation_config.json: %s", params)
    return params


def _one_each(what: str, values: list, count: int) -> list:
    if len(values) != count:
        raise ConfigError(f"{len(values)} {what} for {count} prompts; pass one for all or one each")
    return values
