"""HOST. What the user asked of the engine. `plan_geometry` turns it into what was decided."""

import math
import os
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.errors import ConfigError, UnsupportedError

_POWERS = (8, 16, 32, 64, 128, 256, 512, 1024)

# Names of the contract whose feature is not built yet: refused by name, never ignored.
_PLANNED = {
    "quantization": Planned("running quantized weights packed"),
    "speculative_config": Planned("speculative sampling"),
    "enable_prefix_caching": Planned("the prefix cache", (None, False)),
    "async_scheduling": Planned("overlapping host and device", (None, False)),
    "num_decode_steps": Planned("decode bursts", (None, 1)),
    "preemption": Planned("preemption"),
    "scheduling_policy": Planned("priorities", (None, "fcfs")),
    "logprobs_mode": Planned("processed log-probabilities", (None, "raw")),
    "max_logprobs": Planned("another ceiling on log-probabilities", (None, 20)),
    "weights": Planned("packed weights", (None, "auto", "dequantized")),
    "trace": Planned("step traces", (None, False)),
    "use_generation_config": Planned("the checkpoint's sampling defaults", (None, False)),
    "enable_lora": Planned("LoRA", (None, False)),
}
_PLANNED_VALUES = {"admission": ("optimistic",), "kernels": ("mosaic", "triton")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine's settings; names as in vLLM where it has them. None means "decide".

    dtype: of the weights; "auto" is bfloat16 (on a CPU with float32 activations).
    kv_cache_dtype: of the pages; "auto" is the activations'.
    max_model_len: tokens a request may hold, prompt and output.
    max_num_seqs: slots, i.e. requests that run at once.
    block_size: tokens in a page, a power of two.
    num_gpu_blocks_override: pages in the pool of each cache group.
    gpu_memory_utilization: share of the free device memory (on a CPU: host memory) to plan with.
    prefill_chunk_tokens: T, tokens in a row of a prefill step, a power of two.
    max_num_batched_tokens: tokens in the largest prefill step.
    admission: "reserve" admits a request when its worst case fits, so that nothing runs out.
    kernels: implementation of the ops.
    seed: the engine's seed, from which requests without one draw theirs.
    strict: a failing request raises instead of giving a row with an error.
    compilation_cache_dir: of compiled programs; "auto" is the user's cache folder, None is off.
    """

    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    kv_cache_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float = 0.9
    prefill_chunk_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    admission: Literal["reserve"] = "reserve"
    kernels: Literal["auto", "reference"] = "auto"
    seed: int | None = None
    strict: bool = False
    compilation_cache_dir: str | None = "auto"

    def __post_init__(self) -> None:
        _choice("dtype", self.dtype, ("auto", "bfloat16", "float32"))
        _choice("kv_cache_dtype", self.kv_cache_dtype, ("auto", "bfloat16", "float32"))
        _choice("admission", self.admission, ("reserve",))
        _choice("kernels", self.kernels, ("auto", "reference"))
        for name in ("max_model_len", "max_num_seqs", "num_gpu_blocks_override"):
            _at_least_one(name, getattr(self, name))
        _at_least_one("max_num_batched_tokens", self.max_num_batched_tokens)
        for name in ("block_size", "prefill_chunk_tokens"):
            _power_of_two(name, getattr(self, name))
        _share("gpu_memory_utilization", self.gpu_memory_utilization)
        if not isinstance(self.strict, bool):
            raise ConfigError(f"strict={self.strict!r} must be True or False")
        if not isinstance(self.compilation_cache_dir, str | os.PathLike | None):
            raise ConfigError(
                f"compilation_cache_dir={self.compilation_cache_dir!r} must be a folder, "
                "'auto', or None (keep nothing)"
            )
        if self.seed is not None and not (_is_int(self.seed) and 0 <= self.seed < 2**63):
            raise ConfigError(f"seed={self.seed!r} must be None or an int in [0, 2**63)")


def engine_config(**options: Any) -> EngineConfig:
    """An `EngineConfig` from keyword options.

    Raises:
        UnsupportedError: an option whose feature is not built yet and that asks for it.
        ConfigError: an unknown name (the message offers the nearest one) or a wrong value.
    """
    known = [field.name for field in fields(EngineConfig)]
    accepted = accepted_options(options, known, _PLANNED)
    for name, values in _PLANNED_VALUES.items():
        if accepted.get(name) in values:
            raise UnsupportedError(f"{name}={accepted[name]!r} is not built yet; leave {name} out")
    return EngineConfig(**accepted)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:  # a numpy dtype equals its name
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def _share(name: str, value: object) -> None:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_real and math.isfinite(value) and 0 < value <= 1):  # type: ignore[arg-type]
        raise ConfigError(f"{name}={value!r} must be a number in (0, 1]")


def _at_least_one(name: str, value: object) -> None:
    if value is not None and not (_is_int(value) and value >= 1):  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} must be None (decide) or an int of at least 1")


def _power_of_two(name: str, value: object) -> None:
    if value is not None and value not in _POWERS or isinstance(value, bool | float):
        raise ConfigError(
            f"{name}={value!r} must be None (decide) or a power of two from 8 to 1024"
        )
