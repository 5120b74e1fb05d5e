"""Compiles are counted, donated arguments are aliased, other shapes are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxinfer.runner.compile import (
    CompileLog,
    ProgramSource,
    compile_program,
    compile_side_by_side,
    counted_compiles,
    use_compilation_cache,
)


def scale_and_add(x: jax.Array, state: jax.Array, factor: float = 1.0) -> tuple[jax.Array, ...]:
    return x * jnp.float32(factor), state + 1


def shape(*size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(size, jnp.float32)


def compile_for(*arguments: Any, **options: Any) -> Any:
    source = ProgramSource(function=scale_and_add, arguments=arguments, **options)
    return compile_program(source)


def test_one_program_is_one_compile_and_runs_are_none() -> None:
    log = CompileLog()
    with counted_compiles(log):
        program = compile_for(shape(3), shape(5), static={"factor": 2.5})
        assert log.num_compiles == 1 and log.compile_seconds > 0
        x, state = np.ones(3, np.float32), np.zeros(5, np.float32)
        for _ in range(3):
            out, state = program(x, state)
        assert np.asarray(out).tolist() == [2.5] * 3 and np.asarray(state).tolist() == [3] * 5
    assert log.num_compiles == 1


def test_eager_operations_count_too() -> None:
    log = CompileLog()
    with counted_compiles(log):
        _ = jnp.arange(37, dtype=jnp.float32)[3:17] * jnp.float32(1.25)
    assert log.num_compiles >= 1


def test_nothing_is_counted_outside() -> None:
    log, inner = CompileLog(), CompileLog()
    with counted_compiles(log):
        with counted_compiles(inner):
            compile_for(shape(11), shape(2))
        compile_for(shape(12), shape(2))
    compile_for(shape(13), shape(2))
    assert (log.num_compiles, inner.num_compiles) == (2, 1)


def test_a_listener_is_gone_after_an_exception() -> None:
    log = CompileLog()
    with pytest.raises(RuntimeError, match="stop"), counted_compiles(log):
        raise RuntimeError("stop")
    compile_for(shape(14), shape(2))
    assert log.num_compiles == 0


def test_donated_arguments_are_aliased() -> None:
    program = compile_for(shape(8), shape(64), donate=(1,))
    assert program.memory_analysis().alias_size_in_bytes == 64 * 4
    state = jnp.zeros(64, jnp.float32)
    program(jnp.ones(8, jnp.float32), state)
    assert state.is_deleted()


def test_side_by_side_is_one_after_another() -> None:
    log = CompileLog()
    with counted_compiles(log):
        programs = compile_side_by_side(
            {
                size: ProgramSource(function=scale_and_add, arguments=(shape(size), shape(2)))
                for size in (31, 32, 33)
            }
        )
    assert log.num_compiles == 3 and list(programs) == [31, 32, 33]
    for size, program in programs.items():
        assert program(np.ones(size, np.float32), np.zeros(2, np.float32))[0].shape == (size,)


def test_another_shape_is_refused_and_not_compiled() -> None:
    program = compile_for(shape(3), shape(5))
    log = CompileLog()
    with counted_compiles(log), pytest.raises(TypeError):
        program(np.ones(4, np.float32), np.zeros(5, np.float32))
    assert log.num_compiles == 0


def test_a_program_is_named_after_its_function() -> None:
    program = compile_for(shape(3), shape(5), static={"factor": 3.0})
    assert "scale_and_add" in program.as_text()


@pytest.fixture
def restored_cache_settings() -> Iterator[None]:
    names = ("compilation_cache_dir", "enable_compilation_cache")
    names += ("persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("restored_cache_settings")
def test_the_cache_folder_is_used_and_left_alone_when_off(tmp_path: Path) -> None:
    use_compilation_cache(tmp_path)
    compile_for(shape(21), shape(2))
    kept = sorted(tmp_path.rglob("*"))
    assert kept
    use_compilation_cache(None)
    compile_for(shape(22), shape(2))
    assert sorted(tmp_path.rglob("*")) == kept
