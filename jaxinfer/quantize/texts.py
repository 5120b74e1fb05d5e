"""HOST. The texts that quantization is calibrated with and judged on: the owner of that split.

The default ships with Python: `pydoc_data.topics`, chapters of its manual. In the order of their
names every other one is for calibration; the rest is held out, less the paragraphs that stand in a
calibration chapter too. Knows no tokens.
"""

import re
from collections.abc import Callable
from pathlib import Path

from jaxinfer.errors import ConfigError

MAX_TEXT_BYTES = 16 * 2**20  # more adds nothing: a few hundred passages are looked at
_PARAGRAPH_END = re.compile(r"\n\s*\n")


def calibration_text() -> str:
    """What makers look at (some 250,000 characters).

    Raises:
        ConfigError: this Python was built without its manual.
    """
    chapters = _chapters()
    return "\n\n".join(chapters[::2])


def held_out_text() -> str:
    """What judges look at (some 135,000 characters): no paragraph of it is in the other part.

    Raises:
        ConfigError: this Python was built without its manual.
    """
    chapters = _chapters()
    seen = {_key(paragraph) for chapter in chapters[::2] for paragraph in _paragraphs(chapter)}
    kept = []
    for paragraph in (one for chapter in chapters[1::2] for one in _paragraphs(chapter)):
        if _key(paragraph) not in seen:
            seen.add(_key(paragraph))
            kept.append(paragraph)
    return "\n\n".join(kept)


def read_text(path: Path | None, default: Callable[[], str], *, option: str = "--text") -> str:
    """A file's text, its first 16 MiB, or that of `default` where none is named.

    Args:
        option: what the file is given by, for the message.

    Raises:
        ConfigError: a file that is not UTF-8 text.
    """
    if path is None:
        return default()
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES)
            is_cut = bool(file.read(1))
        # A character at the very end may be cut in two.
        return content.decode("utf-8-sig", "ignore" if is_cut else "strict")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{option} {path}: cannot be read as UTF-8 text, it is not UTF-8 ({error.reason} at "
            f"byte {error.start}); give a plain text file"
        ) from error
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error}; give a text file") from error


def _chapters() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigError(
            f"the default text ships with Python, and this one is without it ({error}); "
            "give a text file"
        ) from error
    return [topics[name] for name in sorted(topics)]


def _paragraphs(chapter: str) -> list[str]:
    return [part.strip("\n") for part in _PARAGRAPH_END.split(chapter) if part.strip()]


def _key(paragraph: str) -> str:
    """A paragraph whatever its indentation and line breaks."""
    return " ".join(paragraph.split())
