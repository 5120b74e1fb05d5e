"""HOST. Refuses option names: unknown ones with the nearest known, planned ones with their feature.

Knows names only; values are checked by the records that hold them.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from jaxinfer.errors import ConfigError, UnsupportedError


def check_option_names(
    options: Mapping[str, Any], known: Collection[str], planned: Mapping[str, str]
) -> None:
    """Returns if every name is known.

    Args:
        options: names with the values that were given.
        known: names that are taken.
        planned: names of the contract whose feature is not built yet, and that feature.

    Raises:
        UnsupportedError: a planned name. ConfigError: an unknown one.
    """
    for name, value in options.items():
        if name in planned:
            raise UnsupportedError(
                f"{name}={value!r} asks for {planned[name]}, which is not built yet; "
                f"leave {name} out"
            )
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *planned], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"unknown option {name!r}; {hint}known options: {', '.join(sorted(known))}"
            )
