"""Whole decode steps of an 8B shape with random weights, against what the bandwidth allows."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import Row, Setting, with_time

from jaxinfer.cache import init_cache
from jaxinfer.checkpoint.load import abstract_params
from jaxinfer.checkpoint.storage import storage_without_weights
from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import Device, Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.quantization import quantization_from
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.engine.build import decide_geometry, kernels_of_weights
from jaxinfer.engine.parameter_shapes import read_bytes
from jaxinfer.jobs.plan_records import decode_load
from jaxinfer.models.registry import architecture_named
from jaxinfer.runner.programs import program_sources
from jaxinfer.sampling.slot_state import init_loop_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes, and how long a request is in the step."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    context: int
    rows: tuple[int, ...]


LLAMA_8B = Shape(name="8b", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336,
                 vocab=128256, context=1024, rows=(1, 8, 64))  # fmt: skip
TINY = Shape(name="tiny", layers=2, width=128, heads=4, kv_heads=2, head_dim=64, mlp=128,
             vocab=320, context=40, rows=(2,))  # fmt: skip


def step_rows(setting: Setting) -> Iterator[Row]:
    """Decode steps at each number of rows, bf16 and int4, with XLA's ops and with the kernels."""
    shape = TINY if setting.is_tiny else LLAMA_8B
    for quantization in (None, "int4"):
        for kernels in reversed(setting.kernels):
            for rows in with_time(setting, shape.rows):
                if kernels == "reference" and quantization and not setting.is_tiny:
                    continue  # decodes every matrix in every step: nobody would run it
                yield _step(setting, shape, rows, quantization, kernels)


def _step(setting: Setting, shape: Shape, rows: int, quantization: str | None, kernels: str) -> Row:
    asked = {"method": quantization, "float_ends": 0} if quantization else None
    # The form of rms_norm that XLA fuses is the one that "auto" runs beside the kernels.
    wanted = "auto" if kernels == "mosaic" else kernels
    config = _config(shape)
    ask = engine_config(
        max_num_seqs=rows,
        max_model_len=2 * shape.context,
        quantization=asked,
        kernels=wanted,
        **({"block_size": 16, "prefill_chunk_tokens": 8} if setting.is_tiny else {}),
    )
    platform = "cpu" if setting.is_tiny else "gpu"
    architecture = architecture_named("llama")
    storage = storage_without_weights(
        config,
        architecture,
        weights="packed",
        quantization=quantization_from(asked),
        platform="gpu",
    )
    device = Device(platform=platform, free_bytes=100 << 30)
    geometry = decide_geometry(ask, config, device, storage.share)
    geometry = replace(geometry, decode_widths=(max(rows, geometry.decode_widths[0]),))
    shapes = abstract_params(config, architecture, geometry.weight_dtype, storage.packed)
    shapes = kernels_of_weights(shapes, ask, geometry)
    width = geometry.decode_widths[-1]
    source = program_sources(shapes, config, geometry)[f"decode_step W={width}"]
    ms = _time(source, _params(shapes, setting.seed), config, geometry, shape.context, setting)
    read, _ = read_bytes(shapes, config, None, geometry)
    bandwidth = int(setting.machine.copy_bytes_per_s)
    load = decode_load(config, geometry, read, bandwidth, None, rows, shape.context)
    floor_ms = load.floor_s * 1e3
    case = f"{shape.name} {quantization or 'bf16'}, {rows} rows at {shape.context}"
    return Row(section="decode step", case=case, implementation=kernels, ms=ms,
               rate=rows / ms * 1e3, unit="tokens/s", share=floor_ms / ms,
               note=f"floor {floor_ms:.2f} ms")  # fmt: skip


def _time(
    source: Any,
    params: Any,
    config: ModelConfig,
    geometry: Geometry,
    context: int,
    setting: Setting,
) -> float:
    """Milliseconds a step, launched one after another without reading anything between."""
    step = source.lower().compile()
    cache = init_cache(config, geometry)
    state = init_loop_state(geometry.num_slots, config.vocab_size)
    batch = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), source.arguments[3])
    width, columns = batch.tables.shape[1:]
    used = np.arange(width * columns, dtype=np.int32).reshape(1, width, columns)
    tables = 1 + used % (geometry.num_pages[0] - 1)
    slots = jnp.minimum(jnp.arange(width, dtype=jnp.int32), geometry.num_slots)
    positions = jnp.full((width,), context - 1, jnp.int32)
    batch = replace(batch, slots=slots, positions=positions, tables=jnp.asarray(tables))
    best = float("inf")
    for _ in range(3):
        start, steps = time.perf_counter(), setting.repeats()
        for _ in range(steps):
            cache, state, packed, _ = step(params, cache, state, batch)
        jax.block_until_ready(packed)
        best = min(best, 1000 * (time.perf_counter() - start) / steps)
    return best


def _params(shapes: Any, seed: int) -> Any:
    """Random weights on the device, a leaf at a time."""

    def made(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        key = jax.random.key(seed + leaf.size % 1000)
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jax.random.bits(key, leaf.shape, jnp.uint8).astype(leaf.dtype)
        small = jax.random.normal(key, leaf.shape, leaf.dtype) * jnp.asarray(0.02, leaf.dtype)
        return small

    return jax.tree.map(jax.jit(made, static_argnums=0), shapes)


def _config(shape: Shape) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mlp_size=shape.mlp,
        max_position=131072,
        attention_scale=shape.head_dim**-0.5,
        windows=(0,) * shape.layers,
        ropes=(RopeConfig(theta=500000.0),),
        layer_ropes=(0,) * shape.layers,
        activation="silu",
        norm_eps=1e-5,
        tie_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
    )
