"""JOINT. A GPU that is not here as a place to compile for.

Needs the `aot` extra; knows no program.
"""

import importlib.metadata
from typing import Any

import jax
from jax.experimental import topologies

from jaxinfer.config.targets import GpuTarget, target_config
from jaxinfer.errors import UnsupportedError

_PACKAGES = ("jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12")


def missing_compiler() -> str | None:
    """Why nothing can be compiled for a GPU here, or None."""
    for package in _PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed"
        if package == "jax-cuda12-plugin" and version != jax.__version__:
            return f"{package} {version} does not fit jax {jax.__version__}"
    return None


def missing_compiler_error(target: GpuTarget, reason: str) -> UnsupportedError:
    """The error of a process that cannot compile for the target, with the command that helps."""
    return UnsupportedError(
        f"cannot compile for target {target.name!r}: {reason}; install jaxinfer[aot]: "
        f"pip install 'jaxinfer[aot]' jax-cuda12-plugin=={jax.__version__}"
    )


def place_on_target(target: GpuTarget, shapes: Any) -> Any:
    """The pytree of shapes, placed on one such GPU: a program lowered with it is compiled for it.

    Raises:
        UnsupportedError: the compiler for NVIDIA GPUs is not installed.
    """
    if reason := missing_compiler():
        raise missing_compiler_error(target, reason)
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=target_config(target), topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("device",))
    here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes
    )
