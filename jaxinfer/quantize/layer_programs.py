"""JOINT. The compiled programs of makers: a layer over the calibration text, and its inputs seen.

They run the models' own layer function; every sequence has pages of its own for the one layer that
is at work. Knows neither methods nor files.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.cache import init_cache, page_slots
from jaxinfer.config.geometry import HEAD_ROWS, Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.rope import rope_table
from jaxinfer.models.transformer import decoder_layer, embed
from jaxinfer.quantize.input_statistics import InputStatistics
from jaxinfer.quantize.layer import Layer, observed
from jaxinfer.runner.compile import ProgramSource, compile_program

_TOKENS_AT_ONCE = 4096
_PAGE_TOKENS = 64


class LayerPrograms:
    """Layers of one model over sequences of one length, a batch of them at a time.

    Args:
        shape: (sequences, tokens of each) of the calibration text.
    """

    def __init__(self, config: ModelConfig, shape: tuple[int, int]) -> None:
        self._config, self._shape = config, shape
        self._batch = _batch_of(*shape)
        self._geometry = _geometry(self._batch, shape[1])
        self._compiled: dict[Any, Any] = {}

    def embed(self, table: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[sequences, tokens, E] f32 – what the first layer reads.

        Args:
            table: [rows, E] f32. tokens: [sequences, tokens] i32, rows of it.
        """
        function = functools.partial(embed_step, config=self._config, geometry=self._geometry)
        program = self._program("embed", function, table, tokens[: self._batch])
        return self._over_batches(lambda some: np.asarray(program(table, some)), tokens)

    def run(self, number: int, layer: Layer, hidden: np.ndarray) -> np.ndarray:
        """[sequences, tokens, E] f32 – what the layer makes of `hidden`, of the same shape."""
        params = layer.params()
        program = self._layer_program(number, layer_step, params)
        return self._over_batches(lambda some: np.asarray(program(params, some)), hidden)

    def observe(
        self, number: int, layer: Layer, hidden: np.ndarray, names: Sequence[str]
    ) -> dict[str, InputStatistics]:
        """What the inputs of the layer's matrices `names` are like, by name."""
        params = layer.params()
        function = functools.partial(observe_step, names=tuple(names))
        program = self._layer_program(number, function, params, *names)
        total: dict[str, InputStatistics] = {}
        for start in range(0, len(hidden), self._batch):
            seen = program(params, hidden[start : start + self._batch])
            for name, (gram, sums, largest) in seen.items():
                new = InputStatistics(
                    gram=np.asarray(gram, np.float64),
                    total=np.asarray(sums, np.float64),
                    largest=np.asarray(largest, np.float64),
                    num_tokens=self._batch * self._shape[1],
                )
                total[name] = total[name].joined(new) if name in total else new
        return total

    def _layer_program(
        self, number: int, function: Callable[..., Any], params: Any, *names: str
    ) -> Any:
        window, rope = self._config.windows[number], self._config.layer_ropes[number]
        bound = functools.partial(
            function, config=self._config, geometry=self._geometry, window=window, rope=rope
        )
        shape = (self._batch, self._shape[1], self._config.hidden_size)
        hidden = jax.ShapeDtypeStruct(shape, jnp.float32)
        return self._program((window, rope, names), bound, params, hidden)

    def _program(self, key: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        if key not in self._compiled:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
            self._compiled[key] = compile_program(
                ProgramSource(function=function, arguments=shapes)
            )
        return self._compiled[key]

    def _over_batches(
        self, function: Callable[[np.ndarray], np.ndarray], values: np.ndarray
    ) -> np.ndarray:
        starts = range(0, len(values), self._batch)
        return np.concatenate([function(values[at : at + self._batch]) for at in starts])


def embed_step(
    table: jax.Array, tokens: jax.Array, *, config: ModelConfig, geometry: Geometry
) -> jax.Array:
    """[B, Q] rows of the table → [B, Q, E]."""
    return embed(table, tokens, config, geometry)


def layer_step(
    params: dict,
    hidden: jax.Array,
    *,
    config: ModelConfig,
    geometry: Geometry,
    window: int,
    rope: int | None,
) -> jax.Array:
    """[B, Q, E] → [B, Q, E]: one layer over whole sequences that begin at position 0."""
    rows, num_tokens = hidden.shape[:2]
    starts, lengths = jnp.zeros(rows, jnp.int32), jnp.full(rows, num_tokens, jnp.int32)
    width = geometry.pages_per_row
    table = 1 + jnp.arange(rows * width, dtype=jnp.int32).reshape(rows, width)
    positions = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32), (rows, num_tokens))
    turns = None
    if rope is not None:
        turns = rope_table(config.ropes[rope], positions, config.head_dim, geometry.max_model_len)
    cache = init_cache(config, geometry)
    slots = page_slots(table, starts, lengths, num_tokens, geometry.page_tokens)
    pages = (cache.keys[0], cache.values[0])
    return decoder_layer(hidden, params, pages, slots, turns, config, window, geometry)[0]


def observe_step(
    params: dict, hidden: jax.Array, *, names: tuple[str, ...], **place: Any
) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
    """Of the inputs of each matrix: their products [in, in], magnitudes summed and at most [in].

    place: as of `layer_step`; what lies behind the last of the matrices is not computed.
    """
    seen: dict[str, tuple[jax.Array, jax.Array, jax.Array]] = {}

    def observer(name: str, x: jax.Array) -> None:
        rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        sizes = jnp.abs(rows)
        seen[name] = (rows.T @ rows, jnp.sum(sizes, axis=0), jnp.max(sizes, axis=0))

    observers: Mapping[str, Any] = {name: functools.partial(observer, name) for name in names}
    layer_step(observed(params, observers), hidden, **place)
    return seen


def _batch_of(sequences: int, tokens: int) -> int:
    """Sequences at once: the most that divide them all and have few tokens together."""
    most = max(1, _TOKENS_AT_ONCE // tokens)
    return next(size for size in range(min(most, sequences), 0, -1) if sequences % size == 0)


def _geometry(rows: int, tokens: int) -> Geometry:
    """Pages for whole sequences, of one layer, everything in float32 and as the references do."""
    pages = -(-tokens // _PAGE_TOKENS)
    return Geometry(
        max_model_len=tokens,
        num_slots=rows,
        page_tokens=_PAGE_TOKENS,
        pages_per_row=pages,
        chunk_tokens=tokens,
        prefill_rows=(rows,),
        decode_widths=(rows,),
        head_rows=HEAD_ROWS,
        group_windows=(0,),
        layer_groups=(0,),
        num_pages=(1 + rows * pages,),
        weight_dtype="float32",
        activation_dtype="float32",
        kv_dtype="float32",
        attention_kernel="reference",
        norm_kernel="reference",
    )
