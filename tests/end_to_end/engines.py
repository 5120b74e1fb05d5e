"""What tests of whole engines share: settings, running, and what must be equal bit for bit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxinfer import LLM, CompletionOutput, RequestOutput, SamplingParams
from tests.support.tiny_models import TINY_GEMMA3_CONFIG

# Few and small programs, so that an engine starts in seconds.
SMALL: Mapping[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 2,
    "prefill_chunk_tokens": 16,
    "block_size": 16,
}
# A gemma3 of one window layer and one full layer, for `write_tiny`.
WINDOWED: Mapping[str, Any] = {
    "base": TINY_GEMMA3_CONFIG,
    "num_hidden_layers": 2,
    "sliding_window_pattern": 2,
    "sliding_window": 20,
    "tie_word_embeddings": False,
}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def set_loop(llm: LLM, **settings: Any) -> None:
    """Changes settings of the host loop, which no program depends on; empties slots and pages."""
    llm.engine.ask = replace(llm.engine.ask, **settings)
    llm.engine.reset()


def run(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    """`generate` without a bar."""
    return llm.generate(prompts, params, use_tqdm=False)


def run_one(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> CompletionOutput:
    """The only completion of one prompt."""
    (output,) = run(llm, [prompt], params)
    (completion,) = output.outputs
    return completion


def bits(output: RequestOutput) -> list[tuple]:
    """Everything of an output that batching must not change."""
    return [
        (one.index, one.text, one.token_ids, one.finish_reason, one.stop_reason, one.logprobs)
        for one in output.outputs
    ]


def ids(llm_outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Token ids of the first completion of each output."""
    return [output.outputs[0].token_ids for output in llm_outputs]


def assert_drained(llm: LLM) -> None:
    """No request, no slot and no page is left in use or promised, on the device or the host."""
    scheduler = llm.engine.scheduler
    assert not llm.engine.has_work and not scheduler.has_work and not scheduler.num_waiting
    assert not llm.engine._owners and not llm.engine.runner._swapped
    for pool in scheduler.pages.pools:
        assert (pool.num_used, pool.num_unpromised) == (0, pool.num_usable)
    assert not scheduler.pages.tables.any()
