"""What holds for every test: the CPU unless there is a GPU, and jax at its strictest.

Set through the environment, before anything imports jax, so that tests of host files stay without
jax and child processes inherit it.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STRICT = {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could make it strict")
os.environ.update(STRICT)
# Warpgroups of a simulated kernel run side by side: with too few threads they wait for ever.
if len(os.sched_getaffinity(0)) < 4:
    os.environ.setdefault("NPROC", "4")
if not Path("/dev/nvidia0").exists():
    os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(autouse=True, scope="module")
def _programs_of_a_module_are_dropped() -> Iterator[None]:
    """A compiled program takes some hundred memory maps, of which Linux gives a process 65,530: a
    session that kept them all would end in a segmentation fault of the compiler. The folder of
    compiled programs that an engine named is left too: programs for another machine's GPU, which
    the next module may compile, cannot be read back from there."""
    yield
    if "jax" in sys.modules:
        from jaxinfer.runner.compile import use_compilation_cache

        use_compilation_cache(None)
        sys.modules["jax"].clear_caches()
        gc.collect()
