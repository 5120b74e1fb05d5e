"""Judging a tiny model: against the same sums made with NumPy, against itself, and refusals."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.engine import build
from jaxinfer.errors import CapacityError, ConfigError, JaxInferError
from jaxinfer.quantize import logits_file
from jaxinfer.quantize.evaluate import _contexts, evaluate_model
from tests.end_to_end.conftest import KeptPrograms
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.numpy_model import reference_logits
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_tiny
from tests.support.tolerances import LOGPROBS

TEXT = "The sea is salt because rivers carry salt into it, year after year, and none leaves. " * 3
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 16,
    "prefill_chunk_tokens": 16,
    "max_num_seqs": 2,
    "num_gpu_blocks_override": 32,
    "compilation_cache_dir": None,
}
SHORT: dict[str, Any] = {
    "text": TEXT,
    "contexts": (12, 40),
    "judged": 8,
    "num_passages": 2,
    "greedy_tokens": 6,
    "show_progress": False,
}


@pytest.fixture(scope="module", autouse=True)
def _few_compiles() -> Iterator[None]:
    with mock.patch.object(build, "compile_programs", KeptPrograms()):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_tiny(tmp_path_factory.mktemp("tiny"), std=0.1)
    save_byte_tokenizer(made)
    return made


def judge(model: Path, **options: Any) -> Any:
    engine = SMALL | options.pop("engine", {})
    return evaluate_model(model, engine=engine, **SHORT | options)


def rounded_to_int4(value: np.ndarray) -> np.ndarray:
    """Rounded to 4 bits in groups of 32, the scales to bfloat16."""
    rows = value.reshape(len(value), -1, 32)
    scales = np.abs(rows).max(axis=-1, keepdims=True) / 7
    scales = (scales.astype(np.float32).view(np.uint32) + 0x8000 >> 16 << 16).view(np.float32)
    codes = np.clip(np.rint(rows / scales), -7, 7)
    return (codes * scales).reshape(value.shape).astype(np.float32)


def rounded_weights() -> dict[str, np.ndarray]:
    """TINY's, with the MLP matrices of both layers rounded."""
    weights = random_weights(TINY_CONFIG, std=0.1)
    return {
        name: rounded_to_int4(value) if ".mlp." in name else value
        for name, value in weights.items()
    }


MLP_INT4 = {
    "method": "int4",
    "group_size": 32,
    "overrides": {r".*\.mlp\..*": "int4", r".*": "float"},
}


