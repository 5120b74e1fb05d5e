"""What is in the repository, and what its README says is in it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from jaxinfer.config.engine_config import EngineConfig
from tests.repository.tree import PACKAGES, ROOT, python_files, tracked_files

TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "LICENSE", "Makefile"),
    *("README.md", "bench", "docs", "jaxinfer", "mkdocs.yml", "notebooks", "pallas_kernels"),
    *("pyproject.toml", "tests"),
}
MAX_FILE_BYTES = 3 * 2**20
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|farm|root|tmp|home)/[A-Za-z.]")


def test_only_known_top_level_entries() -> None:
    assert {path.parts[0] for path in tracked_files()} <= TOP_LEVEL


def test_no_large_files() -> None:
    sizes = {str(path): (ROOT / path).stat().st_size for path in tracked_files()}
    assert not {path: size for path, size in sizes.items() if size > MAX_FILE_BYTES}


def test_no_paths_of_one_machine() -> None:
    found = [
        f"{path}:{number}"
        for path in tracked_files()
        if path.parts[0] in TOP_LEVEL and path.parts[:2] != ("tests", "data")
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found


def read_text(path: Path) -> str:
    return (ROOT / path).read_bytes().decode("utf-8", errors="replace")


def test_the_pattern_sees_a_machine_path() -> None:
    assert MACHINE_PATH.search("open('/" + "home/someone')")
    assert not MACHINE_PATH.search("docs/" + "work/plan.md")


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_of_tests_mirror_folders_of_the_packages(package: str) -> None:
    sources = {path.parent for path in python_files(package)}
    beside = {Path("repository"), Path("support"), Path("bench"), Path("end_to_end"), Path(".")}
    for path in python_files("tests"):
        folder = path.parent.relative_to("tests")
        if folder in beside or folder.parts[0] == "data":
            continue
        mirrored = folder if folder.parts[0] in PACKAGES else Path("jaxinfer") / folder
        if mirrored.parts[0] == package:
            assert mirrored in sources, f"{path} mirrors no folder of {package}"


def test_every_folder_of_a_package_has_tests() -> None:
    tested = {path.parent.relative_to("tests") for path in python_files("tests")}
    missing = []
    for path in python_files(*PACKAGES):
        folder = path.parent.relative_to("jaxinfer") if path.parts[0] == "jaxinfer" else path.parent
        has_code = path.name != "__init__.py"
        if has_code and folder not in tested and not any(folder in one.parents for one in tested):
            missing.append(str(path))
    assert not missing


def test_readme_names_the_files_that_there_are() -> None:
    listed = set(readme_tree((ROOT / "README.md").read_text(encoding="utf-8")))
    modules = {str(path) for path in python_files(*PACKAGES) if path.name != "__init__.py"}
    assert modules - listed == set(), "files that README's tree leaves out"
    gone = {path for path in listed if not (ROOT / path).exists()}
    assert gone == set(), "files in README's tree that do not exist"


def test_readme_names_every_switch() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [field.name for field in fields(EngineConfig) if f"`{field.name}`" not in text]


def readme_tree(text: str) -> list[str]:
    """Paths of the indented tree in README's block that starts with `jaxinfer/`.

    Two spaces a level; a name ends at the first blank; folders end with a slash:
    `jaxinfer/` then `  config/` then `    geometry.py  what it holds` is
    jaxinfer/config/geometry.py.
    """
    block = re.search(r"```text\n(jaxinfer/.*?)```", text, re.DOTALL)
    assert block, "README has no ```text block that starts with jaxinfer/"
    paths, folders = [], []
    for line in block.group(1).splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[depth:] = [name.rstrip("/")]
        paths.append("/".join(folders))
    return paths
