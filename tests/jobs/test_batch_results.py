"""Outputs read back, and the pictures made of them."""

import sys
from pathlib import Path

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.jobs import plot_results, read_results
from tests.jobs.batch_jobs import good_line, run_job, write_lines


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Ten lines of four tokens, one of which has two completions, a chat, and a bad one."""
    lines = [good_line(f"r{number}") for number in range(9)]
    chat = (
        b'{"custom_id": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}'
    )
    source = write_lines(tmp_path / "in.jsonl", [*lines, good_line("two", n=2), chat, b"[]"])
    run_job(source, tmp_path / "out.jsonl", ordered=True, include=("metrics",))
    return tmp_path / "out.jsonl"


def test_every_line_is_a_record(output: Path) -> None:
    *rest, last = read_results(output)
    found = {one.custom_id: one for one in rest}
    assert [*found] == [*(f"r{number}" for number in range(9)), "two", "chat"]
    assert [len(text) for text in found["two"].texts] == [4, 4]
    assert found["two"].completion_tokens == 8 and found["two"].finish_reasons == ("length",) * 2
    assert len(found["chat"].texts[0]) == 3 and found["chat"].prompt_tokens == len("user: hi\n")
    assert found["r0"].metrics["e2e_latency_s"] > 0 and found["r0"].error is None
    assert last.custom_id is None and last.error is not None and "not an object" in last.error


def test_a_line_that_is_being_written_is_left_out(output: Path) -> None:
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_')
    assert len(list(read_results(output))) == 12


def test_parts_of_a_folder_are_read_in_order(output: Path, tmp_path: Path) -> None:
    lines = output.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "part-00000-0000001.jsonl").write_bytes(b"".join(lines[5:]))
    (folder / "part-00000-0000000.jsonl").write_bytes(b"".join(lines[:5]))
    assert list(read_results(folder)) == list(read_results(output))


def test_what_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not found"):
        list(read_results(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="without parts"):
        list(read_results(tmp_path))
    other = write_lines(tmp_path / "other.jsonl", [b'{"precious": 1}'])
    with pytest.raises(ConfigError, match="other.jsonl:1 is no result"):
        list(read_results(other))


def test_a_figure_of_latencies_and_lengths(output: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    matplotlib.use("Agg")
    panels = plot_results(output).axes
    labels = [one.get_xlabel() for one in panels]
    assert "time to first token, s" in labels and "prompt, tokens" in labels
    counts = [sum(bar.get_height() for bar in one.patches) for one in panels]
    assert counts == [11, 11, 11, 11, 11, 0]  # the last is of points
    assert len(panels[-1].collections[0].get_offsets()) == 11


def test_a_figure_without_times_says_what_to_do(output: Path, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    matplotlib.use("Agg")
    run_job(tmp_path / "in.jsonl", tmp_path / "bare.jsonl")
    first, *_, length, _ = plot_results(tmp_path / "bare.jsonl").axes
    assert 'include=["metrics"]' in first.texts[0].get_text() and not first.patches
    assert sum(bar.get_height() for bar in length.patches) == 11


def test_pictures_without_matplotlib_name_the_extra(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"jaxinfer\[plot\]"):
        plot_results(output)
