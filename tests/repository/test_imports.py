"""What an import may start: nothing. Checked in child processes, as a user would see it."""

import ast
import json
import subprocess
import sys

import pytest

from tests.repository.tree import ROOT, python_files, syntax_tree

HOST_PLACES = ("jaxinfer/errors.py", "jaxinfer/config/", "jaxinfer/text/", "jaxinfer/scheduler/")
KINDS = ("HOST.", "DEV.", "JOINT.")


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_jaxinfer_starts_nothing() -> None:
    loaded = modules_after("import jaxinfer")
    assert not loaded & {"jax", "jaxlib", "flax", "torch", "transformers"}


def test_importing_the_api_starts_no_backend_and_needs_no_torch() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from jaxinfer import LLM, SamplingParams\n"
            "import sys, jax\n"
            "from jax.extend import backend\n"
            "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
            "jax.config.update('jax_platforms', 'nonsense')\n"
            "try:\n    jax.devices()\nexcept RuntimeError:\n    print('untouched')\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    # Had an import started a backend, the platform could not be chosen any more.
    assert done.stdout.strip() == "untouched", done.stderr


def kinds_of_files() -> dict[str, str]:
    """The first word of every module docstring, by path; `__init__` files left out."""
    return {
        str(path): (ast.get_docstring(syntax_tree(path)) or "").partition(" ")[0]
        for path in python_files("jaxinfer")
        if path.name != "__init__.py"
    }


def test_every_file_says_its_kind() -> None:
    kinds = kinds_of_files()
    assert not {path: kind for path, kind in kinds.items() if kind not in KINDS}
    wrong = [path for path, kind in kinds.items() if path.startswith(HOST_PLACES)]
    assert not [path for path in wrong if kinds[path] != "HOST."]


def test_host_files_load_without_jax() -> None:
    host = [path for path, kind in kinds_of_files().items() if kind == "HOST."]
    assert "jaxinfer/config/model_config.py" in host
    imports = [f"import {path.removesuffix('.py').replace('/', '.')}" for path in host]
    assert not modules_after("\n".join(imports)) & {"jax", "jaxlib", "flax", "torch"}


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_is_quick(arguments: list[str]) -> None:
    loaded = modules_after(
        f"import sys\nsys.argv = ['jaxinfer', *{arguments!r}]\n"
        "from jaxinfer.jobs.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert not loaded & {"jax", "flax", "huggingface_hub", "tokenizers"}


def test_no_kernel_of_a_gpu_is_imported_with_the_ops() -> None:
    ops = ("paged_attention", "quant_matmul", "grouped_matmul", "rms_norm", "rotate_write")
    loaded = modules_after("\n".join(f"import pallas_kernels.{op}" for op in ops))
    assert {f"pallas_kernels.{op}.api" for op in ops} <= loaded
    own = {name for name in loaded if name.startswith("pallas_kernels.")}
    assert not [name for name in own if name.endswith((".mosaic", ".triton"))]
