"""The paged cache: shapes by group, where things are written, and that nothing else changes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
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
from jaxinfer.config.geometry import Device, DraftNeeds, cache_bytes, plan_geometry
from pallas_kernels.paged_attention import HeadScaledPages, Pages, TokenScaledPages
from pallas_kernels.paged_attention.pages import round_by_head, round_by_token
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


@pytest.mark.parametrize("kv", ["int8", "fp8", "int8_key_only"])
def test_codes_and_scales_take_the_bytes_that_were_planned(kv: str) -> None:
    """Fixed scales (one axis) belong to no page."""
    model = model_config(windows=(0, 8))
    ask = EngineConfig(max_num_seqs=3, block_size=8, kv_cache_dtype=kv)  # type: ignore[arg-type]
    geometry = plan_geometry(ask, model, Device(platform="cpu", free_bytes=1 << 30))
    scales = (((0.5,), (0.25, 0.125)),) * 2 if kv == "fp8" else ()
    cache = init_cache(model, replace(geometry, kv_scales=scales))
    leaves = jax.tree.leaves(cache)
    assert sum(leaf.nbytes for leaf in leaves if leaf.ndim > 1) == cache_bytes(model, geometry)
    fixed = [np.asarray(leaf).tolist() for leaf in leaves if leaf.ndim == 1]
    assert fixed == ([[0.5, 0.5]] * 2 + [[0.25, 0.125]] * 2 if kv == "fp8" else [])
    assert not any(np.asarray(leaf).any() for leaf in leaves if leaf.ndim > 1)


def test_fixed_scales_of_a_draft_model_come_after_the_model_s() -> None:
    model, ask = model_config(windows=(0,)), EngineConfig(max_num_seqs=2, kv_cache_dtype="fp8")
    device = Device(platform="cpu", free_bytes=1 << 30)
    made = plan_geometry(ask, model, device, drafts=DraftNeeds(model=model))
    scales = (((0.5,), (0.25,)), ((2.0,), (4.0,)))
    cache = init_cache(model, replace(made, kv_scales=scales), model)
    fixed = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(cache) if leaf.ndim == 1]
    assert fixed == [[0.5] * 2, [2.0] * 2, [0.25] * 2, [4.0] * 2]


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


def coded_pages(kind: str, count: int = 10) -> Pages:
    """Random codes with scales, as a CPU holds them."""
    numbers, shape = np.random.default_rng(3), (count, 2, PAGE, 6)
    codes = jnp.asarray(numbers.integers(0, 100, shape), jnp.int8 if kind == "int8" else jnp.uint8)
    if kind == "int8":
        scales = numbers.random(shape[:3]).astype(ml_dtypes.bfloat16).view(np.uint16)
        return TokenScaledPages(codes, jnp.asarray(scales))
    return HeadScaledPages(codes, jnp.asarray([0.5, 0.25], jnp.float32))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_written_codes_are_those_of_the_token_alone(kind: str) -> None:
    """Every other code and scale is as it was: a page's codes are never made anew."""
    before = coded_pages(kind)
    new = np.random.default_rng(0).normal(size=(3, 3, 2, 6)).astype(np.float32)
    starts, lengths = [3, 4, 0], [3, 2, 1]
    after = jax.jit(write_kv)(before, new, slots_for(starts, lengths, 3))
    assert type(after) is type(before)
    held = [np.array(part) for part in before]
    for row in range(3):
        for index in range(lengths[row]):
            position, token = starts[row] + index, jnp.asarray(new[row, index])
            place = (TABLE[row, position // PAGE], slice(None), position % PAGE)
            if kind == "fp8":
                codes = round_by_head(token, before.scales)
                held[0][place] = np.asarray(codes).view(np.uint8)
            else:
                codes, scales = round_by_token(token)
                held[0][place] = codes
                held[1][place] = np.asarray(scales).view(np.uint16)
    for expected, found in zip(held, after, strict=True):
        pages = slice(1, None) if found.ndim > 1 else slice(None)
        np.testing.assert_array_equal(np.asarray(found)[pages], expected[pages])


def test_fixed_scales_stay_while_pages_come_and_go() -> None:
    """Copying, reading and writing of pages change codes, and scales where a page has its own."""
    cache = PagedKV(keys=(coded_pages("int8"),), values=(coded_pages("fp8"),))
    copied = jax.jit(partial(copy_pages, layer_groups=(0,)))(cache, ids(3), ids(9))
    content = jax.jit(partial(read_pages, layer_groups=(0,)))(cache, ids([4, 0]))
    written = jax.jit(partial(write_pages, layer_groups=(0,)))(cache, ids([8, 0]), content)
    for found, source, target in ((copied, 3, 9), (written, 4, 8)):
        for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(found), strict=True):
            expected = np.array(old)
            if old.ndim > 1:
                expected[target] = expected[source]
            np.testing.assert_array_equal(np.asarray(new), expected)


def test_a_write_takes_the_cache_s_own_memory() -> None:
    """Donated pages are aliased, also where they hold the bits of bfloat16, or codes."""
    for dtype in (jnp.float32, jnp.uint16, "int8", "fp8"):
        if isinstance(dtype, str):
            pages = coded_pages(dtype, 100)
        else:
            pages = jnp.zeros((100, 2, PAGE, 6), dtype)
        new = jnp.ones((3, 3, 2, 6), jnp.float32)
        slots = slots_for([3, 4, 0], [3, 2, 1], 3)
        program = jax.jit(write_kv, donate_argnums=0).lower(pages, new, slots).compile()
        analysis = program.memory_analysis()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(pages))
        assert analysis is not None and analysis.alias_size_in_bytes == size
        assert analysis.temp_size_in_bytes < size  # no second copy, no widened one


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
