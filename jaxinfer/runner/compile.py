"""JOINT. The only `jit` of the package: programs are lowered and compiled ahead, and counted.

Knows how to compile and what it cost; not what a program computes.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class CompileLog:
    """Every backend compile while it listens, eager operations included.

    Taking a program out of the persistent cache counts too: it is short then.
    """

    num_compiles: int = 0
    compile_seconds: float = 0.0
    program_seconds: dict[str, float] = field(default_factory=dict)

    def listen(self, event: str, seconds: float, **_: Any) -> None:
        """The callback for `jax.monitoring`."""
        if event == _COMPILE_EVENT:
            self.num_compiles += 1
            self.compile_seconds += seconds


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


def compile_program(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    donate: tuple[int, ...] = (),
    static: dict[str, Any] | None = None,
) -> Any:
    """Lowers and compiles a pure function for shapes.

    Args:
        function: jitted here and nowhere else.
        arguments: pytrees of `jax.ShapeDtypeStruct` (or arrays, whose shapes are taken).
        donate: positions of the arguments whose memory the program may reuse.
        static: keyword arguments bound before tracing (hashable records).

    Returns:
        the executable: call it with arrays of exactly these shapes.
    """
    bound = functools.partial(function, **(static or {}))
    functools.update_wrapper(bound, function)
    return jax.jit(bound, donate_argnums=donate).lower(*arguments).compile()
