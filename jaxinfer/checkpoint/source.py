"""HOST. What a user calls a model, as files on this machine: folder, GGUF file, hub id, demo name.

Knows names and files; opens none of them (`checkpoint` does).
"""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.demo_models import DEMO_MODELS, fetch_demo
from jaxinfer.checkpoint.native_form import is_native
from jaxinfer.checkpoint.tensor_file import CheckpointKind
from jaxinfer.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_FIRST_PART = re.compile(r".*-00001-of-\d{5}\.gguf")
_LATER_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """path: a folder with config.json, or a GGUF file. folder: the former, None for the latter."""

    kind: CheckpointKind
    path: Path
    folder: Path | None


def resolve_source(model: str | Path, *, show_progress: bool = True) -> Source:
    """The files that `model` names, downloaded where it names a hub repository or a demo model.

    What exists on disk comes first, then demo names, then hub ids.

    Raises:
        CheckpointError: nothing found (saying what was tried), a folder without a model, or a
            download that failed.
    """
    name = str(model)
    path = _existing(name)
    if path is not None:
        return _local_source(path)
    if name in DEMO_MODELS:
        return _gguf_source(fetch_demo(name, show_progress=show_progress))
    if not isinstance(model, Path) and _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _local_source(_download_repository(name, show_progress))
    nearest = difflib.get_close_matches(name.lower(), DEMO_MODELS, n=1, cutoff=0.0)
    raise CheckpointError(
        f"model={name!r} was not found: there is no such file or folder, it is none of the demo "
        f"models ({', '.join(DEMO_MODELS)}) and not a hub id of the form 'org/name'; the nearest "
        f"demo name is {nearest[0]!r}"
    )


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name.strip() and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, an unknown home, a NUL
        return None


def _local_source(path: Path) -> Source:
    if path.is_file():
        return _file_source(path)
    if (path / "config.json").is_file():
        return Source(kind="native" if is_native(path) else "hf", path=path, folder=path)
    files = sorted(file.name for file in path.glob("*.gguf"))
    first = [name for name in files if _FIRST_PART.fullmatch(name)]
    if len(files) == 1 or (len(first) == 1 and all(_LATER_PART.fullmatch(x) for x in files)):
        return _gguf_source(path / (first or files)[0])
    if files:
        raise CheckpointError(
            f"{path} holds {len(files)} GGUF files ({', '.join(files[:5])}); name the one to open"
        )
    raise CheckpointError(
        f"{path} holds neither config.json nor a .gguf file; name a folder that holds a model"
    )


def _file_source(path: Path) -> Source:
    try:
        with path.open("rb") as file:
            if path.suffix == ".gguf" or file.read(4) == b"GGUF":
                return _gguf_source(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; check its permissions") from error
    raise CheckpointError(
        f"{path} is not a GGUF file; name a .gguf file, or the folder that holds config.json and "
        "the weights"
    )


def _gguf_source(path: Path) -> Source:
    return Source(kind="gguf", path=path, folder=None)


def _download_repository(name: str, show_progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm as hub_bar

    class Silent(hub_bar):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    try:
        folder = snapshot_download(
            name,
            allow_patterns=_HUB_PATTERNS,
            ignore_patterns=["*/*"],
            tqdm_class=hub_bar if show_progress else Silent,
        )
    except Exception as error:  # whatever the hub's client and its transport raise
        raise CheckpointError(
            f"model={name!r}: there is no such folder here, and the hub repository of that id "
            f"could not be fetched ({type(error).__name__}: {_first_line(error)}); check id and "
            "network, or name a local folder or .gguf file"
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")[:200]