def test_figures_are_those_of_numpy(folder: Path) -> None:
    """Passages, places, perplexity and KL, from a forward pass that shares nothing with this."""
    found = judge(folder, against=folder, engine={"quantization": MLP_INT4})
    ids = list(TEXT.encode())
    passages = [ids[:41], ids[-41:]]
    weights = random_weights(TINY_CONFIG, std=0.1), rounded_weights()
    logs = []
    for one in weights:
        logits = np.stack([reference_logits(TINY_CONFIG, one, part[:40]) for part in passages])
        logs.append(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
    for row, places in zip(found.contexts, (range(4, 12), range(32, 40)), strict=True):
        plain, rounded = (log[:, list(places)] for log in logs)
        targets = np.array([[part[place + 1] for place in places] for part in passages])
        for nats, log in ((row.against.nats, plain), (row.nats, rounded)):
            expected = -np.take_along_axis(log, targets[..., None], axis=-1).mean()
            assert nats == pytest.approx(expected, abs=LOGPROBS["float32"])
        kl = (np.exp(plain) * (plain - rounded)).sum(axis=-1)
        assert row.against.kl_mean == pytest.approx(kl.mean(), rel=0.02)
        assert row.against.kl_max == pytest.approx(kl.max(), rel=0.02)
        assert row.against.kl_p99 <= row.against.kl_max
        same = plain.argmax(axis=-1) == rounded.argmax(axis=-1)
        assert row.against.top1_agreement == same.mean() and row.num_tokens == 16
        assert row.perplexity == np.exp(row.nats)


def test_all_tokens_are_the_mean_of_the_contexts(folder: Path) -> None:
    found = judge(folder, against=folder, engine={"quantization": MLP_INT4})
    short, long = found.contexts
    assert (short.context, long.context, found.overall.context) == (12, 40, None)
    assert found.overall.num_tokens == 32
    assert found.overall.nats == pytest.approx((short.nats + long.nats) / 2)
    assert found.overall.against.kl_mean == pytest.approx(
        (short.against.kl_mean + long.against.kl_mean) / 2
    )
    assert found.overall.against.kl_mean > 0
    assert json.loads(json.dumps(found.as_json()))["contexts"][1]["context"] == 40


def test_a_model_is_like_itself(folder: Path) -> None:
    """To the bit: KL 0, every token agrees, and every greedy run."""
    found = judge(folder, against=folder, against_engine={"enable_prefix_caching": False})
    assert found.overall.against.kl_max == 0 and found.overall.against.top1_agreement == 1
    assert found.overall.nats == found.overall.against.nats
    assert (found.overall.against.greedy_longest, found.overall.against.greedy_mean) == (6, 6)


def test_greedy_runs_end_where_the_context_does(folder: Path) -> None:
    """Of 6 tokens, up to each length, from what `generate` gives."""
    found = judge(folder, against=folder, engine={"quantization": MLP_INT4})
    ids = TEXT.encode()
    prompts = [list(part[: end - 6]) for end in (12, 40) for part in (ids[:41], ids[-41:])]
    runs = []
    for quantization in (None, MLP_INT4):
        shape = {"max_model_len": 40, "max_num_batched_tokens": 16}  # of the same programs
        with LLM(folder, quantization=quantization, show_progress=False, **SMALL, **shape) as llm:
            params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            runs.append([one.outputs[0].token_ids for one in outputs])
    alike = [
        next((at for at in range(6) if one[at] != other[at]), 6)
        for one, other in zip(*runs, strict=True)
    ]
    short, long = (row.against for row in found.contexts)
    assert (short.greedy_longest, long.greedy_longest) == (max(alike[:2]), max(alike[2:]))
    assert (short.greedy_mean, long.greedy_mean) == (sum(alike[:2]) / 2, sum(alike[2:]) / 2)


def test_alone_there_is_no_comparison_and_no_run(folder: Path, tmp_path: Path) -> None:
    found = judge(folder, scratch=tmp_path / "never made")
    assert found.overall.against is None and found.against is None
    assert found.overall.perplexity > 1


def test_the_other_model_keeps_only_what_is_not_judged(folder: Path) -> None:
    """And a quantized cache is judged."""
    engine = {"quantization": None, "kv_cache_dtype": "int8"}
    its_own = {"weights": "packed"}
    found = judge(folder, against=folder, engine=engine, against_engine=its_own, greedy_tokens=0)
    assert found.engine == SMALL | engine and found.against_engine == SMALL | its_own
    assert 0 < found.overall.against.kl_mean < 0.01
    assert found.overall.against.greedy_longest is None


def test_nothing_is_left_of_the_logits(folder: Path, tmp_path: Path) -> None:
    judge(folder, against=folder, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = mock.Mock(return_value=mock.Mock(free=100))
    monkeypatch.setattr(logits_file.shutil, "disk_usage", usage)
    with pytest.raises(CapacityError, match="32 judged tokens over a vocabulary of 320"):
        judge(folder, against=folder)


def test_models_that_cannot_be_compared(folder: Path, tmp_path: Path) -> None:
    larger = write_tiny(tmp_path / "larger", vocab_size=400)
    with pytest.raises(ConfigError, match="vocabulary of 320, .* one of 400"):
        judge(folder, against=larger)
    other = write_tiny(tmp_path / "other")
    save_byte_tokenizer(other, adds_bos=True)
    with pytest.raises(ConfigError, match="other tokens of the text"):
        judge(folder, against=other)
    bare = write_tiny(tmp_path / "bare")
    with pytest.raises(ConfigError, match="bare has no tokenizer"):
        judge(bare)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "too short"}, "the text has 9 tokens, a context of 40 takes 41"),
        ({"contexts": (16, 300)}, "256 positions"),
        ({"against_engine": {"dtype": "float32"}}, "set against"),
        ({"greedy_tokens": -1}, "greedy_tokens=-1"),
        ({"engine": {"quantisation": "int8"}}, "quantization"),
    ],
)
def test_what_is_asked_wrong(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        judge(folder, **options)


def test_default_contexts_are_those_that_the_model_has(folder: Path) -> None:
    opened = mock.Mock(checkpoint=open_checkpoint(folder, show_progress=False))
    assert _contexts([opened], None) == (256,)
    opened.checkpoint = mock.Mock(config=mock.Mock(longest_context=2048))
    assert _contexts([opened], None) == (256, 1024)
    opened.checkpoint.config.longest_context = 100
    assert _contexts([opened], None) == (100,)


def test_logits_of_nan_name_the_model_and_the_place(folder: Path) -> None:
    with mock.patch.object(
        LLM, "logit_blocks", lambda self, ids, places, report: iter([np.full((1, 320), np.nan)])
    ):
        with pytest.raises(JaxInferError, match="passage 0: the logits after token 4 hold NaN"):
            judge(folder)
