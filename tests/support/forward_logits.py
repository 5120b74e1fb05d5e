"""A fixture: logits of a checkpoint through the forward function alone, one program, no engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.cache import init_cache
from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.load import load_params
from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import Device, plan_geometry
from jaxinfer.models.transformer import TokenRows, logits
from jaxinfer.runner.compile import ProgramSource, compile_program

Logits = Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def forward_logits() -> Logits:
    """(checkpoint, ids, **options of load_params) → [T, V], all ids in one row of 64 tokens,
    everything in float32. Checkpoints of one shape share a program."""
    programs: dict[Any, Any] = {}

    def run(
        path: Path, ids: list[int], *, max_model_len: int | None = None, **options: Any
    ) -> np.ndarray:
        checkpoint = open_checkpoint(path, show_progress=False)
        config, device = checkpoint.config, Device(platform="cpu", free_bytes=1 << 30)
        ask = engine_config(dtype="float32", max_num_seqs=2, max_model_len=max_model_len)
        geometry = plan_geometry(ask, config, device)
        params = load_params(checkpoint, weight_dtype="float32", show_progress=False, **options)
        groups = len(geometry.group_windows)
        tables = np.zeros((groups, 1, geometry.pages_per_row), np.int32)
        tables[:, 0, 0] = 1
        tokens = np.zeros((1, 64), np.int32)
        tokens[0, : len(ids)] = ids
        rows = TokenRows(
            tokens=jnp.asarray(tokens),
            starts=jnp.zeros(1, jnp.int32),
            lengths=jnp.full(1, len(ids), jnp.int32),
            tables=jnp.asarray(tables),
        )

        def step(params: Any, cache: Any, rows: Any) -> jax.Array:
            hidden, _ = checkpoint.architecture.forward(params, cache, rows, config, geometry)
            return logits(params, hidden[0], config)

        arguments = (params, init_cache(config, geometry), rows)
        shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), arguments)
        key = config, geometry, str(shapes), jax.tree.structure(arguments)
        if key not in programs:
            programs[key] = compile_program(ProgramSource(function=step, arguments=arguments))
        return np.asarray(programs[key](*arguments))[: len(ids)]

    return run
