"""Two thousand short requests, each with other parameters: nothing compiles, nothing piles up."""

import gc
import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from jaxinfer import LLM
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained
from tests.end_to_end.random_requests import random_requests, run_all

NUM_REQUESTS, BATCH, WARM = 2000, 20, 400
MAX_BYTES_A_REQUEST = 1024
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process, after what nobody holds is gone."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from Linux's /proc")
def test_memory_is_flat_and_nothing_is_compiled(
    open_llm: OpenLLM, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With prefix cache, preemption by swap, overlap and bursts on."""
    loop = {"num_decode_steps": 4, "admission": "optimistic", "preemption": "swap"}
    few = {"block_size": 8, "num_gpu_blocks_override": 30, "max_model_len": 160}
    with open_llm(tiny_folder, max_num_seqs=8, **few, **loop) as llm:
        compiled = llm.get_metrics()["num_compiles"]
        start = time.perf_counter()
        slope = bytes_a_request(llm)
        rate = NUM_REQUESTS / (time.perf_counter() - start)
        metrics = llm.get_metrics()
        assert metrics["num_compiles"] == compiled
        assert metrics["num_preemptions"] > 0 and metrics["prefix_cache_hits"] > 0
        assert_drained(llm)
    with capsys.disabled():
        print(f"\n{rate:.0f} requests/s, {slope:.0f} bytes of resident memory a request")
    assert slope < MAX_BYTES_A_REQUEST


def bytes_a_request(llm: LLM) -> float:
    """The slope of resident memory over requests, after the first WARM of them."""
    done, held = [], []
    for number in itertools.count(1):
        outputs = run_all(llm, random_requests(number, BATCH))
        assert not any(error for error, *_ in outputs)
        del outputs
        if number * BATCH > WARM:
            done.append(number * BATCH)
            held.append(resident_bytes())
        if number * BATCH >= NUM_REQUESTS:
            return float(np.polyfit(done, held, 1)[0])
    raise AssertionError("it does not come to an end")
