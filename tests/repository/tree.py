"""The tracked files of this repository, read once for the tests beside it."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jaxinfer", "pallas_kernels")


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files of the repository relative to its root: what git tracks or would track.

    Without git (an unpacked archive) every file outside hidden folders and caches counts.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return tuple(sorted(path for path in found if not _is_output(path)))
    paths = {Path(line) for line in listing.stdout.splitlines()}
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def _is_output(path: Path) -> bool:
    hidden = path.parts[0].startswith(".") and path.parts[0] not in (".ci",)
    return hidden or "__pycache__" in path.parts or path.parts[0].endswith(".egg-info")


def python_files(*tops: str) -> list[Path]:
    """Tracked Python files below the folders `tops`, relative to the root."""
    return [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] in tops]


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def dotted_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import target and attribute chain (`jax.jit`) with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
