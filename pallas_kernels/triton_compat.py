"""When kernels written in Triton can run, and where "auto" takes them: GPUs before Hopper.

Imports neither triton nor jax-triton: they are optional, and taken at the first call. Knows no op.
"""

import importlib.metadata
import importlib.util

from pallas_kernels.dispatch import HOPPER, Platform

LEAST_CAPABILITY = (8, 0)  # bfloat16 on tensor cores
_PACKAGES = ("triton", "jax_triton")
# Versions of jax-triton and of jax, as far as they are written, that do not work together: every
# call raises while it is lowered.
_BROKEN_PAIRS = (("0.4.1", "0.12"),)


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
    if reason := _why_not_together():
        return reason
    if platform.is_absent:
        return "jax-triton compiles only where such a GPU is"
    return None


def why_not_chosen(platform: Platform) -> str | None:
    """Why "auto" leaves Triton alone there, or None: on newer GPUs it has to be asked for."""
    if platform.compute_capability >= HOPPER.compute_capability:
        return "from compute capability 9.0 on, it is taken only where it is asked for by name"
    return why_not_triton(platform)


def _why_not_together() -> str | None:
    found = {name: importlib.metadata.version(name) for name in ("jax-triton", "jax")}
    for jax_triton, jax in _BROKEN_PAIRS:
        if found["jax-triton"] == jax_triton and f"{found['jax']}.".startswith(f"{jax}."):
            return f"jax-triton {jax_triton} cannot be called with jax {found['jax']}"
    return None
