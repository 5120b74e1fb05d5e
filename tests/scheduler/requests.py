"""Requests of the scheduler's tests: traced prompts, service options, siblings."""

from dataclasses import fields
from typing import Any

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.fake_device import VOCAB, Drawing, FakeDevice, prompt_of
from tests.scheduler.fake_loop import FakeLoop
from tests.support.records import geometry, request

_OPTIONS = {field.name for field in fields(RequestOptions)}


def traced(order: int, prompt: int | list[int], **changes: Any) -> Request:
    """A request; a number in place of the prompt is its length, and its tokens are its own.

    changes: fields of `RequestOptions`, `arrival_s`, `num_prompt_logprobs`, or what
    `records.request` takes.
    """
    options = {name: changes.pop(name) for name in _OPTIONS & changes.keys()}
    later = {
        name: changes.pop(name) for name in ("arrival_s", "num_prompt_logprobs") if name in changes
    }
    tokens = prompt_of(order, prompt) if isinstance(prompt, int) else list(prompt)
    made = request(tokens, order=order, **{"seed": order, **changes})
    made.options = RequestOptions(**options)
    for name, value in later.items():
        setattr(made, name, value)
    return made


def family(order: int, prompt: int | list[int], count: int, **changes: Any) -> list[Request]:
    """The completions of one prompt: the first leads, the others are its siblings."""
    tokens = prompt_of(order, prompt) if isinstance(prompt, int) else list(prompt)
    made = [
        traced(order + index, tokens, sample_index=index, **{"seed": order, **changes})
        for index in range(count)
    ]
    for sibling in made[1:]:
        sibling.leader = made[0]
    made[0].siblings = made[1:]
    return made


def loop_of(
    ask: dict[str, Any] | None = None, *, depth: int = 1, burst: int = 1, **shape: Any
) -> FakeLoop:
    """A scheduler, its device and the loop; `ask` is settings, `shape` changes the geometry."""
    made = geometry(**shape)
    scheduler = Scheduler(made, EngineConfig(**(ask or {})), VOCAB)
    return FakeLoop(scheduler, FakeDevice(made, Drawing()), depth=depth, burst=burst)
