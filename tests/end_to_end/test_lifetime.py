"""From start to close: memory comes back, also after a start that failed, and engines follow on."""

import gc
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import CapacityError, CheckpointError, ConfigError, JaxInferError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import bits, run
from tests.support.tiny_models import write_tiny

PROMPTS = [[1, 2, 3], list(range(40))]
ONE_PROGRAM = {"max_num_batched_tokens": 16}  # one prefill program, to start quickly


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.fixture
def other(open_llm: OpenLLM, tiny_folder: Path) -> LLM:
    return open_llm(tiny_folder, **ONE_PROGRAM)


def test_close_returns_the_memory(open_llm: OpenLLM, tiny_folder: Path) -> None:
    before = live_bytes()
    llm = open_llm(tiny_folder, **ONE_PROGRAM)
    assert live_bytes() > before
    run(llm, PROMPTS)
    llm.close()
    assert live_bytes() == before
    llm.close()  # a second time does nothing


def test_close_returns_the_memory_of_a_model_that_drafts_for_itself(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """Promise 10: what both share is freed once."""
    before = live_bytes()
    drafting = {"method": "self", "num_layers": 1, "adaptive": False}
    llm = open_llm(tiny_folder, **ONE_PROGRAM, speculative_config=drafting)
    run(llm, PROMPTS)
    llm.close()
    assert live_bytes() == before
    llm.close()


def test_a_forgotten_engine_returns_the_memory(open_llm: OpenLLM, tiny_folder: Path) -> None:
    before = live_bytes()
    llm = open_llm(tiny_folder, **ONE_PROGRAM)
    run(llm, PROMPTS)
    del llm
    assert live_bytes() == before


def test_two_engines_in_turn_give_the_same(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """Promise 10."""
    found = []
    for _ in range(2):
        with open_llm(tiny_folder, **ONE_PROGRAM) as llm:
            found.append([bits(output) for output in run(llm, PROMPTS)])
    assert found[0] == found[1]


def test_two_engines_at_once_do_not_disturb_each_other(other: LLM, tiny: LLM) -> None:
    alone = [bits(output) for output in run(tiny, PROMPTS)]
    stream = tiny.stream(PROMPTS, SamplingParams(temperature=0, max_tokens=8))
    next(stream)
    assert [bits(output) for output in run(other, PROMPTS)] == alone
    stream.close()
    other.close()
    assert [bits(output) for output in run(tiny, PROMPTS)] == alone


@pytest.mark.parametrize(
    "use", ["generate", "chat", "stream", "chat_stream", "logits", "score", "reset_prefix_cache"]
)
def test_a_closed_engine_says_so(other: LLM, use: str) -> None:
    with other:
        pass
    message = [{"role": "user", "content": "hi"}]
    calls = {
        "generate": lambda: other.generate([[1]]),
        "chat": lambda: other.chat(message),
        "stream": lambda: list(other.stream([[1]])),
        "chat_stream": lambda: list(other.chat_stream(message)),
        "logits": lambda: other.logits([1]),
        "score": lambda: other.score([[1]]),
        "reset_prefix_cache": other.reset_prefix_cache,
    }
    with pytest.raises(JaxInferError, match="closed; make a new one"):
        calls[use]()
    assert other.get_metrics()["num_requests_running"] == 0


def test_closing_under_a_stream_ends_it_with_an_error(other: LLM) -> None:
    stream = other.stream(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    next(stream)
    other.close()
    with pytest.raises(JaxInferError, match="closed"):
        list(stream)


@pytest.mark.parametrize("way", ["close", "leave"])
def test_closing_with_steps_under_way_returns_the_memory(
    open_llm: OpenLLM, tiny_folder: Path, way: str
) -> None:
    """Promise 10: what is launched and not read belongs to the engine too."""
    before = live_bytes()
    llm = open_llm(tiny_folder, **ONE_PROGRAM)
    stream = llm.stream(PROMPTS, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    for _ in range(4):
        next(stream)
    if way == "leave":
        stream.close()
    llm.close()
    assert live_bytes() == before
    with pytest.raises(StopIteration if way == "leave" else JaxInferError):
        next(stream)


def test_close_forgets_what_lay_on_the_host(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """Promise 10, with requests that were preempted when it came."""
    before = live_bytes()
    few = {"num_gpu_blocks_override": 6, "admission": "optimistic", "preemption": "swap"}
    llm = open_llm(tiny_folder, **ONE_PROGRAM, **few)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    stream = llm.stream([[place] * 20 for place in range(4)], params)
    while not llm.engine.runner._swapped:
        next(stream)
    llm.close()
    assert not llm.engine.runner._swapped and live_bytes() == before


def start_that_fails(open_llm: OpenLLM, folder: Path, kind: str) -> None:
    weights = {
        "missing tensor": {"drop": ["model.norm.weight"]},
        # Found while loading, when the tensors before it are on the device.
        "nan": {"add": {"model.norm.weight": np.full(64, np.nan, np.float32)}},
    }
    if kind == "nan in the draft model":  # the model is on the device by then
        draft = write_tiny(folder / "draft", **weights["nan"])
        speculative = {"method": "draft_model", "model": str(draft)}
        open_llm(write_tiny(folder / "model"), **ONE_PROGRAM, speculative_config=speculative)
    options = {"too long": {"max_model_len": 257}, "too large": {"gpu_memory_utilization": 1e-9}}
    write_tiny(folder, **weights.get(kind, {}))
    open_llm(folder, **ONE_PROGRAM, **options.get(kind, {}))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("missing tensor", CheckpointError, "model.norm.weight"),
        ("nan", CheckpointError, "NaN"),
        ("nan in the draft model", CheckpointError, "NaN"),
        ("too long", ConfigError, "max_model_len=257.*256"),
        ("too large", CapacityError, "gpu_memory_utilization"),
    ],
)
def test_an_engine_after_a_failed_start(
    open_llm: OpenLLM, tiny_folder: Path, tmp_path: Path, kind: str, error: type, words: str
) -> None:
    """Promise 10: the failed one holds no memory, and the next one works."""
    before = live_bytes()
    with pytest.raises(error, match=words):
        start_that_fails(open_llm, tmp_path, kind)
    assert live_bytes() == before
    with open_llm(tiny_folder, **ONE_PROGRAM) as llm:
        assert run(llm, PROMPTS)[0].error is None


def test_an_error_inside_the_with_block_closes_too(open_llm: OpenLLM, tiny_folder: Path) -> None:
    before = live_bytes()
    with pytest.raises(ZeroDivisionError), open_llm(tiny_folder, **ONE_PROGRAM):
        raise ZeroDivisionError
    assert live_bytes() == before


def test_what_can_never_fit_is_refused_with_both_numbers(open_llm: OpenLLM, tmp_path: Path) -> None:
    """A pool of a terabyte, asked for by hand."""
    folder = write_tiny(tmp_path, max_position_embeddings=2**30)
    pool = {"max_model_len": 2**30, "block_size": 1024, "num_gpu_blocks_override": 2**21}
    with pytest.raises(CapacityError, match=r"needs [\d,]+ bytes .*free.*num_gpu_blocks_override"):
        open_llm(folder, **pool, **ONE_PROGRAM)
