"""Chooses an implementation of an op.

The choice is by predicate, never by catching an exception: an implementation says in one line why
it cannot serve a call. Knows nothing of what an op computes.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

Implementations = Mapping[str, Callable[..., Any]]
Shapes = Mapping[str, tuple[int, ...]]
Dtypes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Where a program will run, which need not be where it is compiled.

    kind: "cpu" or "gpu". compute_capability: of an NVIDIA GPU, as (9, 0) for Hopper. is_absent:
    programs are compiled for it where it is not.
    """

    kind: str
    compute_capability: tuple[int, int] = (0, 0)
    is_absent: bool = False


# What may stand for the kernels written for Hopper.
OF_HOPPER = ("auto", "mosaic", "simulated")
HOPPER = Platform(kind="gpu", compute_capability=(9, 0))

# What a whole model is asked to run on. An op that XLA does as well need not have all of them.
ASKED = ("auto", "reference", "mosaic", "triton", "simulated")

WhyNot = Callable[[Shapes, Dtypes, Platform], str | None]


@functools.cache
def current_platform() -> Platform:
    """The platform of this process's first device."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        return Platform(kind=device.platform)
    version = str(getattr(device, "compute_capability", "0.0")).split(".")
    return Platform(kind="gpu", compute_capability=(int(version[0]), int(version[1])))


class Deferred:
    """Stands for a module that is imported when one of its functions is first called.

    A CPU that only runs references does not wait for the kernels of GPUs. The module is imported
    beside it for type checkers and for those who read:

        if TYPE_CHECKING:
            from pallas_kernels.rms_norm import mosaic
        else:
            mosaic = Deferred("pallas_kernels.rms_norm.mosaic")
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function.startswith("__"):  # what Python looks for in any object
            raise AttributeError(function)

        def call(*arguments: Any, **options: Any) -> Any:
            module = importlib.import_module(self._module)
            return getattr(module, function)(*arguments, **options)

        return call


def resolve(
    op: str,
    implementations: Implementations,
    wanted: str,
    why_not: Mapping[str, Callable[[], str | None]] | None = None,
) -> str:
    """The name of the implementation to use for `wanted`, where "auto" leaves the choice.

    Args:
        op: its name, for messages.
        implementations: by name; "reference" serves every call.
        wanted: a name or "auto".
        why_not: in order of preference, implementations that "auto" may choose, each with the
            predicate that says why it cannot serve this call, or None.

    Raises:
        ValueError: a name that the op does not have.
    """
    if wanted == "auto":
        return next((name for name, reason in (why_not or {}).items() if not reason()), "reference")
    refuse_unknown(op, implementations, wanted)
    return wanted


def refuse_unknown(
    op: str, implementations: Implementations, wanted: str, others: tuple[str, ...] = ()
) -> None:
    """Raises for a name that is neither an implementation of the op nor one of `others`.

    Raises:
        ValueError: with the names that there are.
    """
    if wanted not in (*implementations, *others):
        raise ValueError(
            f"{op} has no implementation {wanted!r}; it has: auto, {', '.join(implementations)}"
        )


def pick(
    op: str,
    implementations: Implementations,
    wanted: str,
    why_not: Mapping[str, Callable[[], str | None]] | None = None,
) -> Callable[..., Any]:
    """The implementation itself; otherwise as `resolve`."""
    return implementations[resolve(op, implementations, wanted, why_not)]


def refuse(op: str, name: str, reason: str | None) -> None:
    """Raises if there is a reason why the implementation `name` cannot serve a call.

    Raises:
        ValueError: with the reason and what to use instead.
    """
    if reason:
        raise ValueError(f"{op} cannot use {name!r}: {reason}; use 'auto' or 'reference'")


def refuse_named(
    op: str,
    name: str,
    why_not: Callable[[Platform], str | None],
    platform: Platform | None,
    why_not_triton: Callable[[Platform], str | None] | None = None,
) -> None:
    """Raises if the named implementation cannot serve a call.

    Args:
        name: "simulated" is "mosaic" on any platform; "reference" serves every call.
        why_not: of "mosaic", on a platform. why_not_triton: of "triton", where the op has it.
        platform: where the program will run; None to leave the platform out.

    Raises:
        ValueError: with the reason and what to use instead.
    """
    if name in ("mosaic", "simulated"):
        where = platform if platform and name == "mosaic" else HOPPER
        refuse(op, name, why_not(where))
    if name == "triton" and why_not_triton is not None:
        refuse(op, name, why_not_triton(platform or current_platform()))


def why_not_hopper(platform: Platform) -> str | None:
    """Why a kernel written with wgmma and bulk copies cannot run there, or None."""
    if platform.kind != "gpu":
        return f"it is for NVIDIA GPUs, this is a {platform.kind}"
    if platform.compute_capability[0] != 9:
        found = ".".join(map(str, platform.compute_capability))
        return f"it needs compute capability 9.x (Hopper), this GPU has {found}"
    return None
