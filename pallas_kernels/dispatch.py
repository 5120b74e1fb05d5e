"""Chooses an implementation of an op.

The choice is by predicate, never by catching an exception. Knows nothing of what an op computes.
"""

from collections.abc import Callable, Mapping
from typing import Any

Implementations = Mapping[str, Callable[..., Any]]


def resolve(op: str, implementations: Implementations, wanted: str) -> str:
    """The name of the implementation to use for `wanted`, where "auto" leaves the choice.

    Raises:
        ValueError: a name that the op does not have.
    """
    name = "reference" if wanted == "auto" else wanted
    if name not in implementations:
        raise ValueError(
            f"{op} has no implementation {wanted!r}; it has: auto, {', '.join(implementations)}"
        )
    return name


def pick(op: str, implementations: Implementations, wanted: str) -> Callable[..., Any]:
    """The implementation itself; otherwise as `resolve`."""
    return implementations[resolve(op, implementations, wanted)]
