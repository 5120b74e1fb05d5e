"""DEV. The jitted entry points, as pure functions; `compile.py` is the only place that jits them.

Token positions of one row while a prompt of 150 tokens is prefilled with T = 64 and then decoded:

    |<- chunk 0 ->|<- chunk 1 ->|<- chunk 2 ->:.....|
    0            64           128          150
     committed: keys and values in pages   ^ the drawn token waits in LoopState.last_tokens;
                                             the next decode step writes its keys and values at 150

Both steps run the same `forward` over pages; only the number of tokens a row differs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer.cache import PagedKV
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.transformer import TokenRows, logits
from jaxinfer.runner.batch import DecodeBatch, LoopState, PrefillBatch
from jaxinfer.sampling.draw import PACKED_COLUMNS, draw, pack
from jaxinfer.sampling.logits import SamplingRows

StepOutput = tuple[PagedKV, LoopState, jax.Array, jax.Array]


def prefill_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    batch: PrefillBatch,
    config: ModelConfig,
    geometry: Geometry,
) -> StepOutput:
    """Runs R chunks of T tokens and draws a token for the rows that end their prompt.

    Returns:
        cache and state; [R, 43] i32 – what was drawn, packed (zeros where no row draws);
        [R, T, E] – hidden rows.

    Donates: cache and state.
    Cost: 2·R·T FLOPs a weight; the head runs only where a row ends its prompt.
    """
    rows = batch.rows
    forward = architecture_named(config.architecture).forward
    hidden, cache = forward(params, cache, rows, config, geometry)
    last = jnp.maximum(rows.lengths - 1, 0)[:, None, None]
    ends = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
    packed = lax.cond(
        jnp.any(batch.slots < geometry.num_slots),
        lambda: _draw_packed(params, ends, batch.sampling, rows.starts + rows.lengths, config),
        lambda: jnp.zeros((ends.shape[0], PACKED_COLUMNS), jnp.int32),
    )
    # A slot of B lies past the end: the write is dropped.
    tokens = state.last_tokens.at[batch.slots].set(packed[:, 0], mode="drop")
    return cache, LoopState(last_tokens=tokens), packed, hidden


def decode_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    batch: DecodeBatch,
    config: ModelConfig,
    geometry: Geometry,
) -> StepOutput:
    """Runs one token for each of up to W slots and draws the next.

    Returns:
        cache and state; [W, 43] i32 – what was drawn, packed; [W, 1, E] – hidden rows.

    Donates: cache and state.
    Cost: reads every weight once and the pages of the active rows.
    """
    # The slot of an empty row lies past the end: it reads the last slot and its write is dropped.
    rows = TokenRows(
        tokens=state.last_tokens.at[batch.slots].get(mode="clip")[:, None],
        starts=batch.positions,
        lengths=(batch.slots < geometry.num_slots).astype(jnp.int32),
        tables=batch.tables,
    )
    forward = architecture_named(config.architecture).forward
    hidden, cache = forward(params, cache, rows, config, geometry)
    packed = _draw_packed(params, hidden[:, 0], batch.sampling, batch.positions + 1, config)
    tokens = state.last_tokens.at[batch.slots].set(packed[:, 0], mode="drop")
    return cache, LoopState(last_tokens=tokens), packed, hidden


def head_step(params: Any, hidden: jax.Array, config: ModelConfig) -> jax.Array:
    """Hidden rows [rows, E] → logits [rows, V] f32, for callers that want more than a token."""
    return logits(params, hidden, config)


def _draw_packed(
    params: Any,
    hidden: jax.Array,
    sampling: SamplingRows,
    positions: jax.Array,
    config: ModelConfig,
) -> jax.Array:
    return pack(draw(logits(params, hidden, config), sampling, positions))
