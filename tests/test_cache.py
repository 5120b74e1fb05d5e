"""The paged cache: shapes by group, where things are written, and that nothing else changes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxinfer.cache import (
    NULL_PAGE,
    PagedKV,
    PageSlots,
    abstract_cache,
    copy_pages,
    init_cache,
    page_slots,
    read_pages,
    write_kv,
    write_pages,
)
from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Device, cache_bytes, plan_geometry
from tests.support.records import model_config

PAGE = 4
TABLE = np.array([[7, 9, 3], [2, 5, 0], [4, 0, 0]], np.int32)


def slots_for(starts: list[int], lengths: list[int], num_tokens: int) -> PageSlots:
    table, first, count = (jnp.asarray(x, jnp.int32) for x in (TABLE, starts, lengths))
    return page_slots(table, first, count, num_tokens, PAGE)


def test_shapes_follow_the_groups_and_the_bytes_that_were_planned() -> None:
    model = model_config(windows=(0, 8, 8))
    ask = EngineConfig(
        max_num_seqs=3, block_size=8, prefill_chunk_tokens=8, max_num_batched_tokens=8
    )
    geometry = plan_geometry(ask, model, Device(platform="cpu", free_bytes=1 << 30))
    shapes = abstract_cache(model, geometry)
    full, narrow = geometry.num_pages
    assert [leaf.shape for leaf in shapes.keys] == [(n, 2, 8, 16) for n in (full, narrow, narrow)]
    cache = init_cache(model, geometry)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), shapes
    )
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(cache)) == cache_bytes(model, geometry)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(cache))


def test_where_tokens_go() -> None:
    """The example of the docstring, a row across two pages, and an empty row."""
    slots = slots_for([3, 6, 0], [2, 3, 0], 3)
    pages, offsets = np.asarray(slots.pages).tolist(), np.asarray(slots.offsets).tolist()
    assert pages == [7, 9, NULL_PAGE, 5, 5, 0, NULL_PAGE, NULL_PAGE, NULL_PAGE]
    assert offsets[:2] == [3, 0] and offsets[3:5] == [2, 3]


def test_positions_past_the_table_go_to_the_null_page() -> None:
    """A chunk's padding may reach beyond the last column: no page of the row may be hit."""
    slots = slots_for([8, 0, 0], [4, 0, 0], 8)
    assert np.asarray(slots.pages).tolist() == [3] * 4 + [NULL_PAGE] * 20


@pytest.mark.parametrize(
    ("dtype", "as_bits"), [(jnp.float32, False), (jnp.bfloat16, False), (jnp.bfloat16, True)]
)
def test_written_tokens_are_there_and_all_else_is_as_it_was(
    dtype: jnp.dtype, as_bits: bool
) -> None:
    random = np.random.default_rng(0)
    before = jnp.asarray(random.normal(size=(10, 2, PAGE, 6)), dtype)
    new = jnp.asarray(random.normal(size=(3, 3, 2, 6)), jnp.float32)
    starts, lengths = [3, 4, 0], [3, 2, 1]
    pages = lax.bitcast_convert_type(before, jnp.uint16) if as_bits else before
    written = jax.jit(write_kv)(pages, new, slots_for(starts, lengths, 3))
    after = np.asarray(lax.bitcast_convert_type(written, dtype) if as_bits else written, np.float32)
    expected = np.array(before, np.float32)
    rounded = np.asarray(new.astype(dtype), np.float32)
    for row in range(3):
        for index in range(lengths[row]):
            position = starts[row] + index
            expected[TABLE[row, position // PAGE], :, position % PAGE] = rounded[row, index]
    np.testing.assert_array_equal(after[1:], expected[1:])


def test_a_write_takes_the_cache_s_own_memory() -> None:
    """Donated pages are aliased, also where they hold the bits of bfloat16."""
    for dtype in (jnp.float32, jnp.uint16):
        pages = jnp.zeros((10, 2, PAGE, 6), dtype)
        new = jnp.ones((3, 3, 2, 6), jnp.float32)
        slots = slots_for([3, 4, 0], [3, 2, 1], 3)
        program = jax.jit(write_kv, donate_argnums=0).lower(pages, new, slots).compile()
        analysis = program.memory_analysis()
        assert analysis is not None and analysis.alias_size_in_bytes == pages.nbytes
        assert analysis.temp_size_in_bytes < pages.nbytes  # no second copy, no widened one


GROUPS = (0, 1, 0)  # of three layers; the pool of group 1 is smaller


def random_cache(dtype: str = "float32") -> PagedKV:
    numbers = np.random.default_rng(2)

    def pages(count: int) -> jax.Array:
        return jnp.asarray(numbers.normal(size=(count, 2, PAGE, 6)) * 100, dtype)

    counts = [(10, 7)[group] for group in GROUPS]
    return PagedKV(
        keys=tuple(pages(count) for count in counts), values=tuple(pages(count) for count in counts)
    )


def layers(cache: PagedKV) -> list[tuple[int, np.ndarray]]:
    """Each array with its group."""
    sides = (*zip(GROUPS, cache.keys, strict=True), *zip(GROUPS, cache.values, strict=True))
    return [(group, np.asarray(array)) for group, array in sides]


def ids(*pages: object) -> jax.Array:
    return jnp.asarray(pages, jnp.int32)


def test_a_page_is_copied_in_every_layer_of_its_group() -> None:
    before = random_cache()
    after = jax.jit(partial(copy_pages, layer_groups=GROUPS))(before, ids(3, 5), ids(9, 1))
    for (group, old), (_, new) in zip(layers(before), layers(after), strict=True):
        expected = old.copy()
        expected[(9, 1)[group]] = old[(3, 5)[group]]
        np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint16"])
def test_pages_that_were_read_out_can_be_written_anywhere(dtype: str) -> None:
    """Padding is the null page, which may occur twice; every other page stays as it was."""
    before = random_cache(dtype)
    out, back = ids([3, 4, 0], [5, 0, 0]), ids([8, 2, 0], [6, 0, 0])
    content = jax.jit(partial(read_pages, layer_groups=GROUPS))(before, out)
    assert {leaf.shape for leaf in jax.tree.leaves(content)} == {(3, 2, PAGE, 6)}
    after = jax.jit(partial(write_pages, layer_groups=GROUPS))(before, back, content)
    for (group, old), (_, new) in zip(layers(before), layers(after), strict=True):
        expected = old.copy()
        for source, target in zip(np.asarray(out)[group], np.asarray(back)[group], strict=True):
            expected[target] = old[source]
        np.testing.assert_array_equal(new[1:], expected[1:])


def test_pages_go_through_the_host_with_every_bit() -> None:
    """What preemption does: device to NumPy and back."""
    before = random_cache("bfloat16")
    out = ids([3, 4], [5, 6])
    read = jax.jit(partial(read_pages, layer_groups=GROUPS))
    content = jax.tree.map(np.asarray, read(before, out))
    emptied = jax.tree.map(jnp.zeros_like, before)
    after = jax.jit(partial(write_pages, layer_groups=GROUPS))(emptied, out, content)
    found = jax.tree.map(np.asarray, read(after, out))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(content), strict=True):
        np.testing.assert_array_equal(one.view(np.uint16), other.view(np.uint16))
