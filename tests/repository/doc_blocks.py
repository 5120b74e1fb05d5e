"""The fenced blocks of README and docs/, and what is to be done with each.

A page is read from top to bottom. What a reader would type is run; comments before a block say
what is special about it (one a line, more than one may stand there):

    <!-- not run: why it cannot be run in a test -->
    <!-- file: in.jsonl -->        the block is what that file holds
    <!-- from: path/of/a.py -->    the block is an excerpt of that file; it is compared, not run
    <!-- exits with 2 -->          the last command does
    <!-- prints: weights | MiB --> the output has these texts

`python` blocks of a page share their names. `bash` blocks are commands. `json` must be JSON, a
line each. `text` and `mermaid` are for people.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.repository.tree import ROOT, tracked_files

RUN = ("python", "bash")
LANGUAGES = (*RUN, "json", "text", "mermaid")
_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```\s*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- ((?:(?!-->)[\s\S])*) -->\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """line: of the fence. text: without its indentation. The rest is what the comments said."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None
    excerpt_of: str | None = None
    exit_code: int = 0
    prints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether a test runs it."""
        return self.language in RUN and not (self.not_run or self.excerpt_of or self.file)

    @property
    def commands(self) -> list[str]:
        """Commands of a bash block; a line that ends with a backslash goes on in the next."""
        joined = self.text.replace("\\\n", " ")
        lines = (line.partition("  #")[0].strip() for line in joined.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def pages() -> list[str]:
    """README and every page of docs/, relative to the root."""
    found = [str(path) for path in tracked_files() if path.suffix == ".md"]
    return [path for path in found if path == "README.md" or Path(path).parts[0] == "docs"]


def read_page(page: str) -> list[Block]:
    """The blocks of a page of this repository."""
    return read_blocks(page, (ROOT / page).read_text(encoding="utf-8"))


def read_blocks(page: str, text: str) -> list[Block]:
    """The blocks of a text.

    Raises:
        ValueError: a language or a comment that means nothing.
    """
    blocks = []
    for found in _FENCE.finditer(text):
        indent, language, body = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        if language not in LANGUAGES:
            raise ValueError(f"{page}:{line}: {language!r} must be one of {', '.join(LANGUAGES)}")
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        said = _said_before(text[: found.start()], f"{page}:{line}")
        blocks.append(Block(page=page, line=line, language=language, text=body, **said))
    return blocks


def _said_before(text: str, place: str) -> dict:
    """The fields of a block from the comments that stand right before it."""
    said: dict = {}
    while found := _COMMENT.search(text):
        name, _, value = found[1].partition(": ")
        if name.startswith("exits with "):
            said["exit_code"] = int(name.removeprefix("exits with "))
        elif name == "prints":
            said["prints"] = tuple(part.strip() for part in value.split(" | "))
        elif name == "from":
            said["excerpt_of"] = value.strip()
        elif name in ("not run", "file"):
            said[name.replace(" ", "_")] = value.strip()
        else:
            raise ValueError(f"{place}: the comment {found[1]!r} means nothing")
        text = text[: found.start()]
    return said
