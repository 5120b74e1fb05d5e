"""Ranking by rounding one part at a time: the same figures as judging such a model whole."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.engine import build
from jaxinfer.errors import ConfigError
from jaxinfer.layers.stacked import stack_products
from jaxinfer.quantize import sensitivity
from jaxinfer.quantize.evaluate import evaluate_model, judge_rows
from jaxinfer.quantize.ranking import Ranking
from jaxinfer.quantize.sensitivity import parts_of, rank_sensitivity
from jaxinfer.runner.compile import CompileLog, counted_compiles
from tests.end_to_end.conftest import KeptPrograms
from tests.quantize.test_evaluate import SMALL, TEXT, rounded_to_int4
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.quant_folders import write_quantized_tiny
from tests.support.tiny_experts import write_mixtral
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_hf_folder, write_tiny

SHORT: dict[str, Any] = {
    "text": TEXT,
    "context": 40,
    "judged": 16,
    "num_passages": 2,
    "group_size": 32,
    "show_progress": False,
}
HURT = "model.layers.1.mlp.gate_proj"
LAYERS = ["model.layers.0", "model.layers.1"]


@pytest.fixture(scope="module", autouse=True)
def _few_compiles() -> Iterator[None]:
    with mock.patch.object(build, "compile_programs", KeptPrograms()):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY, of whose matrices all but one are rounded already: only that one can be hurt."""
    weights = {
        name: rounded_to_int4(value) if "_proj" in name and name != f"{HURT}.weight" else value
        for name, value in random_weights(TINY_CONFIG, std=0.1).items()
    }
    made = write_hf_folder(tmp_path_factory.mktemp("tiny"), TINY_CONFIG, weights)
    save_byte_tokenizer(made)
    return made


def rank(model: Path, **options: Any) -> Ranking:
    engine = SMALL | options.pop("engine", {})
    return rank_sensitivity(model, engine=engine, **SHORT | options)


@pytest.fixture(scope="module")
def by_layer(folder: Path, _few_compiles: None) -> Ranking:
    return rank(folder)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("part", ["layer", "matrix"])
def test_a_row_is_what_judging_that_model_gives(folder: Path, part: str, bits: int) -> None:
    ranking = rank(folder, part=part, bits=bits)
    names = LAYERS if part == "layer" else list(parts_of(opened(folder), "matrix"))
    assert [row.name for row in ranking.rows] == names
    row = ranking.worst_first()[0]
    overrides = {row.name.replace(".", r"\.") + r"(\..*)?": f"int{bits}", ".*": "float"}
    quantization = {"method": f"int{bits}", "group_size": 32, "overrides": overrides}
    found = evaluate_model(
        folder,
        against=folder,
        text=TEXT,
        contexts=(40,),
        judged=16,
        num_passages=2,
        greedy_tokens=0,
        engine=SMALL | {"quantization": quantization},
        show_progress=False,
    ).overall
    assert found.against is not None and found.against.kl_mean > 0
    assert row.kl_mean == pytest.approx(found.against.kl_mean, rel=1e-9)
    assert row.kl_max == pytest.approx(found.against.kl_max, rel=1e-9)
    assert (row.nats, row.top1_agreement) == (found.nats, found.against.top1_agreement)


def opened(folder: Path) -> Any:
    return open_checkpoint(folder, show_progress=False)


def test_the_hurt_layer_is_the_worst_and_the_other_is_unhurt(by_layer: Ranking) -> None:
    unhurt, hurt = by_layer.rows
    assert (unhurt.kl_max, unhurt.top1_agreement) == (0, 1) and hurt.kl_mean > 1e-6
    assert [row.name for row in by_layer.worst_first()] == LAYERS[::-1]
    assert by_layer.worst(1) == ("model.layers.1",) and by_layer.worst(0) == ()
    assert {row.num_elements for row in by_layer.rows} == {2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96}
    with pytest.raises(ConfigError, match="protect=3.* has 2 parts"):
        by_layer.worst(3)


def test_matrices_go_by_their_names(folder: Path) -> None:
    names = list(parts_of(opened(folder), "matrix"))
    assert len(names) == 14 and names[0].startswith("model.layers.0.") and "lm_head" not in names
    ranking = rank(folder, part="matrix")
    assert ranking.worst(1) == (HURT,)
    assert [row.name for row in ranking.rows if row.kl_mean] == [HURT]


