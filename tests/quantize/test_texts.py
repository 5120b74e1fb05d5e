"""The split of the default text: nothing that is judged was seen in calibration."""

from pathlib import Path

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.quantize import texts
from jaxinfer.quantize.texts import calibration_text, held_out_text, read_text


def paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def test_no_paragraph_is_in_both_parts_or_judged_twice() -> None:
    seen, judged = paragraphs(calibration_text()), paragraphs(held_out_text())
    assert len(judged) > 500 and not set(seen) & set(judged)
    assert len(judged) == len(set(judged))


def test_both_parts_are_long_enough_for_what_they_are_for() -> None:
    """A token of English is four characters or more: 8k contexts, and 128 passages of 512."""
    assert len(held_out_text()) > 4 * 2 * 8192
    assert len(calibration_text()) > 200_000


def test_paragraphs_are_the_same_whatever_their_indentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chapters = ["one\n\n   two\n   three\n", "  two\n  three\n\nfour\n\n\nfive\n\nfour", "six"]
    monkeypatch.setattr(texts, "_chapters", lambda: chapters)
    assert held_out_text() == "four\n\nfive"
    assert calibration_text() == "one\n\n   two\n   three\n\n\nsix"


def test_a_file_is_read_and_what_is_no_text_refused(tmp_path: Path) -> None:
    assert read_text(None, lambda: "default") == "default"
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9\r\n")
    assert read_text(file, held_out_text) == "café\r\n"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"a\.txt: cannot be read as UTF-8"):
        read_text(file, held_out_text)
    with pytest.raises(ConfigError, match="--calibration .*gone"):
        read_text(tmp_path / "gone", held_out_text, option="--calibration")


def test_files_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    for make, said in ((path.mkdir, "cannot be read"),):
        make()
        with pytest.raises(ConfigError, match=said):
            read_text(path, held_out_text)
    path = tmp_path / "bytes"
    path.write_bytes(b"abc\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 .*at byte 3"):
        read_text(path, held_out_text)
    path.write_text("a" + "ü" * 10, encoding="utf-8")
    monkeypatch.setattr(texts, "MAX_TEXT_BYTES", 4)
    assert read_text(path, held_out_text) == "aü"  # cut within a character
