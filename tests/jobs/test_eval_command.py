"""`jaxinfer eval` with a made-up result: what is passed on, printed and drawn."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.cli import app
from jaxinfer.jobs.eval_command import read_contexts, read_options
from jaxinfer.quantize import evaluate
from jaxinfer.quantize.quality import Comparison, Evaluation, Quality
from jaxinfer.quantize.texts import held_out_text


def quality(context: int | None, *, against: bool, greedy: bool = True) -> Quality:
    other = Comparison(
        nats=2.0,
        perplexity=7.389,
        kl_mean=0.00123,
        kl_p99=0.0456,
        kl_max=0.5,
        top1_agreement=0.98,
        greedy_longest=32 if greedy else None,
        greedy_mean=20.25 if greedy else None,
    )
    return Quality(
        context=context,
        num_tokens=512,
        nats=2.1,
        perplexity=8.166,
        against=other if against else None,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `evaluate_model` was asked."""
    calls: list[dict[str, Any]] = []

    def fake(model: str, **options: Any) -> Evaluation:
        calls.append({"model": model, **options})
        has_other = options["against"] is not None
        contexts = options["contexts"] or (256, 1024)
        return Evaluation(
            model=model,
            engine=options["engine"],
            against=options["against"],
            against_engine=options["against_engine"],
            num_passages=options.get("num_passages", 4),
            judged=options.get("judged", 128),
            greedy_tokens=options.get("greedy_tokens", 32),
            contexts=tuple(quality(one, against=has_other) for one in contexts),
            overall=quality(None, against=has_other),
        )

    monkeypatch.setattr(evaluate, "evaluate_model", fake)
    return calls


def run(runner: CliRunner, arguments: str) -> str:
    done = runner.invoke(app, ["eval", *arguments.split()])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_nothing_but_the_model_is_needed(runner: CliRunner, asked: list[dict[str, Any]]) -> None:
    printed = run(runner, "m")
    (call,) = asked
    assert call["model"] == "m" and call["against"] is None and call["engine"] == {}
    assert call["text"] == held_out_text() and call["contexts"] is None
    assert call["against_engine"] is None and call["show_progress"] is True
    assert "8.166" in printed and "1,024" in printed and "all" in printed and "KL" not in printed


def test_every_option_is_passed_on(
    runner: CliRunner, asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("words")
    printed = run(
        runner,
        f"m --against n --text {file} --contexts 64,512 --judged 9 --num-passages 3 "
        f"--greedy-tokens 5 --scratch {tmp_path} --kv-cache-dtype int8 --quantization int4 "
        "--against-option kv-cache-dtype=fp8 --against-option max_num_seqs=4",
    )
    (call,) = asked
    assert call["against"] == "n" and call["text"] == "words" and call["contexts"] == (64, 512)
    assert (call["judged"], call["num_passages"], call["greedy_tokens"]) == (9, 3, 5)
    assert call["scratch"] == str(tmp_path)
    assert call["engine"] == {"kv_cache_dtype": "int8", "quantization": "int4"}
    assert call["against_engine"] == {"kv_cache_dtype": "fp8", "max_num_seqs": 4}
    for wanted in ("m (quantization=int4, kv_cache_dtype=int8)", "against n (kv_cache_dtype=fp8"):
        assert wanted in printed
    for wanted in ("1.23e-03", "4.56e-02", "98.00%", "32", "20.2"):
        assert wanted in printed
    assert "…" not in printed  # a terminal of 80 columns shows every figure whole


def test_json_is_one_line_without_a_bar(runner: CliRunner, asked: list[dict[str, Any]]) -> None:
    printed = run(runner, "m --against m --json")
    found = json.loads(printed)
    assert found["overall"]["against"]["kl_mean"] == 0.00123 and len(found["contexts"]) == 2
    assert asked[0]["show_progress"] is False


def test_one_context_is_one_column(runner: CliRunner, asked: list[dict[str, Any]]) -> None:
    printed = run(runner, "m --contexts 64")
    assert printed.count("8.166") == 1 and "64" in printed and "all" not in printed


@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize("against", ["", "--against n"])
def test_a_picture(
    runner: CliRunner, asked: list[dict[str, Any]], tmp_path: Path, ending: str, against: str
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    matplotlib.use("Agg")
    picture = tmp_path / f"a.{ending}"
    run(runner, f"m {against} --plot {picture}")
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--plot a.docx", "must be one of"),
        ("--plot gone/a.png", "no such folder"),
        ("--contexts 64,x", "--contexts 64,x"),
        ("--against-option kv", "NAME=VALUE"),
        ("--text gone.txt", "cannot be read: [Errno 2]"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    runner: CliRunner, asked: list[dict[str, Any]], options: str, said: str
) -> None:
    if "--plot" in options:
        pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    done = runner.invoke(app, ["eval", "m", *options.split()])
    assert done.exit_code == 1 and said in done.stderr and asked == []


def test_without_matplotlib_the_extra_is_named(
    runner: CliRunner, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = runner.invoke(app, ["eval", "m", "--plot", "a.png"])
    assert done.exit_code == 1 and "jaxinfer[plot]" in done.stderr and asked == []


def test_values_of_the_other_model_s_options() -> None:
    given = ["a-b=1", 'c={"method": "int4"}', "d=null", "e=int8", "f=a=b"]
    assert read_options(given) == {
        "a_b": 1,
        "c": {"method": "int4"},
        "d": None,
        "e": "int8",
        "f": "a=b",
    }
    assert read_contexts("8, 16") == (8, 16)
    with pytest.raises(ConfigError, match="=x"):
        read_options(["=x"])