def test_experts_of_a_layer_go_together(tmp_path: Path) -> None:
    parts = parts_of(opened(write_mixtral(tmp_path)), "matrix")
    patterns = [name for name in parts if name.startswith("re:")]
    assert len(patterns) == 3 * 2
    assert all(r"\.\d+\." in name and "{" not in name for name in patterns)


def test_nothing_is_compiled_for_a_part(folder: Path, tmp_path: Path) -> None:
    """Nor is the float model changed: the first part measured again gives the same."""
    counts = []

    def judge_counted(*arguments: Any, **options: Any) -> Any:
        with counted_compiles(CompileLog()) as log:
            rows = judge_rows(*arguments, **options)
        counts.append(log.num_compiles)
        return rows

    parts = parts_of(opened(folder), "layer")
    again = {**parts, "again": parts["model.layers.0"]}
    with (
        mock.patch.object(sensitivity, "judge_rows", judge_counted),
        mock.patch.object(sensitivity, "parts_of", lambda *_: again),
    ):
        rows = rank(folder).rows
    assert counts[1:] == [0, 0]
    assert replace(rows[2], name=rows[0].name) == rows[0]


@pytest.mark.parametrize("part", ["layer", "matrix"])
def test_an_engine_that_stacks_matrices_ranks_alike(folder: Path, part: str) -> None:
    """As on a GPU: q, k and v are one matrix, of which one part is rounded at a time."""
    rows = rank(folder, part=part).rows

    def stacked(params: Any, *_: Any) -> Any:
        return stack_products(params)

    with (
        mock.patch.object(build, "kernels_of_weights", stacked),
        mock.patch.object(sensitivity, "kernels_of_weights", stacked),
        mock.patch.object(sensitivity, "judge_rows", wraps=judge_rows) as judging,
    ):
        found = rank(folder, part=part).rows
    assert "qkv" in judging.call_args.args[0].engine.runner.params["layers"][0]
    assert [row.name for row in found] == [row.name for row in rows]
    for one, other in zip(found, rows, strict=True):
        assert one.kl_mean == pytest.approx(other.kl_mean, rel=1e-4, abs=1e-9)


def test_an_interrupted_ranking_goes_on(folder: Path, tmp_path: Path, by_layer: Ranking) -> None:
    file, seen = tmp_path / "ranking.json", []

    def judge(llm: Any, passages: Any, name: str, *rest: Any, **options: Any) -> Any:
        seen.append(name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return judge_rows(llm, passages, name, *rest, **options)

    with mock.patch.object(sensitivity, "judge_rows", judge):
        with pytest.raises(KeyboardInterrupt):
            rank(folder, file=file)
        assert rank(folder, file=file) == by_layer
    assert seen == [LAYERS[0], LAYERS[1], LAYERS[1]]
    with mock.patch.object(sensitivity, "open_judged", side_effect=AssertionError("opened")):
        assert rank(folder, file=file) == by_layer  # it is all there
    assert [path.name for path in tmp_path.iterdir()] == ["ranking.json"]


@pytest.mark.parametrize("change", [{"bits": 8}, {"part": "matrix"}, {"text": TEXT[5:]}])
def test_a_file_of_another_ranking_is_refused(
    folder: Path, tmp_path: Path, by_layer: Ranking, change: dict[str, Any]
) -> None:
    file = tmp_path / "ranking.json"
    rank(folder, file=file)
    with pytest.raises(ConfigError, match="ranking of another model, text or scheme"):
        rank(folder, file=file, **change)
    file.write_text("[1")
    with pytest.raises(ConfigError, match="not a ranking"):
        rank(folder, file=file)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 3}, "bits=3"),
        ({"part": "head"}, "part='head'"),
        ({"group_size": 0}, "group_size=0"),
        ({"engine": {"quantization": "int8"}}, "quantization='int8' is the ranking's own"),
        ({"text": "short"}, "the text has 5 tokens"),
    ],
)
def test_what_is_asked_wrong(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rank(folder, **options)


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    made = write_quantized_tiny(tmp_path / "gptq", config, {})
    save_byte_tokenizer(made)
    with pytest.raises(ConfigError, match="quantized already"):
        rank(made)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        rank(write_tiny(tmp_path / "bare"))
