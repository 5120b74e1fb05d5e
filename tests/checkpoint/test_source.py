"""What a user may call a model."""

from pathlib import Path

import pytest

from jaxinfer.checkpoint import source
from jaxinfer.checkpoint.source import Source, resolve_source
from jaxinfer.errors import CheckpointError
from tests.support.tiny_models import write_tiny, write_tiny_gguf


def test_local_folders_and_files(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "hf")
    path = write_tiny_gguf(tmp_path / "gguf/m.gguf")
    hf = Source(kind="hf", path=folder, folder=folder)
    gguf = Source(kind="gguf", path=path, folder=None)
    assert resolve_source(folder) == resolve_source(str(folder)) == hf
    assert resolve_source(path) == resolve_source(path.parent) == gguf
    assert resolve_source(path.rename(path.with_suffix(".bin"))).kind == "gguf"


def test_folder_of_parts_opens_the_first(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "m.gguf", num_parts=2)
    assert resolve_source(tmp_path).path == first


def test_folder_of_several_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tiny_gguf(tmp_path / f"{name}.gguf")
    with pytest.raises(CheckpointError, match="2 GGUF files .a.gguf, b.gguf"):
        resolve_source(tmp_path)


def test_a_weight_file_points_to_its_folder(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    with pytest.raises(CheckpointError, match="folder that holds config.json"):
        resolve_source(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M", "smollm2-135m.gguf", "smol"])
def test_unknown_names_tell_the_nearest_demo(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"model='{name}' .* nearest .*'smollm2-135m'"):
        resolve_source(name)


@pytest.mark.parametrize("name", ["", " ", "x" * 5000, "a\0b", "~nobody-of-this-name/m", "a/b/c"])
def test_strange_names_are_not_found(name: str) -> None:
    with pytest.raises(CheckpointError, match="was not found"):
        resolve_source(name)


def test_a_missing_gguf_file_is_no_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_download_repository", lambda *_: pytest.fail("went out"))
    for name in ("models/m.gguf", Path("models/m")):
        with pytest.raises(CheckpointError, match="was not found"):
            resolve_source(name)


def test_demo_names_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demo.gguf"
    monkeypatch.setattr(source, "fetch_demo", lambda name, show_progress: path)
    assert resolve_source("smollm2-135m") == Source(kind="gguf", path=path, folder=None)


def test_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = write_tiny(tmp_path), {}

    def snapshot(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert resolve_source("org/name", show_progress=False).folder == folder
    assert asked["name"] == "org/name"
    assert set(asked["allow_patterns"]) == {
        "*.json",
        "*.safetensors",
        "*.jinja",
        "tokenizer.model",
    }


@pytest.mark.parametrize("error", [ConnectionError("no route\nmore"), ValueError(), OSError(5)])
def test_hub_that_cannot_be_reached(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(name: str, **options: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(CheckpointError, match=f"'org/name'.*{type(error).__name__}.*network"):
        resolve_source("org/name", show_progress=False)
