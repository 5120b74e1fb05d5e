"""Promises 2 and 3: what a request gives does not depend on what runs beside it, nor on how.

Random requests that use every parameter run alone on a small engine, and then together, in any
order, on engines of other shapes and with every setting of the host loop. All must be equal, bit
for bit. The fast tests have every value of every axis; the slow ones have the whole product.
"""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, RequestOptions, SamplingParams
from pallas_kernels.rms_norm import reference as norm_reference
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run, set_loop
from tests.end_to_end.random_requests import Asked, random_requests, run_all, run_each
from tests.support.byte_tokenizer import END, save_byte_tokenizer
from tests.support.tiny_models import TINY_CONFIG, TINY_GEMMA3_CONFIG, write_tiny

# One window layer more than full ones, and chunks, pages and prompts longer than the window. Heads
# below 64 and between multiples of 64: a CPU multiplies both in another order for more rows.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"base": TINY_CONFIG},
    "gemma3": {
        "base": TINY_GEMMA3_CONFIG,
        "num_hidden_layers": 3,
        "sliding_window_pattern": 2,
        "sliding_window": 24,
        "num_key_value_heads": 2,
        "head_dim": 96,
    },
}
INT8_WEIGHTS = {"quantization": {"method": "int8", "float_ends": 0}, "weights": "packed"}
DTYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "auto": {"dtype": "auto"},  # bfloat16 weights
    "bfloat16 pages": {"dtype": "auto", "kv_cache_dtype": "bfloat16"},
    "int8 weights": {"dtype": "auto", **INT8_WEIGHTS},
    "int8 pages": {"dtype": "auto", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "auto", "kv_cache_dtype": "int8", **INT8_WEIGHTS},
}
ASKED = random_requests(3, 24)


