"""One profile at a time, none left open; what is in it is in tests/end_to_end/test_profiles.py."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxinfer.engine.profiler import Profiler
from jaxinfer.errors import ConfigError, JaxInferError


@pytest.fixture
def profiler() -> Iterator[Profiler]:
    made = Profiler()
    yield made
    made.close()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_profile_is_written_into_its_folder(profiler: Profiler, tmp_path: Path) -> None:
    for name in ("first", "second"):
        profiler.start(tmp_path / name)
        jax.device_put(1.0).block_until_ready()
        profiler.stop()
        assert files(tmp_path / name)


def test_a_second_start_is_refused_and_leaves_the_first_running(
    profiler: Profiler, tmp_path: Path
) -> None:
    profiler.start(tmp_path / "a")
    for other in (profiler, Profiler()):
        with pytest.raises(JaxInferError, match="call stop_profile first"):
            other.start(tmp_path / "b")
    profiler.stop()
    assert files(tmp_path / "a")


def test_a_stop_without_a_start_is_refused(profiler: Profiler) -> None:
    with pytest.raises(JaxInferError, match="call start_profile first"):
        profiler.stop()
    profiler.close()  # nothing to end


def test_closing_ends_what_was_left_open(profiler: Profiler, tmp_path: Path) -> None:
    profiler.start(tmp_path)
    profiler.close()
    assert files(tmp_path)
    with pytest.raises(JaxInferError, match="none|no profile"):
        profiler.stop()


def test_a_folder_that_cannot_be_made_is_an_error_and_none_is_left_open(
    profiler: Profiler, tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(ConfigError, match=r"start_profile\('.*sub'\).*give a folder"):
        profiler.start(taken / "sub")
    profiler.start(tmp_path / "other")
    profiler.stop()
