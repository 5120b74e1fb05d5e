"""The law of what is drawn does not know that anything was drafted, nor by whom."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import run
from tests.support.tiny_models import write_tiny

VOCAB = 16
SETTINGS: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 16}
PROMPT = [3, 9, 14]
FEW, MANY = 1_000, 20_000
WAYS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7, "temperature": 0.9},
    "penalties": {"frequency_penalty": 1.0, "repetition_penalty": 1.5, "top_k": 3},
}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
Law = dict[tuple[int, ...], float]


def next_law(llm: LLM, output: tuple[int, ...], way: dict[str, Any]) -> dict[int, float]:
    """The model's law of one token: penalties → temperature → top_k → top_p, in NumPy."""
    scores = llm.logits([*PROMPT, *output])[-1].astype(np.float64)
    for token in {*PROMPT, *output}:
        factor = way.get("repetition_penalty", 1.0)
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token, count in Counter(output).items():
        scores[token] -= way.get("frequency_penalty", 0.0) * count
    scores /= way.get("temperature", 1.0)
    law = np.exp(scores - scores.max())
    if way.get("top_k"):
        law[law < np.sort(law)[-way["top_k"]]] = 0
    order = np.argsort(-law, kind="stable")
    shares = law[order] / law.sum()
    law[order[np.cumsum(shares) - shares >= way.get("top_p", 1.0)]] = 0
    law /= law.sum()
    return {int(token): float(law[token]) for token in np.flatnonzero(law)}


def law_of(llm: LLM, way: dict[str, Any], output: tuple[int, ...] = ()) -> Law:
    """The law of the first three tokens, of which the second and third are drafted."""
    law = next_law(llm, output, way)
    if len(output) == 2:
        return {(*output, token): share for token, share in law.items()}
    return {
        tokens: share * part
        for token, share in law.items()
        for tokens, part in law_of(llm, way, (*output, token)).items()
    }


def distance(llm: LLM, law: Law, way: dict[str, Any], count: int) -> float:
    """Total variation between the law and `count` samples."""
    params = SamplingParams(n=count, seed=1, max_tokens=5, ignore_eos=True, **way)
    (output,) = run(llm, [PROMPT], params)
    drawn = Counter(tuple(one.token_ids[:3]) for one in output.outputs)
    return sum(abs(drawn[each] / count - law.get(each, 0.0)) for each in drawn | law) / 2


def proposers(folder: Path) -> dict[str, dict[str, Any]]:
    other = write_tiny(folder / "other", vocab_size=VOCAB, seed=8)
    always = {"num_speculative_tokens": 3, "adaptive": False, "tokens_by_running": ((8, 3),)}
    rounded = {"method": "int4", "float_ends": 0}
    return {
        "draft_model": {"method": "draft_model", "model": str(other), **always},
        "int4": {"method": "self", "quantization": rounded, **always},
        "one_layer": {"method": "self", "num_layers": 1, **always},
        "ngram": {**NGRAM, **always},
    }


@pytest.mark.parametrize(
    ("proposer", "count"),
    [
        ("one_layer", FEW),
        *(
            pytest.param(one, MANY, marks=pytest.mark.slow)
            for one in ("draft_model", "int4", "one_layer", "ngram")
        ),
    ],
)
def test_the_law_is_the_model_s(
    open_llm: OpenLLM, tmp_path: Path, proposer: str, count: int
) -> None:
    """BB-45, transformers#47932: nearer with more samples, as those that are drawn directly."""
    folder = write_tiny(tmp_path / "model", vocab_size=VOCAB)
    speculative = proposers(tmp_path)[proposer]
    with open_llm(folder, **SETTINGS, speculative_config=speculative) as llm:
        for name, way in WAYS.items():
            law = law_of(llm, way)
            # Of a sample of n the distance to its law is on average below sqrt(outcomes / 4 n).
            most = 2 * np.sqrt(len(law) / 4 / count)
            assert distance(llm, law, way, count) < most, name
            assert count < MANY or len(law) > 8 or most <= 0.02
        counts = llm.get_metrics()
        assert 0 < counts["spec_decode_acceptance_rate"] < 1


@pytest.mark.slow
def test_a_wrong_rule_has_another_law(
    open_llm: OpenLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inverse: with every draft accepted, the third token follows a second that was not."""
    from jaxinfer.runner import steps

    monkeypatch.setattr(steps, "count_accepted", lambda drawn, drafts, counts: counts)
    folder = write_tiny(tmp_path / "model", vocab_size=VOCAB)
    speculative = proposers(tmp_path)["draft_model"]
    with open_llm(folder, fresh=True, **SETTINGS, speculative_config=speculative) as llm:
        assert distance(llm, law_of(llm, WAYS["top_k"]), WAYS["top_k"], FEW) > 0.1
