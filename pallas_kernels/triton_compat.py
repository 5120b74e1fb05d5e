"""When kernels written in Triton can run: GPUs before Hopper, with the packages there.

Imports neither triton nor jax-triton: they are optional, and taken at the first call. Knows no op.
"""

import importlib.util

from pallas_kernels.dispatch import Platform

LEAST_CAPABILITY = (8, 0)  # bfloat16 on tensor cores
_PACKAGES = ("triton", "jax_triton")


def why_not_triton(platform: Platform) -> str | None:
    """Why a kernel written in Triton cannot run there, or None."""
    if platform.kind != "gpu":
        return f"it is for NVIDIA GPUs, this is a {platform.kind}"
    if platform.compute_capability < LEAST_CAPABILITY:
        found = ".".join(map(str, platform.compute_capability))
        return f"it needs compute capability 8.0, this GPU has {found}"
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            return f"{package.replace('_', '-')} is not installed"
    if platform.is_absent:
        return "jax-triton compiles only where such a GPU is"
    return None
