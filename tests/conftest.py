"""What holds for every test: the CPU unless there is a GPU, and jax at its strictest.

Set through the environment, before anything imports jax, so that tests of host files stay without
jax and child processes inherit it.
"""

import os
import sys
from pathlib import Path

STRICT = {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could make it strict")
os.environ.update(STRICT)
if not Path("/dev/nvidia0").exists():
    os.environ["JAX_PLATFORMS"] = "cpu"
