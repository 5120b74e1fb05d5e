"""Which programs an engine compiles, by shape, and what each of them donates."""

from collections.abc import Mapping
from typing import Any

import jax
import pytest

from jaxinfer.config.geometry import Geometry, cache_bytes
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.spec import Leaf
from jaxinfer.runner import programs
from jaxinfer.runner.compile import CompileLog, ProgramSource, counted_compiles
from jaxinfer.runner.programs import Programs, compile_programs
from jaxinfer.sampling.slot_state import abstract_loop_state
from tests.support.records import geometry, model_config

CONFIG = model_config(windows=(0, 5))
SMALL = geometry(windows=(0, 5), prefill_rows=(1,), num_slots=2, swap_pages=3)


def shapes() -> Any:
    """Parameters without memory behind them: enough to compile for."""

    def shape(leaf: Leaf) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, "float32")

    return jax.tree.map(shape, architecture_named("llama").leaves(CONFIG))


@pytest.fixture(scope="module")
def compiled() -> Programs:
    with counted_compiles(CompileLog()) as log:
        made = compile_programs(shapes(), CONFIG, SMALL)
    assert log.num_compiles == len(made.named())
    return made


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are their sources."""

    def keep(sources: Mapping[str, ProgramSource], **_: Any) -> Mapping[str, ProgramSource]:
        return sources

    monkeypatch.setattr(programs, "compile_side_by_side", keep)


@pytest.mark.usefixtures("uncompiled")
def test_a_program_for_every_shape_and_their_names() -> None:
    wide = {"prefill_rows": (1, 2), "num_slots": 5, "decode_widths": (2, 5), "swap_pages": 3}
    made = compile_programs(shapes(), CONFIG, geometry(windows=(0, 5), **wide))
    assert list(made.prefill) == [1, 2] and list(made.decode) == [2, 5]
    assert list(made.named()) == [
        *("prefill_step R=1", "prefill_step R=2", "decode_step W=2", "decode_step W=5"),
        *("init_step", "head_step", "seat_step", "copy_step", "swap_out_step", "swap_in_step"),
    ]
    for rows, source in made.prefill.items():
        assert source.arguments[3].rows.tokens.shape == (rows, 8)
    for width, source in made.decode.items():
        assert source.arguments[3].positions.shape == (width,)


@pytest.mark.usefixtures("uncompiled")
def test_pages_are_swapped_only_where_they_ever_are() -> None:
    made = compile_programs(shapes(), CONFIG, geometry(windows=(0, 5)))
    assert set(made.small) == {"init", "head", "seat", "copy"}


def state_bytes(made: Geometry) -> int:
    leaves = jax.tree.leaves(abstract_loop_state(made.num_slots, CONFIG.vocab_size))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def test_what_is_donated_is_aliased_whole(compiled: Programs) -> None:
    """Cache and loop state by steps, and what they change by the others."""
    cache, state = cache_bytes(CONFIG, SMALL), state_bytes(SMALL)
    small = {"init": 0, "head": 0, "seat": state, "copy": cache, "swap_out": 0, "swap_in": cache}
    wanted = {f"{name}_step": size for name, size in small.items()}
    for name, program in compiled.named().items():
        aliased = program.memory_analysis().alias_size_in_bytes
        assert aliased == wanted.get(name, cache + state), name


def test_a_program_is_named_after_its_step(compiled: Programs) -> None:
    """In profiles; with the parts of a step inside."""
    for name, program in compiled.named().items():
        assert name.split()[0] in program.as_text(), name
    text = compiled.decode[2].as_text()
    assert all(scope in text for scope in ("layer_0", "layer_1", "head", "draw"))
