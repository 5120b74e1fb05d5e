"""gpt-oss: its packed experts, and the files that are not run as one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import find_sources, open_checkpoint
from jaxinfer.checkpoint.expert_stack import StackedMatrices
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.family_fixtures import Fixture, read_fixture
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_hf_folder
from tests.support.tolerances import LOGITS

VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.fixture(scope="module")
def packed() -> Fixture:
    return read_fixture("gpt_oss_mxfp4")


def written(folder: Path, fixture: Fixture, *, drop: str = "", **changes: Any) -> Path:
    weights = {name: value for name, value in fixture.weights.items() if name != drop}
    return write_hf_folder(folder, {**fixture.config, **changes}, weights)


def sources_of(path: Path) -> dict[str, Any]:
    return {leaf.hf: source for leaf, source in find_sources(open_checkpoint(path)).items()}


def test_packed_experts_lose_nothing(packed: Fixture, tmp_path: Path) -> None:
    """Code by code, in a layer's gates (even rows), ups (odd rows) and downs."""
    sources, weights = sources_of(packed.write(tmp_path)), packed.weights
    stem = "model.layers.1.mlp.experts"
    for matrix, stored, rows in (
        ("gate", "gate_up", slice(0, None, 2)),
        ("up", "gate_up", slice(1, None, 2)),
        ("down", "down", slice(None)),
    ):
        source = sources[f"{stem}.{{expert}}.{matrix}_proj.weight"]
        assert isinstance(source, StackedMatrices) and source.form is not None
        assert (source.form.codes, source.form.group) == ("int8", 32)
        blocks, exponents = (
            weights[f"{stem}.{stored}_proj_{part}"] for part in ("blocks", "scales")
        )
        for expert, one in enumerate(source.experts):
            halves = np.stack([blocks[expert] & 15, blocks[expert] >> 4], axis=-1)
            values = np.array(VALUES, np.float32)[halves].reshape(len(halves), -1)
            scales = np.exp2(exponents[expert].astype(np.float32) - 127).repeat(32, axis=1)
            np.testing.assert_array_equal(one.read_floats(0, one.shape[0]), (values * scales)[rows])


def test_packed_experts_stay_packed(packed: Fixture, tmp_path: Path, forward_logits: Any) -> None:
    folder = packed.write(tmp_path)
    for prompt in "01":
        ids = packed.expected[f"ids{prompt}"].tolist()
        found = forward_logits(folder, ids, keep_packed=True)
        wanted = packed.expected[f"logits{prompt}"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])


def test_the_limit_and_the_sinks_count(tmp_path: Path, forward_logits: Any) -> None:
    """The fixture would not notice a gate without a limit, or a model without sinks, otherwise."""
    fixture = read_fixture("gpt_oss")
    ids, wanted = fixture.expected["ids0"].tolist(), fixture.expected["logits0"]
    unheld = forward_logits(written(tmp_path / "limit", fixture, swiglu_limit=7.0), ids)
    assert np.abs(unheld - wanted).max() > 0.01
    weights = {
        name: np.full_like(value, -100) if name.endswith("sinks") else value
        for name, value in fixture.weights.items()
    }
    unsunk = forward_logits(write_hf_folder(tmp_path / "sinks", fixture.config, weights), ids)
    assert np.abs(unsunk - wanted).max() > 0.01


GATE_UP = "model.layers.2.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        (f"{GATE_UP}_scales", r"lacks .*gate_up_proj_scales"),
        (f"{GATE_UP}_blocks", r"lacks 5 of the 5 experts"),
        (f"{GATE_UP}_bias", r"lacks 5 of the 5 experts .*bias"),
        ("model.layers.0.self_attn.sinks", r"lacks 1 .*self_attn\.sinks"),
        ("model.layers.0.mlp.router.bias", r"lacks 1 .*router\.bias"),
    ],
)
def test_missing_tensors_are_named(
    drop: str, message: str, packed: Fixture, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        sources_of(written(tmp_path, packed, drop=drop))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"num_local_experts": 6},
            CheckpointError,
            "holds 5 experts, the config asks",
        ),
        ({"num_local_experts": 4}, CheckpointError, r"has shape \[5, "),
        ({"num_experts_per_tok": 6}, CheckpointError, "num_experts_per_tok=6 is more than the 5"),
        ({"intermediate_size": 96}, CheckpointError, "_proj_blocks.* has shape"),
        ({"swiglu_limit": -1.0}, CheckpointError, "swiglu_limit=-1.0"),
        ({"sliding_window": None}, CheckpointError, "sliding_window=None and 2 layers that slide"),
        ({"layer_types": ["chunked_attention"] * 3}, UnsupportedError, "'chunked_attention'"),
        ({"scoring_func": "sigmoid"}, UnsupportedError, "scoring_func='sigmoid'"),
        ({"n_shared_experts": 1}, UnsupportedError, "n_shared_experts=1"),
    ],
)
def test_what_is_not_run_is_refused(
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    packed: Fixture,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=message):
        sources_of(written(tmp_path, packed, **changes))


def test_other_families_have_no_clamped_gate(tmp_path: Path) -> None:
    config = {**TINY_CONFIG, "swiglu_limit": 7.0}
    folder = write_hf_folder(tmp_path, config, random_weights(TINY_CONFIG))
    with pytest.raises(UnsupportedError, match="swiglu_limit=7.0"):
        sources_of(folder)
