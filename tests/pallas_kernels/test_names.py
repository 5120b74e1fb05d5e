"""Every op refuses a name that it does not know, where it is decided and where it is called."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from pallas_kernels import grouped_matmul, paged_attention, quant_matmul, rms_norm, rotate_write
from pallas_kernels.dispatch import ASKED, HOPPER

PAGES = {name: (9, 2, 16, 64) for name in ("k_pages", "v_pages")}
BF16: dict[str, str] = dict.fromkeys(
    ("x", "q", "k_pages", "v_pages", "matrix", "matrices"), "bfloat16"
)
CODED: dict[str, str] = dict.fromkeys(("x", "codes"), "int8")
SHAPES = {"x": (1, 256), "codes": (128, 256), "matrix": (128, 256)}

# Those that a whole model is asked for, and fall back where there is no such kernel.
FALLS_BACK: dict[str, Callable[[str], str]] = {
    "rotate_write": lambda name: rotate_write.resolve_implementation(
        name, {"cos": (1, 32)} | PAGES, BF16, num_heads=4, platform=HOPPER
    ),
    "plain_matmul_parts": lambda name: quant_matmul.resolve_plain(name, SHAPES, BF16, HOPPER),
    "coded_matmul_parts": lambda name: quant_matmul.resolve_coded(
        name, SHAPES, CODED, group=256, out_group=1, platform=HOPPER
    ),
}
REFUSES: dict[str, Callable[[str], str]] = {
    "paged_attention": lambda name: paged_attention.resolve_implementation(
        name, {"q": (1, 1, 4, 64)} | PAGES, BF16, HOPPER
    ),
    "quant_matmul": lambda name: quant_matmul.resolve_implementation(
        name, SHAPES, {"x": "bfloat16", "codes": "int8"}, group=256, platform=HOPPER
    ),
    "grouped_matmul": lambda name: grouped_matmul.resolve_implementation(
        name, {"x": (4, 64, 256), "matrices": (4, 128, 256)}, BF16, HOPPER
    ),
    "rms_norm": lambda name: rms_norm.resolve_implementation(name, HOPPER, (256,), "bfloat16"),
}


@pytest.mark.parametrize("op", [*FALLS_BACK, *REFUSES])
def test_an_unknown_name_is_refused(op: str) -> None:
    decide = (FALLS_BACK | REFUSES)[op]
    with pytest.raises(ValueError, match=f"{op} has no implementation 'mosiac'; it has: auto, ref"):
        decide("mosiac")
    assert decide("auto") == ("xla" if op == "rms_norm" else "mosaic")


@pytest.mark.parametrize("op", FALLS_BACK)
def test_names_of_whole_models_are_known(op: str) -> None:
    found = {name: FALLS_BACK[op](name) for name in ASKED}
    assert found["mosaic"] == "mosaic" and found["simulated"] == "simulated"
    assert found["reference"] == "reference"
    assert found["triton"] == ("xla" if op == "coded_matmul_parts" else "reference")


def test_an_unknown_name_is_refused_at_a_call_too() -> None:
    x, codes = jnp.ones((1, 64), jnp.int8), jnp.ones((64, 64), jnp.int8)
    scales, misspelt = jnp.ones((1, 64)), {"implementation": "mosiac"}
    calls: dict[str, Callable[[Any], Any]] = {
        "plain_matmul_parts": lambda given: quant_matmul.plain_matmul_parts(x, codes, **given),
        "coded_matmul_parts": lambda given: quant_matmul.coded_matmul_parts(
            x, jnp.ones((1, 1)), codes, scales, group=64, **given
        ),
        "rotate_write": lambda given: rotate_write.rotate_write(
            x, x, x, x, x, x, x, num_heads=1, **given
        ),
    }
    for op, call in calls.items():
        with pytest.raises(ValueError, match=f"{op} has no implementation 'mosiac'"):
            call(misspelt)
