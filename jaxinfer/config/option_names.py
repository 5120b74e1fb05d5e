"""HOST. Checks option names: unknown ones get the nearest known, planned ones name their feature.

Knows names only; values are checked by the records that hold them.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.errors import ConfigError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Planned:
    """An option of the contract whose feature is not built yet.

    feature: what it would do. neutral: values that ask for nothing and are taken in silence.
    """

    feature: str
    neutral: tuple[Any, ...] = (None,)


def accepted_options(
    options: Mapping[str, Any], known: Collection[str], planned: Mapping[str, Planned]
) -> dict[str, Any]:
    """The options with known names; planned ones at a neutral value are left out.

    Raises:
        UnsupportedError: a planned option that asks for its feature. ConfigError: an unknown name.
    """
    accepted = {}
    for name, value in options.items():
        if name in known:
            accepted[name] = value
        elif name not in planned:
            raise ConfigError(_unknown(name, known, planned))
        elif not any(value is one or value == one for one in planned[name].neutral):
            raise UnsupportedError(
                f"{name}={value!r} asks for {planned[name].feature}, which is not built yet; "
                f"leave {name} out"
            )
    return accepted


def _unknown(name: str, known: Collection[str], planned: Mapping[str, Planned]) -> str:
    near = difflib.get_close_matches(name, [*known, *planned], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown option {name!r}; {hint}known options: {', '.join(sorted(known))}"
