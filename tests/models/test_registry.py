"""Which architectures there are, and that a missing one is refused by name."""

import pytest

from jaxinfer.errors import UnsupportedError
from jaxinfer.models.registry import (
    ARCHITECTURES,
    architecture_for_gguf,
    architecture_for_hf,
    architecture_named,
)


def test_every_architecture_is_found_by_all_its_names() -> None:
    for architecture in ARCHITECTURES:
        assert architecture_named(architecture.name) is architecture
        for name in architecture.hf_model_types:
            assert architecture_for_hf(name) is architecture
        for name in architecture.gguf_names:
            assert architecture_for_gguf(name) is architecture


def test_no_two_architectures_share_a_name() -> None:
    for table in ("hf_model_types", "gguf_names"):
        names = [name for one in ARCHITECTURES for name in getattr(one, table)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("find", [architecture_for_hf, architecture_for_gguf])
def test_an_unknown_architecture_is_refused_with_the_known_ones(find) -> None:
    with pytest.raises(UnsupportedError, match="'mamba'.*known: .*llama.*gemma3"):
        find("mamba")
