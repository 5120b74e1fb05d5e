"""HOST. What the user asked of the engine. `plan_geometry` turns it into what was decided."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxinfer.config.kernel_choice import OPS, asked_of, kernel_choice
from jaxinfer.config.kv_cache_dtype import KV_CACHE_DTYPES, KvCacheDtype
from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.config.quantization import (
    ACTIVATIONS,
    WEIGHT_FORMS,
    Quantization,
    quantization_from,
)
from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.speculative_config import SpeculativeConfig, speculative_config
from jaxinfer.errors import ConfigError

_CHOICES = {
    "dtype": ("auto", "bfloat16", "float32"),
    "kv_cache_dtype": KV_CACHE_DTYPES,
    "weights": WEIGHT_FORMS,
    "activations": ACTIVATIONS,
    "admission": ("reserve", "optimistic"),
    "preemption": ("swap", "recompute"),
    "scheduling_policy": ("fcfs", "priority"),
    "logprobs_mode": ("raw", "processed"),
}
_COUNTS = {  # None or at least 1 → what None means
    "max_model_len": "decide",
    "max_num_seqs": "decide",
    "num_gpu_blocks_override": "decide",
    "max_num_batched_tokens": "decide",
    "long_prefill_token_threshold": "no limit",
    "max_num_waiting": "no limit",
}
MAX_DECODE_STEPS = 64
_RANGES = {
    "max_prefill_steps": (1, None),
    "num_decode_steps": (1, MAX_DECODE_STEPS),
    "max_logprobs": (0, MAX_LOGPROBS),
}
_SWITCHES = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "use_generation_config",
    "strict",
)
_POWERS_OF_TWO = ("block_size", "prefill_chunk_tokens")
_POWERS = (8, 16, 32, 64, 128, 256, 512, 1024)

# Names of the contract whose feature is not built yet: refused by name, never ignored.
_PLANNED = {
    "enable_lora": Planned("LoRA", (None, False)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's settings; names as in vLLM where it has them. None means "decide".

    dtype: of the weights; "auto" is bfloat16 (on a CPU with float32 activations).
    kv_cache_dtype: of the pages; "auto" is the activations'. "int8" has a scale for each token and
        head, "fp8" the checkpoint's fixed scales (1 where it has none); "int8_key_only" leaves
        values as "auto" has them.
    quantization: rounds the linear layers at load: "int8", "int4" or "fp8", or a mapping of
        `Quantization`'s fields; None leaves them as the checkpoint has them.
    weights: quantized ones stay "packed", or are "dequantized" at load; "auto" is what is fastest
        on the device.
    activations: "checkpoint" rounds the inputs of packed linear layers where the checkpoint was
        made for that (W8A8, FP8); "float" leaves them.
    max_model_len: tokens a request may hold, prompt and output.
    max_num_seqs: slots, i.e. requests that run at once.
    block_size: tokens in a page, a power of two.
    num_gpu_blocks_override: pages in the pool of each cache group.
    gpu_memory_utilization: share of the free device memory (on a CPU: host memory) to plan with.
    prefill_chunk_tokens: T, tokens in a row of a prefill step, a power of two.
    max_num_batched_tokens: tokens in the largest prefill step.
    enable_prefix_caching: requests that begin with the same tokens share the pages of those.
    enable_chunked_prefill: running requests decode on between the steps of a prompt; False: a
        prompt is prefilled to its end before anybody decodes on.
    max_prefill_steps: prefill steps between two decode steps.
    long_prefill_token_threshold: most tokens of one prompt in a prefill step; None is no limit.
    async_scheduling: the next step is launched before the last one is read.
    num_decode_steps: decode launches that are read together while nothing can change, 1 to 64.
    admission: "reserve" admits a request when its worst case fits, so that nothing runs out;
        "optimistic" when its prompt fits, and preempts where pages run out.
    preemption: what a preempted request's pages become: "recompute" fills them again, "swap"
        copies them to host memory and back. Only used with optimistic admission.
    scheduling_policy: "fcfs" in order of arrival, "priority" by the requests' priorities.
    max_num_waiting: requests that may wait for a slot; one more is refused. None is no limit.
    latency_max_num_seqs: while a latency-sensitive request runs, at most this many others share
        its step, but of 0 one that was left out for 64 steps; None is no limit.
    logprobs_mode: log-probabilities as the model gives them ("raw"), or of what is drawn from;
        those of a prompt are always raw.
    max_logprobs: the most that a request may ask for, up to 20.
    use_generation_config: sampling defaults come from the checkpoint's generation_config.json.
    speculative_config: how tokens are drafted ahead (a mapping is taken too); None is not at all.
    kernels: implementation of the ops: "reference" is plain XLA, "mosaic" the kernels for Hopper
        GPUs, "triton" those for GPUs before, "simulated" the first on a CPU (slow, for tests). One
        that cannot serve attention, norms, experts or packed matrices is refused; writes of keys
        and products that XLA does as well fall back, which is logged. "auto" takes the best.
        A mapping asks by op (names of `kernel_choice.OPS`; others stay "auto"), and so does the
        text "op=name,op=name", which is what is kept.
    seed: the engine's seed, from which requests without one draw theirs.
    strict: a failing request raises instead of giving a row with an error.
    compilation_cache_dir: of compiled programs; "auto" is the user's cache folder, None is off.
    trace: file that gets a timeline of the host loop, for Perfetto or chrome://tracing.
    """

    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    kv_cache_dtype: KvCacheDtype = "auto"
    quantization: str | Mapping[str, Any] | Quantization | None = None
    weights: Literal["auto", "packed", "dequantized"] = "auto"
    activations: Literal["float", "checkpoint"] = "float"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float = 0.9
    prefill_chunk_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_prefill_steps: int = 1
    long_prefill_token_threshold: int | None = None
    async_scheduling: bool = True
    num_decode_steps: int = 1
    admission: Literal["reserve", "optimistic"] = "reserve"
    preemption: Literal["swap", "recompute"] = "recompute"
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_waiting: int | None = None
    latency_max_num_seqs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    max_logprobs: int = MAX_LOGPROBS
    use_generation_config: bool = False
    speculative_config: SpeculativeConfig | None = None
    kernels: str = "auto"
    seed: int | None = None
    strict: bool = False
    compilation_cache_dir: str | None = "auto"
    trace: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            _choice(name, getattr(self, name), allowed)
        for name, none in _COUNTS.items():
            _at_least(1, name, getattr(self, name), none)
        for name in _POWERS_OF_TWO:
            _power_of_two(name, getattr(self, name))
        for name, (low, high) in _RANGES.items():
            _in_range(name, getattr(self, name), low, high)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        quantization_from(self.quantization)
        _share("gpu_memory_utilization", self.gpu_memory_utilization)
        _path("compilation_cache_dir", self.compilation_cache_dir, "a folder, 'auto'")
        _path("trace", self.trace, "a file to be written")
        if self.seed is not None and not (_is_int(self.seed) and 0 <= self.seed < 2**63):
            raise ConfigError(f"seed={self.seed!r} must be None or an int in [0, 2**63)")
        _at_least(0, "latency_max_num_seqs", self.latency_max_num_seqs, "no limit")
        object.__setattr__(self, "kernels", kernel_choice(self.kernels))
        drafting = speculative_config(self.speculative_config)
        object.__setattr__(self, "speculative_config", drafting)

    def asked_of(self, op: str) -> str:
        """The implementation that is asked of one op; "auto" leaves it open."""
        return asked_of(self.kernels, op)

    @property
    def simulates(self) -> bool:
        """True where a kernel is simulated on a CPU: it takes bfloat16, as on a GPU."""
        return any(self.asked_of(op) == "simulated" for op in OPS)


