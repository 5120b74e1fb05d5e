"""The choice of an implementation: by name, never by trying."""

import pytest

from pallas_kernels.dispatch import (
    Deferred,
    Platform,
    current_platform,
    pick,
    refuse,
    why_not_hopper,
)


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


def test_auto_takes_the_first_that_has_no_reason_against_it() -> None:
    implementations = {"reference": reference, "other": other}
    assert pick("op", implementations, "auto", {"other": lambda: None}) is other
    assert pick("op", implementations, "auto", {"other": lambda: "too small"}) is reference
    assert pick("op", implementations, "reference", {"other": lambda: None}) is reference


def test_a_refusal_names_the_reason_and_the_way_out() -> None:
    refuse("op", "other", None)
    with pytest.raises(ValueError, match="op cannot use 'other': too small; use 'auto'"):
        refuse("op", "other", "too small")


def test_kernels_for_hopper_say_what_they_need() -> None:
    assert current_platform().kind in ("cpu", "gpu")
    assert why_not_hopper(Platform(kind="gpu", compute_capability=(9, 0))) is None
    assert "has 8.0" in str(why_not_hopper(Platform(kind="gpu", compute_capability=(8, 0))))
    assert "is a cpu" in str(why_not_hopper(Platform(kind="cpu")))


def test_a_deferred_module_is_imported_at_the_first_call() -> None:
    absent = Deferred("pallas_kernels.no_such_module").run
    with pytest.raises(ImportError, match="no_such_module"):
        absent()
    assert Deferred("json").dumps([1], indent=None) == "[1]"
    assert not hasattr(Deferred("json"), "__wrapped__")
