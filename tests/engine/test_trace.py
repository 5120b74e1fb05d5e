"""The timeline's file: valid JSON after close, readable before it, times and tracks as given."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.engine import trace
from jaxinfer.engine.trace import NoTimeline, Timeline, open_timeline
from jaxinfer.errors import ConfigError


def spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_bytes()) if event["ph"] == "X"]


def test_a_closed_file_is_an_array_of_events(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    now = time.perf_counter()
    with Timeline(path) as timeline:
        timeline.event("decode", "launch", now + 1.0, now + 1.5, rows=3, kind='a "b"\n')
        with timeline.span("plan", "schedule", waiting=2):
            pass
    launch, plan = spans(path)
    assert (launch["name"], launch["args"]) == ("decode", {"rows": 3, "kind": 'a "b"\n'})
    assert launch["dur"] == pytest.approx(0.5e6) and launch["ts"] == pytest.approx(1e6, rel=0.1)
    assert plan["name"] == "plan" and 0 <= plan["dur"] < 1e6 and plan["args"] == {"waiting": 2}
    assert launch["pid"] == plan["pid"] and launch["tid"] != plan["tid"]


def test_every_track_has_its_name_and_place(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    Timeline(path).close()
    named = [event for event in json.loads(path.read_bytes()) if event["name"] == "thread_name"]
    assert [event["args"]["name"] for event in named] == [
        *("schedule", "launch", "read", "text", "device"),
    ]
    assert [event["tid"] for event in named] == [1, 2, 3, 4, 5]


def test_a_span_lasts_as_long_as_its_block_and_survives_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    with Timeline(path) as timeline:
        with pytest.raises(KeyError), timeline.span("outer", "text"):
            with timeline.span("inner", "text"):
                time.sleep(0.01)
            raise KeyError
    inner, outer = spans(path)
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert outer["ts"] <= inner["ts"] and inner["dur"] >= 0.01e6
    assert outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]


def test_the_device_runs_one_program_at_a_time(tmp_path: Path) -> None:
    """Worked example: launched at 1 and 2, read at 3 and 5: the second ran from 3 to 5."""
    path = tmp_path / "loop.json"
    now = time.perf_counter()
    with Timeline(path) as timeline:
        for start, end in ((1, 3), (2, 5), (4, 4.5), (7, 8)):
            timeline.event("step", "device", now + start, now + end)
            timeline.event("step", "read", now + start, now + end)
    device = [event for event in spans(path) if event["tid"] == 5]
    assert [round(event["dur"] / 1e6, 3) for event in device] == [2, 2, 0, 1]
    assert device[1]["ts"] == pytest.approx(device[0]["ts"] + device[0]["dur"])
    read = [event for event in spans(path) if event["tid"] == 3]
    assert [round(event["dur"] / 1e6, 3) for event in read] == [2, 3, 0.5, 1]


def test_a_process_that_dies_leaves_whole_events(tmp_path: Path) -> None:
    """Perfetto and chrome://tracing allow the closing bracket to be missing."""
    path = tmp_path / "loop.json"
    timeline = Timeline(path)
    for number in range(1000):
        timeline.event("step", "launch", 0.0, 1.0, number=number)
    left = path.read_text()
    events = json.loads(left + "]")
    seen = [event["args"]["number"] for event in events if event["ph"] == "X"]
    assert seen == list(range(len(seen))) and len(seen) > 1000 - 257
    timeline.close()
    assert path.read_text().startswith(left) and len(spans(path)) == 1000


def test_few_events_are_written_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MAX_DELAY_S", 0.0)
    path = tmp_path / "loop.json"
    timeline = Timeline(path)
    timeline.event("step", "launch", 0.0, 1.0)
    assert json.loads(path.read_text() + "]")[-1]["name"] == "step"
    timeline.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    with Timeline(tmp_path / "loop.json") as timeline:
        for _ in range(2000):
            timeline.event("step", "launch", 0.0, 1.0)
            assert len(timeline._pending) <= 256


def test_closing_twice_and_events_after_it_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    timeline = Timeline(path)
    timeline.close()
    content = path.read_bytes()
    timeline.event("late", "text", 0.0, 1.0)
    with timeline.span("late", "text"):
        pass
    timeline.close()
    assert path.read_bytes() == content


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    path.write_text("x" * 10_000)
    Timeline(str(path)).close()
    assert spans(path) == []


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "loop.json"
    with pytest.raises(ConfigError, match="trace='.*loop.json': cannot be written .*that exists"):
        Timeline(path)


def test_a_disk_that_fills_up_ends_the_timeline_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    timeline = Timeline("/dev/full")
    with timeline.span("step", "launch"):
        pass
    timeline.close()
    assert [record.message for record in caplog.records if "it ends here" in record.message]


def test_without_a_file_the_same_verbs_do_nothing(tmp_path: Path) -> None:
    with open_timeline(None) as timeline:
        assert isinstance(timeline, NoTimeline)
        with timeline.span("outer", "schedule", rows=1), timeline.span("inner", "schedule"):
            timeline.event("step", "device", 0.0, 1.0, rows=1)
        with pytest.raises(KeyError), timeline.span("outer", "text"):
            raise KeyError
    timeline.close()
    with open_timeline(tmp_path / "loop.json") as timeline:
        assert isinstance(timeline, Timeline)