class Shape(NamedTuple):
    """What decides an engine's programs.

    page: tokens of one. few: the pool has a third of the pages that the slots could use, a sixth
    of those of 32 slots. drafts: tokens are drafted and verified in every decode step.
    """

    slots: int
    chunk: int
    page: int
    few: bool
    drafts: bool = False

    @property
    def must_hit(self) -> bool:
        """False where few pages keep no prefix as long as the longer chunks, and where a page is
        longer than a prompt."""
        return not self.few and self.page < max(len(one.prompt) for one in ASKED)

    @property
    def pages(self) -> int | None:
        """Pages in the pool; None for as many as every slot may need."""
        if not self.few:
            return None
        tokens = [len(one.prompt) + (one.params.max_tokens or 0) for one in ASKED]
        needs = sorted(-(-count // self.page) for count in tokens)
        # Of 32 slots not all are full at once: a third of their pages would be enough.
        return max(needs[-1], sum(needs[-self.slots :]) // (3 if self.slots <= 8 else 6))


class Loop(NamedTuple):
    """How the host runs it. room: admission, and what happens where pages run out."""

    room: str
    caches: bool
    overlaps: bool
    burst: int

    def settings(self, numbers: random.Random) -> dict[str, Any]:
        """Options of the engine; those that only order the work are drawn."""
        return {
            "admission": "reserve" if self.room == "reserve" else "optimistic",
            "preemption": "swap" if self.room == "swap" else "recompute",
            "enable_prefix_caching": self.caches,
            "async_scheduling": self.overlaps,
            "num_decode_steps": self.burst,
            "scheduling_policy": numbers.choice(("fcfs", "priority")),
            "latency_max_num_seqs": numbers.choice((None, 0, 1)),
            "max_prefill_steps": numbers.choice((1, 3)),
            "enable_chunked_prefill": numbers.choice((True, False)),
            "long_prefill_token_threshold": numbers.choice((None, 1)),
        }


DRAFTS: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "tokens_by_running": ((8, 4),),
    "adaptive": False,
}
ROOMS = ("reserve", "recompute", "swap")
SLOTS, CHUNKS = (2, 8, 32), (8, 16, 64)
PREFILL_ROWS = {2: 1, 8: 6, 32: 4}  # the most, by slots
LOOPS = [Loop(*values) for values in product(ROOMS, (True, False), (True, False), (1, 4))]
CASES = list(product(MODELS, DTYPES))
# By model and dtype: the engine on which requests run alone, another one, and loops for each.
Selection = tuple[Shape, tuple[Loop, ...]]
FAST: dict[tuple[str, str], tuple[Selection, ...]] = {
    ("llama", "int8"): (
        (
            Shape(2, 16, 16, few=True),
            (Loop("recompute", True, True, 4), Loop("swap", False, False, 1)),
        ),
        (
            Shape(8, 64, 8, few=True, drafts=True),
            (Loop("recompute", False, True, 1), Loop("swap", True, True, 4)),
        ),
    ),
    ("gemma3", "bfloat16 pages"): (
        (
            Shape(2, 8, 8, few=True),
            (Loop("recompute", False, False, 4), Loop("swap", True, True, 1)),
        ),
        (
            Shape(32, 16, 64, few=False),
            (Loop("reserve", True, True, 1), Loop("reserve", False, False, 4)),
        ),
    ),
}
ALL_SHAPES = [Shape(slots, chunk, min(chunk, 16), True) for slots, chunk in product(SLOTS, CHUNKS)]
ALL_SHAPES += [Shape(8, chunk, 8, few=True, drafts=True) for chunk in CHUNKS]
ALL_SHAPES += [Shape(2, 16, 32, False), Shape(8, 16, 64, False), Shape(32, 16, 128, False)]
SCORED = [one.prompt for one in ASKED[:6]]


class Case(NamedTuple):
    """A model, the engine on which requests ran alone, and what they gave there."""

    model: Path
    dtype: str
    shape: Shape
    llm: LLM
    alone: list[Any]
    scores: list[Any]
    logits: np.ndarray


def open_shape(open_llm: OpenLLM, model: Path, dtype: str, shape: Shape, **options: Any) -> LLM:
    return open_llm(
        model,
        **DTYPES[dtype],
        max_num_seqs=shape.slots,
        prefill_chunk_tokens=shape.chunk,
        block_size=shape.page,
        num_gpu_blocks_override=shape.pages,
        admission="optimistic",  # with swap, so that its programs are there
        preemption="swap",
        max_num_batched_tokens=shape.chunk * PREFILL_ROWS[shape.slots],
        speculative_config=DRAFTS if shape.drafts else None,
        **options,
    )


def open_case(
    open_llm: OpenLLM, folder: Path, name: str, dtype: str, shape: Shape
) -> Iterator[Case]:
    model = write_tiny(folder, **MODELS[name], eos_token_id=END)
    save_byte_tokenizer(model)
    with open_shape(open_llm, model, dtype, shape) as llm:
        set_loop(llm, **Loop("reserve", False, False, 1).settings(random.Random(0)))
        alone = run_each(llm, ASKED)
        logits = forced_logits(llm)
        yield Case(model, dtype, shape, llm, alone, scores_of(llm), logits)


def scores_of(llm: LLM) -> list[Any]:
    outputs = llm.score(SCORED, use_tqdm=False)
    return [(one.token_logprobs, one.error) for one in outputs]


def forced_logits(llm: LLM, decode_from: int | None = None) -> np.ndarray:
    return llm.logits(ASKED[0].prompt, decode_from=decode_from)


def check_loop(
    llm: LLM, case: Case, loop: Loop, *, must_preempt: bool, must_hit: bool = True
) -> None:
    """Shuffled, twice where the second run may find pages of the first."""
    numbers = random.Random(str(loop))
    set_loop(llm, **loop.settings(numbers))
    before = llm.get_metrics()
    for _ in range(1 + loop.caches):
        order = numbers.sample(range(len(ASKED)), len(ASKED))
        found = run_all(llm, ASKED, order)
        differing = [place for place in order if found[place] != case.alone[place]]
        assert not differing, [ASKED[place] for place in differing[:2]]
        assert_drained(llm)
    assert scores_of(llm) == case.scores
    after = llm.get_metrics()
    counts = {name: value - before.get(name, 0) for name, value in after.items()}
    assert counts["prefix_cache_hits"] == 0 or loop.caches
    assert counts["prefix_cache_hits"] > 0 or not (loop.caches and must_hit)
    assert counts["num_preemptions"] > 0 or not must_preempt
    drafts = counts.get("spec_decode_num_accepted_tokens", 0)
    assert (drafts > 0) == bool(llm.geometry.draft_tokens)
    assert loop.room != "reserve" or not counts["num_preemptions"]


def check_logits(llm: LLM, case: Case) -> None:
    np.testing.assert_array_equal(forced_logits(llm), case.logits)
    np.testing.assert_array_equal(forced_logits(llm, decode_from=3), case.logits)


@pytest.fixture(scope="module", params=list(FAST), ids=lambda names: "-".join(names))
def fast_case(
    request: pytest.FixtureRequest, open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, tuple[Selection, ...]]]:
    chosen = FAST[request.param]
    folder = tmp_path_factory.mktemp(request.param[0])
    for case in open_case(open_llm, folder, *request.param, chosen[0][0]):
        yield case, chosen


def test_bits_are_those_of_a_request_alone(
    fast_case: tuple[Case, tuple[Selection, ...]],
) -> None:
    """Promises 2 and 3, on the engine that ran them alone: with neighbours, and with few pages."""
    case, ((shape, loops), _) = fast_case
    for loop in loops:
        check_loop(case.llm, case, loop, must_preempt=shape.few)


def test_bits_are_those_of_a_request_alone_elsewhere(
    open_llm: OpenLLM, fast_case: tuple[Case, tuple[Selection, ...]]
) -> None:
    """Promises 2 and 3, on an engine of another shape; teacher-forced logits too."""
    case, (_, (shape, loops)) = fast_case
    with open_shape(open_llm, case.model, case.dtype, shape) as llm:
        check_logits(llm, case)
        for loop in loops:
            check_loop(llm, case, loop, must_preempt=shape.few)


def test_the_fast_selection_has_every_value_of_every_axis() -> None:
    chosen = [selection for pair in FAST.values() for selection in pair]
    shapes, loops = [shape for shape, _ in chosen], [loop for _, one in chosen for loop in one]
    assert [{shape[axis] for shape in shapes} for axis in range(5)] == [
        *(set(SLOTS), set(CHUNKS), {8, 16, 64}, {True, False}, {True, False}),
    ]
    assert [{loop[axis] for loop in loops} for axis in range(4)] == [
        *(set(ROOMS), {True, False}, {True, False}, {1, 4}),
    ]
    assert {name for name, _ in FAST} == set(MODELS)
    # Dtypes differ in no axis that the host sees: each kind of array is here, the slow tests have
    # all of them; float32 is what the other tests run in.
    assert {one for _, one in FAST} == {"int8", "bfloat16 pages"}


def test_the_requests_use_every_parameter() -> None:
    """Every field has a value that is not its default."""
    for record, plain in (
        ([one.params for one in ASKED], SamplingParams()),
        ([one.options for one in ASKED], RequestOptions()),
    ):
        for entry in fields(plain):
            values = {str(getattr(one, entry.name)) for one in record}
            assert values - {str(getattr(plain, entry.name))}, entry.name


@pytest.fixture(scope="module", params=CASES, ids=lambda names: "-".join(names))
def slow_case(
    request: pytest.FixtureRequest, open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp(request.param[0])
    yield from open_case(open_llm, folder, *request.param, Shape(2, 16, 16, few=True))


@pytest.mark.slow
@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_bits_in_every_shape_and_loop(open_llm: OpenLLM, slow_case: Case, shape: Shape) -> None:
    """Promises 2 and 3: the whole product."""
    with open_shape(open_llm, slow_case.model, slow_case.dtype, shape) as llm:
        check_logits(llm, slow_case)
        for loop in LOOPS:
            check_loop(llm, slow_case, loop, must_preempt=False, must_hit=shape.must_hit)
        assert llm.get_metrics()["num_preemptions"] > 0 or not shape.few


def test_the_check_sees_a_sum_that_depends_on_the_number_of_rows(
    open_llm: OpenLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inverse: a norm that adds in another order from three rows on gives other bits."""
    folded_sum = norm_reference.folded_sum

    def sum_by_rows(values: jax.Array) -> jax.Array:
        if values.size // values.shape[-1] <= 2:
            return folded_sum(values)
        return folded_sum(jnp.concatenate([values[..., ::2], values[..., 1::2]], axis=-1))

    monkeypatch.setattr(norm_reference, "folded_sum", sum_by_rows)
    model = write_tiny(tmp_path, **MODELS["llama"], eos_token_id=END)
    save_byte_tokenizer(model)
    asked = [replace(one, options=RequestOptions()) for one in ASKED[:8]]
    with open_llm(model, fresh=True, max_num_seqs=8, max_num_batched_tokens=16) as llm:
        assert run_all(llm, asked) != run_each(llm, asked)


def test_the_check_sees_another_seed(tiny: LLM) -> None:
    """The inverse, promise 3: one request drawn with another seed gives other tokens."""
    params = SamplingParams(temperature=1.5, seed=1, max_tokens=8, ignore_eos=True)
    first, same, other = run(tiny, [[5, 6]] * 3, [params, params, replace(params, seed=9)])
    assert bits(first) == bits(same)
    assert bits(first) != bits(other)


def test_a_long_random_mix(tiny: LLM) -> None:
    """Sixty other requests through eight slots, each as alone (promise 2)."""
    asked: list[Asked] = random_requests(17, 60)
    together = run_all(tiny, asked)
    tiny.reset_prefix_cache()
    for place, one in enumerate(asked):
        assert run_all(tiny, [one])[0] == together[place], place
