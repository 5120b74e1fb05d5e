"""Chooses an implementation of an op and can say why.

The choice is by predicate, never by catching an exception. Knows nothing of what an op computes.
"""

from collections.abc import Callable, Mapping
from typing import Any


def pick(op: str, implementations: Mapping[str, Callable[..., Any]], wanted: str) -> Callable:
    """The implementation named `wanted`, or for "auto" the one to use here.

    Raises:
        ValueError: a name that the op does not have.
    """
    name = "reference" if wanted == "auto" else wanted
    if name not in implementations:
        raise ValueError(
            f"{op} has no implementation {wanted!r}; it has: auto, {', '.join(implementations)}"
        )
    return implementations[name]