def engine_config(**options: Any) -> EngineConfig:
    """An `EngineConfig` from keyword options.

    Raises:
        UnsupportedError: an option whose feature is not built yet and that asks for it.
        ConfigError: an unknown name (the message offers the nearest one) or a wrong value.
    """
    known = [field.name for field in fields(EngineConfig)]
    return EngineConfig(**accepted_options(options, known, _PLANNED))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:  # a numpy dtype equals its name
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def _share(name: str, value: object) -> None:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_real and math.isfinite(value) and 0 < value <= 1):  # type: ignore[arg-type]
        raise ConfigError(f"{name}={value!r} must be a number in (0, 1]")


def _at_least(least: int, name: str, value: object, none: str) -> None:
    if value is not None and not (_is_int(value) and value >= least):  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} must be None ({none}) or an int of at least {least}")


def _in_range(name: str, value: object, low: int, high: int | None) -> None:
    top = math.inf if high is None else high
    if not (_is_int(value) and low <= value <= top):  # type: ignore[operator]
        rule = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise ConfigError(f"{name}={value!r} must be an int {rule}")


def _path(name: str, value: object, what: str) -> None:
    if value == "" or not isinstance(value, str | os.PathLike | None):
        raise ConfigError(f"{name}={value!r} must be {what}, or None (write nothing)")


def _power_of_two(name: str, value: object) -> None:
    if value is not None and value not in _POWERS or isinstance(value, bool | float):
        raise ConfigError(
            f"{name}={value!r} must be None (decide) or a power of two from 8 to 1024"
        )
