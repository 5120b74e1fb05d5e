"""HOST. Descriptions of GPUs, for planning and compiling where no such GPU is.

The numbers are data (`gpu_targets.json` beside this file). Knows no compiler: it only writes the
text that one reads.
"""

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from jaxinfer.errors import ConfigError

# What programs are compiled for: the CUDA runtime and cuDNN versions of the description.
_RUNTIME_VERSION = (12, 9)
_CUDNN_VERSION = (9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """One kind of GPU.

    compute_capability: (major, minor). num_cores: streaming multiprocessors. memory_bytes and
    bandwidth_bytes_per_s: of the device memory, as specified. shared_memory_bytes: the most that
    one block may ask for. device_info: every field of the compiler's description.
    """

    name: str
    description: str
    compute_capability: tuple[int, int]
    device_info: Mapping[str, int | float]

    @property
    def num_cores(self) -> int:
        return int(self.device_info["core_count"])

    @property
    def memory_bytes(self) -> int:
        return int(self.device_info["device_memory_size"])

    @property
    def bandwidth_bytes_per_s(self) -> int:
        return int(self.device_info["memory_bandwidth"])

    @property
    def shared_memory_bytes(self) -> int:
        return int(self.device_info["shared_memory_per_block_optin"])


def gpu_target(name: str) -> GpuTarget:
    """The GPU of that name.

    Raises:
        ConfigError: an unknown name; the message lists the known ones.
    """
    known = _all_targets()
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        offer = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"target={name!r} must be one of {', '.join(known)}{offer}")
    return known[name.lower()]


def target_names() -> tuple[str, ...]:
    """Every name that `gpu_target` knows."""
    return tuple(_all_targets())


def target_config(target: GpuTarget) -> str:
    """XLA's description of the GPU, a text proto of `GpuTargetConfigProto`."""
    major, minor = target.compute_capability
    info = "\n".join(f"  {name}: {value}" for name, value in target.device_info.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return (
        f"gpu_device_info {{\n{info}\n  {capability}\n}}\n"
        'platform_name: "CUDA"\n'
        f"dnn_version_info {{ major: {_CUDNN_VERSION[0]} minor: {_CUDNN_VERSION[1]} }}\n"
        f"runtime_version {{ major: {_RUNTIME_VERSION[0]} minor: {_RUNTIME_VERSION[1]} }}\n"
        f'device_description_str: "{target.description}"\n'
    )


@functools.cache
def _all_targets() -> dict[str, GpuTarget]:
    text = resources.files("jaxinfer.config").joinpath("gpu_targets.json").read_text("utf-8")
    return {
        name: GpuTarget(
            name=name,
            description=fields["description"],
            compute_capability=tuple(fields["compute_capability"]),
            device_info=fields["device_info"],
        )
        for name, fields in json.loads(text).items()
    }
