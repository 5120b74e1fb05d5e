"""JOINT. The only `jit` of the package: programs are lowered and compiled ahead, and counted.

Knows how to compile and what it cost; not what a program computes.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from tqdm import tqdm

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class CompileLog:
    """Every backend compile while it listens, eager operations included.

    Taking a program out of the persistent cache counts too: it is short then.
    """

    num_compiles: int = 0
    compile_seconds: float = 0.0

    def listen(self, event: str, duration_secs: float, **_: Any) -> None:
        """The callback for `jax.monitoring`."""
        if event == _COMPILE_EVENT:
            self.num_compiles += 1
            self.compile_seconds += duration_secs


@contextmanager
def counted_compiles(log: CompileLog) -> Iterator[CompileLog]:
    """Counts compiles into `log` while it is open."""
    jax.monitoring.register_event_duration_secs_listener(log.listen)
    try:
        yield log
    finally:
        jax.monitoring.unregister_event_duration_listener(log.listen)


def use_compilation_cache(folder: Path | None) -> None:
    """Keeps compiled programs in `folder` for later processes; None keeps nothing.

    The setting is jax's own and holds for the process: the last engine's wins.
    """
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(folder) if folder else None)
    jax.config.update("jax_enable_compilation_cache", folder is not None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """A pure function and the shapes it is compiled for.

    arguments: pytrees of `jax.ShapeDtypeStruct` (or arrays, whose shapes are taken).
    donate: positions of the arguments whose memory the program may reuse.
    static: keyword arguments bound before tracing (hashable records).
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    donate: tuple[int, ...] = ()
    static: Mapping[str, Any] = field(default_factory=dict)

    def lower(self) -> Any:
        """Traces and lowers the function; `.compile()` of the result gives the executable."""
        bound = functools.partial(self.function, **self.static)
        functools.update_wrapper(bound, self.function)
        return jax.jit(bound, donate_argnums=self.donate).lower(*self.arguments)


def compile_program(source: ProgramSource) -> Any:
    """The executable of one source: call it with arrays of exactly its shapes."""
    return source.lower().compile()


def compile_side_by_side(
    sources: Mapping[str, ProgramSource], *, show_progress: bool = False
) -> dict[str, Any]:
    """The executables by the names of their sources.

    Tracing holds Python's lock and compiling does not: this thread traces the next program while
    another compiles the last. One compile at a time, so that its counted seconds are its own.
    """
    bar = tqdm(total=len(sources), desc="compiling programs", disable=not show_progress)
    with bar, ThreadPoolExecutor(max_workers=1) as compiler:
        futures = {}
        for name, source in sources.items():
            futures[name] = compiler.submit(source.lower().compile)
            futures[name].add_done_callback(lambda _: bar.update())
        return {name: future.result() for name, future in futures.items()}
