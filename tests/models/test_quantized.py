"""Logits of quantized checkpoints against their libraries in float32, packed and decoded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tolerances import LOGITS

DATA = Path(__file__).parents[1] / "data"
FOLDERS = sorted(path.parent for path in DATA.glob("quant/*/model.safetensors"))
PACKABLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
GGUF = sorted(
    path.parent for path in DATA.glob("quant/*/model.gguf") if path.parent.name.endswith(PACKABLE)
)
# Where the library itself rounds decoded weights, the file holds logits of the plain formula too.
UNROUNDED = "fp32numpy_"

PERMUTED = ("gptq_w4_g32_descact",)


def test_the_data_is_there() -> None:
    assert len(FOLDERS) == 16
    assert len(GGUF) == 14


@pytest.mark.parametrize("folder", [*FOLDERS, *GGUF], ids=lambda path: path.name)
def test_packed_and_decoded_weights_give_the_library_s_logits(
    folder: Path, forward_logits: Any
) -> None:
    """Both forms, bit for bit the same in float32 unless columns are added in another order."""
    expected = np.load(folder / "expected.npz")
    model = folder / "model.gguf" if folder in GGUF else folder
    prefix = UNROUNDED if f"{UNROUNDED}logits0" in expected else ""
    for prompt in (0, 1):
        ids = expected[f"ids{prompt}"].tolist()
        packed = forward_logits(model, ids, keep_packed=True)
        np.testing.assert_allclose(
            packed, expected[f"{prefix}logits{prompt}"], rtol=0, atol=LOGITS["float32"]
        )
        decoded = forward_logits(model, ids)
        if folder.name in PERMUTED:
            np.testing.assert_allclose(packed, decoded, rtol=0, atol=LOGITS["float32"])
        else:
            np.testing.assert_array_equal(packed, decoded)


# Largest and mean difference to the library's logits with rounded inputs. FP8: the same numbers,
# but for single values that fall to the other side of a tie. int8: the library divides the largest
# value of a row by 127.5, which puts it on a tie, so its rounding and ours are two roundings of the
# same float model: each as far from it (0.27 at most, 0.041 in the mean) as from the other.
ROUNDED_INPUTS = {"ct_fp8_block": (1e-3, 1e-5), "ct_w8a8_dynamic": (0.54, 0.082)}


@pytest.mark.parametrize("name", ROUNDED_INPUTS)
def test_rounded_inputs(name: str, forward_logits: Any) -> None:
    """What the checkpoint was made for: inputs rounded to 8 bits, too."""
    expected = np.load(DATA / "quant" / name / "expected.npz")
    for prompt in (0, 1):
        ids = expected[f"ids{prompt}"].tolist()
        found = forward_logits(DATA / "quant" / name, ids, keep_packed=True, round_inputs=True)
        error = np.abs(found - expected[f"emulated_logits{prompt}"])
        assert error.max() < ROUNDED_INPUTS[name][0]
        assert error.mean() < ROUNDED_INPUTS[name][1]
        plain = np.abs(found - expected[f"logits{prompt}"])
        assert plain.max() > 0.1  # it is another model
