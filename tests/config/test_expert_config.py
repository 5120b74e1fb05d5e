"""The record of experts: what makes no sense is refused with the name and the value."""

from typing import Any

import pytest

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.geometry import weights_bytes
from jaxinfer.errors import CheckpointError
from tests.support.records import model_config

FIELDS: dict[str, Any] = {
    "num_experts": 8,
    "num_chosen": 2,
    "mlp_size": 32,
    "renormalizes": True,
    "is_sparse": (True, False),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 0}, "num_experts=0"),
        ({"num_experts": 10**9}, "num_experts=1000000000 is over 4096"),
        ({"num_chosen": 0}, "num_chosen=0"),
        ({"mlp_size": -1}, "mlp_size=-1"),
        ({"num_chosen": 9}, "num_experts_per_tok=9 is more than the 8"),
        ({"is_sparse": (False, False)}, "without a layer that has them"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ExpertConfig(**{**FIELDS, **changes})


def test_one_entry_a_layer() -> None:
    with pytest.raises(CheckpointError, match="is_sparse has 2 entries for 3 layers"):
        model_config(windows=(0, 0, 0), experts=ExpertConfig(**FIELDS))


def test_weights_bytes_count_all_experts_and_the_dense_layers() -> None:
    plain = weights_bytes(model_config(mlp_size=96), "bfloat16")
    sparse = weights_bytes(model_config(mlp_size=96, experts=ExpertConfig(**FIELDS)), "bfloat16")
    assert sparse - plain == 2 * 3 * 64 * (8 * 32 - 96)
