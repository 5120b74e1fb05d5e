"""Promise 7: few pages give the same text, later; what can never fit is that row's error."""

from pathlib import Path

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import RequestError
from tests.end_to_end.conftest import FEW_PAGES, OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, bits, run
from tests.support.tiny_models import write_tiny

ONE_PROGRAM = {"max_num_batched_tokens": 16}
FEW = FEW_PAGES  # of 16 tokens: one and a half of the requests below


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    numbers = np.random.default_rng(5)
    prompts = [numbers.integers(0, 320, length).tolist() for length in (40, 33, 45, 20, 48)]
    ways = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "seed": 2, "n": 2},
        {"temperature": 0},
        {"temperature": 0.5, "seed": 3},
    ]
    common = {"max_tokens": 17, "logprobs": 2, "ignore_eos": True}
    return prompts, [SamplingParams(**{**common, **way}) for way in ways]


def test_the_pool_has_as_many_pages_as_asked(few: LLM) -> None:
    assert [pool.num_usable for pool in few.engine.scheduler.pages.pools] == [FEW]


def test_few_pages_give_the_same_text(few: LLM, tiny: LLM) -> None:
    prompts, params = requests()
    ample = [bits(output) for output in run(tiny, prompts, params)]
    assert [bits(output) for output in run(few, prompts, params)] == ample
    assert_drained(few)
    usage = few.get_metrics()
    assert 0.5 < usage["kv_cache_usage_peak_perc"] <= 1.0
    assert usage["kv_cache_usage_perc"] == 0.0


def test_windows_free_pages_while_full_layers_keep_theirs(
    open_llm: OpenLLM, tmp_path: Path
) -> None:
    """Long prompts and answers, far beyond the window: few pages against ample ones."""
    folder = write_tiny(tmp_path, **WINDOWED)
    numbers = np.random.default_rng(6)
    prompts = [numbers.integers(0, 320, length).tolist() for length in (150, 3, 90, 121)]
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=1, ignore_eos=True)
    found = []
    for pages in (None, 16):
        with open_llm(folder, **ONE_PROGRAM, num_gpu_blocks_override=pages) as llm:
            found.append([bits(output) for output in run(llm, prompts, params)])
            assert_drained(llm)
            window = llm.engine.scheduler.pages.needs(256)[1]
    assert found[0] == found[1]
    assert window == 4  # a window of 20, a step of 16, and one page that they straddle


def test_what_can_never_fit_is_an_error_with_both_numbers(few: LLM, tiny: LLM) -> None:
    """The others go on, bit for bit as alone."""
    prompts, params = requests()
    long = list(range(110))  # 110 + 17 - 1 tokens are eight pages
    outputs = run(few, [prompts[0], long, prompts[1]], [params[0], params[0], params[1]])
    error = outputs[1].error
    assert error is not None and "8 pages" in error and str(FEW) in error
    assert outputs[1].outputs[0].finish_reason == "error"
    alone = run(tiny, prompts[:2], params[:2])
    assert [bits(outputs[0]), bits(outputs[2])] == [bits(output) for output in alone]


def test_fewer_tokens_asked_for_may_fit(few: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    (output,) = run(few, [list(range(95))], params)  # 96 tokens are six pages
    assert output.error is None and len(output.outputs[0].token_ids) == 2


def test_logits_need_pages_too(few: LLM) -> None:
    assert few.logits(list(range(96))).shape == (96, 320)
    with pytest.raises(RequestError, match=r"7 pages .*6"):
        few.logits(list(range(97)))
