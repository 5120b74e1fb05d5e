"""The choice of an implementation: by name, never by trying."""

import pytest

from pallas_kernels.dispatch import pick


def reference() -> str:
    return "reference"


def other() -> str:
    return "other"


@pytest.mark.parametrize(("wanted", "found"), [("auto", reference), ("other", other)])
def test_pick(wanted: str, found: object) -> None:
    assert pick("op", {"reference": reference, "other": other}, wanted) is found


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="op has no implementation 'x'; it has: auto, reference"):
        pick("op", {"reference": reference}, "x")
