"""Where kernels in Triton are taken: by GPU, and by which packages are there together."""

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from pallas_kernels import paged_attention, quant_matmul
from pallas_kernels.dispatch import Platform
from pallas_kernels.triton_compat import why_not_chosen, why_not_triton

BLACKWELL = Platform(kind="gpu", compute_capability=(10, 0))


def gpu(*capability: int) -> Platform:
    return Platform(kind="gpu", compute_capability=capability)  # type: ignore[arg-type]


@contextmanager
def installed(**versions: str) -> Iterator[None]:
    """These packages, whatever is there."""
    with (
        mock.patch.object(importlib.util, "find_spec", lambda name: versions.get(name)),
        mock.patch.object(
            importlib.metadata, "version", lambda name: versions[name.replace("-", "_")]
        ),
    ):
        yield


TOGETHER = {"triton": "3.9.0", "jax_triton": "0.3.1", "jax": "0.10.2"}


def test_auto_takes_it_before_hopper_only() -> None:
    with installed(**TOGETHER):
        assert why_not_chosen(gpu(8, 0)) is why_not_chosen(gpu(8, 9)) is None
        for newer in (gpu(9, 0), gpu(10, 0), gpu(12, 0)):
            assert "only where it is asked for by name" in str(why_not_chosen(newer))
            assert why_not_triton(newer) is None
        assert "needs compute capability 8.0" in str(why_not_chosen(gpu(7, 5)))
        assert "this is a cpu" in str(why_not_chosen(Platform(kind="cpu")))


def test_no_op_takes_it_on_a_newer_gpu_unless_asked() -> None:
    pages = (9, 8, 128, 128)
    attention = {"q": (64, 1, 32, 128), "k_pages": pages, "v_pages": pages}
    product = {"x": (1, 512), "codes": (512, 256)}
    with installed(**TOGETHER):
        for wanted, found in (("auto", "reference"), ("triton", "triton")):
            given = dict.fromkeys(attention, "bfloat16")
            resolve = paged_attention.resolve_implementation
            assert resolve(wanted, attention, given, BLACKWELL) == found
            given = {"x": "bfloat16", "codes": "uint8"}
            multiply = quant_matmul.resolve_implementation
            assert multiply(wanted, product, given, group=128, platform=BLACKWELL) == found
            older = multiply(wanted, product, given, group=128, platform=gpu(8, 0))
            assert older == "triton"


@pytest.mark.parametrize(
    ("jax_triton", "jax", "is_broken"),
    [
        ("0.3.1", "0.10.2", False),
        ("0.4.1", "0.12.0.1", True),
        ("0.4.1", "0.12", True),
        ("0.4.1", "0.13.0", False),
        ("0.4.2", "0.12.0.1", False),
    ],
)
def test_packages_that_do_not_work_together(jax_triton: str, jax: str, is_broken: bool) -> None:
    with installed(triton="3.9.0", jax_triton=jax_triton, jax=jax):
        reason = why_not_triton(gpu(8, 0))
    wanted = f"jax-triton {jax_triton} cannot be called with jax {jax}"
    assert reason == (wanted if is_broken else None)


def test_what_is_not_installed() -> None:
    with installed(triton="3.9.0"):
        assert why_not_triton(gpu(8, 0)) == "jax-triton is not installed"
