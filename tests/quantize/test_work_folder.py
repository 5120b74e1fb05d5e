import os
from pathlib import Path

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.quantize.work_folder import work_folder

MARKS = {"method": "gptq", "bits": 4, "sizes": [1, 2]}


def write_shard(folder: Path, name: str = "a.safetensors") -> None:
    (folder / name).write_bytes(b"weights")


def test_the_result_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with work_folder(out, MARKS) as folder:
        write_shard(folder)
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["a.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_same_work_goes_on_and_other_work_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), work_folder(out, MARKS) as folder:
        write_shard(folder)
        raise ZeroDivisionError
    assert not out.exists()
    with pytest.raises(ZeroDivisionError), work_folder(out, MARKS) as folder:
        assert (folder / "a.safetensors").is_file()
        raise ZeroDivisionError
    other = MARKS | {"bits": 8}
    with pytest.raises(ConfigError, match="1 finished files.*bits: 4, now 8"):
        with work_folder(out, other):
            raise AssertionError
    with work_folder(out, other, overwrite=True) as folder:
        assert not (folder / "a.safetensors").exists()
        write_shard(folder, "b.safetensors")
    assert [path.name for path in out.iterdir()] == ["b.safetensors"]


def test_work_that_finished_nothing_is_no_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), work_folder(out, MARKS):
        raise ZeroDivisionError
    with work_folder(out, MARKS | {"bits": 8}) as folder:
        (folder / "config.json").write_text("{}")
    assert out.is_dir()


def test_a_model_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("config.json", "own.safetensors"):
        out.mkdir(exist_ok=True)
        (out / name).write_text("{}")
    with pytest.raises(ConfigError, match="overwrite"), work_folder(out, MARKS):
        raise AssertionError
    with work_folder(out, MARKS, overwrite=True) as folder:
        write_shard(folder)
        assert (out / "own.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["a.safetensors"]


def test_what_is_no_model_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("precious")
    for name in ("file", "folder"):
        with pytest.raises(ConfigError, match="holds no model"):
            with work_folder(tmp_path / name, MARKS, overwrite=True):
                raise AssertionError


def test_two_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with work_folder(tmp_path / "out", MARKS):
        with pytest.raises(ConfigError, match="another process"):
            with work_folder(tmp_path / "out", MARKS):
                raise AssertionError


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be made"), work_folder(tmp_path / "out", MARKS):
        raise AssertionError
