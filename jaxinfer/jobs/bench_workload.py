"""HOST. The requests that `jaxinfer bench` measures with: made up, the mixed48 file, or a user's.

Knows token counts and lines; runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_input import open_input
from jaxinfer.jobs.batch_request import (
    LineError,
    LineRequest,
    decode_line,
    read_request,
    sampling_params,
)

MADE_UP = ("random", "shared-prefix", "mixed48")
_SHAPED = ("random", "shared-prefix")
_OWN_TOKENS = 16  # of a prompt behind a shared prefix
_MIXED48 = Path(__file__).parents[2] / "bench" / "data" / "mixed48.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """Of made-up workloads: how many requests, and their mean lengths in tokens."""

    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be an int of at least 1")


def shape_of(workload: str, **given: int | None) -> WorkloadShape:
    """The shape of a workload by what is given of it; None is the default.

    Raises:
        ConfigError: a length of a workload whose requests are in a file, or one below 1.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    is_file = workload not in _SHAPED and (workload in MADE_UP or Path(workload).exists())
    if asked and is_file:
        name, value = next(iter(asked.items()))
        raise ConfigError(
            f"{name}={value!r} is of the workloads {' and '.join(map(repr, _SHAPED))}; "
            f"{workload!r} has its requests in a file: leave {name} out"
        )
    return WorkloadShape(**asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """line: of a file, whose conversation is still to be rendered; else prompt is token ids."""

    params: SamplingParams
    prompt: list[int] | None = None
    line: LineRequest | None = None


def make_workload(
    name: str, shape: WorkloadShape, *, vocab_size: int, base: Mapping[str, Any]
) -> list[BenchRequest]:
    """The requests of a workload.

    Args:
        name: one of `MADE_UP`, or a file of a batch job's lines.
        shape: of made-up ones. vocab_size: V. base: defaults of a file's lines, all fields.

    Raises:
        ConfigError: no such workload, or a line of the file that is wrong.
    """
    if name == "random":
        return _random(shape, vocab_size)
    if name == "shared-prefix":
        return _shared_prefix(shape, vocab_size)
    if name == "mixed48":
        if not _MIXED48.is_file():
            raise ConfigError(
                "workload='mixed48' lies in the repository (bench/data), not in the installed "
                "package; run from a checkout, or give a .jsonl file"
            )
        return _from_file(_MIXED48, {**base, "temperature": 0.0, "ignore_eos": True})
    if not Path(name).exists():
        raise ConfigError(
            f"workload={name!r} must be one of {', '.join(map(repr, MADE_UP))}, or a .jsonl file"
        )
    return _from_file(Path(name), base)


def _random(shape: WorkloadShape, vocab_size: int) -> list[BenchRequest]:
    """Lengths spread evenly from half of the mean to one and a half of it."""
    draw = np.random.default_rng(shape.seed)
    inputs = _lengths(draw, shape.input_len, shape.num_prompts)
    outputs = _lengths(draw, shape.output_len, shape.num_prompts)
    return [
        BenchRequest(prompt=draw.integers(vocab_size, size=one).tolist(), params=_exactly(other))
        for one, other in zip(inputs, outputs, strict=True)
    ]


def _shared_prefix(shape: WorkloadShape, vocab_size: int) -> list[BenchRequest]:
    """input_len tokens that all have, then a few of their own."""
    draw = np.random.default_rng(shape.seed)
    prefix = draw.integers(vocab_size, size=shape.input_len).tolist()
    return [
        BenchRequest(
            prompt=prefix + draw.integers(vocab_size, size=_OWN_TOKENS).tolist(),
            params=_exactly(shape.output_len),
        )
        for _ in range(shape.num_prompts)
    ]


def _lengths(draw: np.random.Generator, mean: int, count: int) -> list[int]:
    return draw.integers(
        max(1, mean // 2), mean + (mean + 1) // 2, size=count, endpoint=True
    ).tolist()


def _exactly(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)


def _from_file(path: Path, base: Mapping[str, Any]) -> list[BenchRequest]:
    requests = []
    source = open_input(path, path)  # a file or a folder: nothing is spooled
    for line in source.lines():
        decoded = decode_line(line, single_file=not source.is_folder)
        try:
            request = read_request(decoded, None)  # whatever model the lines were written for
            params = sampling_params(request, base, {}, 0)
        except LineError as error:
            raise ConfigError(f"{line.file}:{line.number}: {error}") from error
        requests.append(BenchRequest(line=request, params=params))
    if not requests:
        raise ConfigError(f"workload={str(path)!r} has no lines; give a file with requests")
    return requests
