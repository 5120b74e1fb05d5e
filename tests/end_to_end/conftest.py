"""Engines for tests: small, and those of one shape with the same compiled programs."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest

from jaxinfer import LLM
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.engine import build
from jaxinfer.runner.programs import Programs, compile_programs
from tests.end_to_end.engines import SMALL, assert_drained, set_loop
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

OpenLLM = Callable[..., LLM]
FEW_PAGES = 6
MOST_KEPT = 12  # engines' programs: see tests/conftest.py for why not all


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs: equal ones are compiled once a session."""
    return tmp_path_factory.mktemp("programs")


class KeptPrograms:
    """`compile_programs`, which compiles once for each model's shapes and geometry.

    Tracing is never in jax's cache of compiled programs, and takes most of a small engine's start.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, Programs] = OrderedDict()

    def __call__(
        self,
        params: Any,
        config: ModelConfig,
        geometry: Geometry,
        draft: ModelConfig | None = None,
        *,
        show_progress: bool = False,
    ) -> Programs:
        leaves, structure = jax.tree.flatten(params)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        key = (structure, shapes, config, geometry, draft)
        if key not in self._kept:
            self._kept[key] = compile_programs(params, config, geometry, draft)
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


@pytest.fixture(scope="session")
def open_llm(programs: Path) -> OpenLLM:
    """`LLM` with the small settings; with `fresh` it compiles its own programs, as users' do."""
    kept_programs = KeptPrograms()

    def open_one(model: Path, *, fresh: bool = False, **options: Any) -> LLM:
        folder = {"compilation_cache_dir": str(programs), "show_progress": False}
        compiling = compile_programs if fresh else kept_programs
        with mock.patch.object(build, "compile_programs", compiling):
            return LLM(model, **{**SMALL, **folder, **options})

    return open_one


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY with the BYTE tokenizer; EOS is `<end>`."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=256)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def _shared_tiny(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    with open_llm(tiny_folder, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture
def tiny(_shared_tiny: LLM) -> Iterator[LLM]:
    """One engine of TINY with eight slots; a test must leave it with every page free."""
    yield from lent(_shared_tiny)


@pytest.fixture(scope="session")
def _shared_few(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    swapping = {"admission": "optimistic", "preemption": "swap"}
    with open_llm(
        tiny_folder, max_num_batched_tokens=16, num_gpu_blocks_override=FEW_PAGES, **swapping
    ) as llm:
        yield llm


@pytest.fixture
def few(_shared_few: LLM) -> Iterator[LLM]:
    """One engine of TINY with two slots and six pages of 16 tokens, which reserves them.

    `set_loop` makes it preempt: the programs for that are there.
    """
    set_loop(_shared_few, admission="reserve")
    yield from lent(_shared_few)


def lent(llm: LLM) -> Iterator[LLM]:
    """An engine with nothing in its cache, whose settings are put back afterwards."""
    settings = llm.engine.ask
    llm.engine.reset()
    yield llm
    assert_drained(llm)
    llm.engine.ask = settings
    llm.engine.reset()
