"""Promise 2: a request's tokens and log-probabilities do not depend on what runs beside it."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from pallas_kernels.rms_norm import reference as norm_reference
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import bits, run
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
Shape = tuple[int, int, int]  # slots, T, tokens in a page
BASE: Shape = (2, 16, 16)
# The fast two have every number of slots, T and page size; the others put them together anew.
FAST: tuple[Shape, ...] = (BASE, (8, 64, 64))
REST: tuple[Shape, ...] = tuple(
    shape for shape in product((2, 8), (16, 64), (16, 64)) if shape not in FAST
)
# What is checked: (model, dtype, what every request gives alone, logits of some tokens).
Case = tuple[Path, str, list[Any], np.ndarray]
LENGTHS = (1, 5, 16, 17, 40, 64, 70, 100)


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Eight prompts around the chunk lengths, each drawn in another way."""
    ways = [
        {"temperature": 0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 0, "logprobs": 0},
        {"temperature": 1.3, "seed": 2, "top_k": 5},
        {"temperature": 1.0, "seed": 3, "top_p": 0.8},
        {"temperature": 0},
        {"temperature": 2.0, "seed": 4, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.0, "seed": 5, "n": 2},
    ]
    numbers = np.random.default_rng(7)
    common: dict[str, Any] = {"ignore_eos": True, "logprobs": 3}
    return [
        (
            numbers.integers(0, 320, length).tolist(),
            SamplingParams(**{**common, "max_tokens": 6 + 3 * place, **way}),
        )
        for place, (length, way) in enumerate(zip(LENGTHS, ways, strict=True))
    ]


def run_alone(llm: LLM) -> list[Any]:
    return [bits(run(llm, [prompt], params)[0]) for prompt, params in requests()]


def run_together(llm: LLM, order: list[int]) -> list[Any]:
    asked = requests()
    outputs = run(llm, [asked[i][0] for i in order], [asked[i][1] for i in order])
    by_place = dict(zip(order, outputs, strict=True))
    return [bits(by_place[place]) for place in range(len(order))]


def forced_logits(llm: LLM, decode_from: int | None = None) -> np.ndarray:
    return llm.logits(requests()[-1][0], decode_from=decode_from)


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp(request.param), **MODELS[request.param])


@pytest.fixture(scope="module", params=["float32", "auto"])
def case(request: pytest.FixtureRequest, model: Path, open_llm: OpenLLM) -> Iterator[Case]:
    """What the smallest engine gives, for a model and a dtype."""
    with open_shape(open_llm, model, request.param, BASE) as llm:
        yield model, request.param, run_alone(llm), forced_logits(llm)


def open_shape(open_llm: OpenLLM, model: Path, dtype: str, shape: Shape) -> LLM:
    slots, chunk, page = shape
    # The base compiles one prefill program, of one chunk; the others one of four chunks as well.
    most = {"max_num_batched_tokens": chunk} if shape == BASE else {}
    return open_llm(
        model, dtype=dtype, max_num_seqs=slots, prefill_chunk_tokens=chunk, block_size=page, **most
    )


def check_shape(open_llm: OpenLLM, case: Case, shape: Shape) -> None:
    model, dtype, expected, logits = case
    order = list(range(len(LENGTHS)))
    shuffled = random.Random(3).sample(order, len(order))
    with open_shape(open_llm, model, dtype, shape) as llm:
        assert run_together(llm, order) == expected
        assert run_together(llm, shuffled) == expected
        assert run_alone(llm) == expected
        np.testing.assert_array_equal(forced_logits(llm), logits)
        np.testing.assert_array_equal(forced_logits(llm, decode_from=20), logits)


@pytest.mark.parametrize("shape", FAST, ids=str)
def test_bits_are_those_of_a_request_alone(open_llm: OpenLLM, case: Case, shape: Shape) -> None:
    check_shape(open_llm, case, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", REST, ids=str)
def test_bits_are_those_of_a_request_alone_in_other_shapes(
    open_llm: OpenLLM, case: Case, shape: Shape
) -> None:
    check_shape(open_llm, case, shape)


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
    model = write_tiny(tmp_path, **MODELS["llama"])
    with open_llm(model, max_num_seqs=8) as llm:
        assert run_together(llm, list(range(len(LENGTHS)))) != run_alone(llm)


def test_the_check_sees_another_seed(open_llm: OpenLLM, tmp_path: Path) -> None:
    """The inverse: one request drawn with another seed gives other tokens."""
    prompt, params = requests()[3]
    with open_shape(open_llm, write_tiny(tmp_path, **MODELS["llama"]), "float32", BASE) as llm:
        first, same, other = run(llm, [prompt] * 3, [params, params, replace(params, seed=9)])
    assert bits(first) == bits(same)
    assert bits(first) != bits(other)


def test_a_long_random_mix(tiny: LLM) -> None:
    """Sixty requests of any length and way through eight slots, each as alone."""
    numbers = random.Random(17)
    prompts, params = [], []
    for place in range(60):
        prompts.append([numbers.randrange(320) for _ in range(numbers.choice((1, 7, 16, 30, 90)))])
        way: dict[str, Any] = {"temperature": numbers.choice((0, 0.5, 1.0, 2.0)), "seed": place}
        way["top_k"], way["top_p"] = numbers.choice((0, 3)), numbers.choice((1.0, 0.7))
        way["n"] = numbers.choice((1, 3)) if way["temperature"] else 1
        way["logprobs"] = numbers.choice((None, 1))
        params.append(SamplingParams(max_tokens=numbers.randrange(1, 25), **way))
    together = [bits(output) for output in run(tiny, prompts, params)]
    for place in range(60):
        assert bits(run(tiny, [prompts[place]], params[place])[0]) == together[place], place
