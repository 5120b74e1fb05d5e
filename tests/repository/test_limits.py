"""Ceilings on the size of files and functions, and where `jit` and private jax may be."""

import ast
from pathlib import Path

from tests.repository.tree import PACKAGES, ROOT, dotted_names, python_files, syntax_tree

MAX_FILE_LINES = 399
MAX_FUNCTION_LINES = 39
MAX_KERNEL_LINES = 119  # a kernel body, in pallas_kernels


def test_no_file_has_400_lines() -> None:
    sizes = {
        path: len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in python_files(*PACKAGES, "tests", "bench")
    }
    too_long = {str(path): lines for path, lines in sizes.items() if lines > MAX_FILE_LINES}
    assert not too_long


def test_no_function_has_40_lines() -> None:
    too_long = {
        f"{path}:{node.lineno} {node.name}": lines
        for path in python_files(*PACKAGES, "bench")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef)
        and (lines := code_lines(node)) > function_ceiling(path, node)
    }
    assert not too_long


def code_lines(node: ast.FunctionDef) -> int:
    """Lines from `def` to the end, the docstring left out."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        text = node.body[0]
        lines -= (text.end_lineno or text.lineno) - text.lineno + 1
    return lines


def function_ceiling(path: Path, node: ast.FunctionDef) -> int:
    is_kernel = path.parts[0] == "pallas_kernels" and "kernel" in node.name
    return MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES


def test_the_ceiling_counts_code_and_not_docstrings() -> None:
    function = ast.parse('def f():\n    """One\n    two."""\n    return 1\n').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert code_lines(function) == 2


def test_jit_is_called_in_one_place() -> None:
    found = [
        f"{path}:{line} {name}"
        for path in python_files("jaxinfer")
        if path != Path("jaxinfer/runner/compile.py")
        for line, name in dotted_names(syntax_tree(path))
        if name in ("jax.jit", "jax.pmap", "jax.pjit") or name.startswith("jax.experimental.pjit")
    ]
    assert not found


def test_private_jax_is_used_in_one_place() -> None:
    found = [
        f"{path}:{line} {name}"
        for path in python_files(*PACKAGES)
        if path != Path("pallas_kernels/mosaic_compat.py")
        for line, name in dotted_names(syntax_tree(path))
        if name.startswith("jax._src") or name.startswith("jaxlib._")
    ]
    assert not found


def test_dotted_names_see_what_the_rules_forbid() -> None:
    source = "import jax\nfrom jax import jit\nfrom jax._src import core\njax.jit(f)\n"
    names = {name for _, name in dotted_names(ast.parse(source))}
    assert {"jax.jit", "jax._src.core"} <= names


def test_no_vague_module_names() -> None:
    vague = {"utils", "util", "common", "helpers", "misc"}
    found = [str(path) for path in python_files(*PACKAGES, "tests", "bench") if path.stem in vague]
    assert not found
