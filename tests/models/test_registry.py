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
            found = architecture_for_gguf(name, has_experts=architecture.has_experts)
            assert found is architecture


def test_no_two_architectures_share_a_name() -> None:
    """A GGUF file of Mixtral says `llama`, and has experts."""
    names = [name for one in ARCHITECTURES for name in one.hf_model_types]
    assert len(names) == len(set(names))
    files = [(name, one.has_experts) for one in ARCHITECTURES for name in one.gguf_names]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("find", [architecture_for_hf, architecture_for_gguf])
def test_an_unknown_architecture_is_refused_with_the_known_ones(find) -> None:
    with pytest.raises(UnsupportedError, match="'mamba'.*known: .*llama.*gemma3"):
        find("mamba")
