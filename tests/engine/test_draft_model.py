"""What drafts, before it runs: what it needs, what it shares, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
import tokenizers

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.load import abstract_params, load_params
from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.speculative_config import speculative_config
from jaxinfer.engine.draft_model import (
    DraftModel,
    by_leaf,
    check_vocabularies,
    draft_model,
    open_draft,
)
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.layers.weights import QuantWeight
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END, byte_backend, byte_tokenizer
from tests.support.tiny_experts import write_mixtral
from tests.support.tiny_models import write_tiny

BOTH_LAYERS = {"method": "int8", "float_ends": 0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=END))


def opened(checkpoint: Checkpoint, weights: str = "auto", **speculative: Any) -> DraftModel:
    ask = engine_config(weights=weights, speculative_config=speculative)
    made = open_draft(ask, checkpoint, None, "cpu", show_progress=False)
    assert made is not None
    return made


def loaded(made: DraftModel, checkpoint: Checkpoint) -> tuple[dict, Any]:
    """The model's parameters by leaf, and those of what drafts."""
    params = load_params(checkpoint, weight_dtype="float32", show_progress=False)
    leaves = by_leaf(checkpoint.architecture, checkpoint.config, params)
    return params, made.load(leaves, "float32", show_progress=False)


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}])
def test_no_model_drafts(checkpoint: Checkpoint, speculative: Any) -> None:
    ask = engine_config(speculative_config=speculative)
    assert open_draft(ask, checkpoint, None, "cpu", show_progress=False) is None


def test_the_first_layers_are_the_model_s_arrays(checkpoint: Checkpoint) -> None:
    made = opened(checkpoint, method="self", num_layers=1)
    assert made.config.num_layers == len(made.config.windows) == 1
    assert made.needs.num_floats == made.needs.packed_bytes == 0 and made.needs.model is None
    params, drafting = loaded(made, checkpoint)
    assert len(drafting["layers"]) == 1
    wanted = {**params, "layers": params["layers"][:1]}
    pairs = zip(jax.tree.leaves(wanted), jax.tree.leaves(drafting), strict=True)
    assert all(one is other for one, other in pairs)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_mixtral(tmp_path_factory.mktemp("mixture"), eos_token_id=END))


def test_experts_are_rounded_too(mixture: Checkpoint) -> None:
    made = opened(mixture, "packed", method="self", quantization=BOTH_LAYERS)
    experts = [leaf for leaf in made.storage.sources if leaf.stack and leaf.role == "matrix"]
    assert experts and made.own is not None and made.own.issuperset(experts)


def test_the_first_layers_of_a_mixture(mixture: Checkpoint) -> None:
    made = opened(mixture, method="self", num_layers=1).config
    assert made.experts is not None and made.experts.is_sparse == (True,)
    params, drafting = loaded(opened(mixture, method="self", num_layers=1), mixture)
    pairs = zip(
        jax.tree.leaves(params["layers"][0]), jax.tree.leaves(drafting["layers"][0]), strict=True
    )
    assert all(one is other for one, other in pairs)


def test_first_layers_without_experts_are_those_of_a_dense_model(mixture: Checkpoint) -> None:
    experts = mixture.config.experts
    assert experts is not None
    mixed = replace(mixture.config, experts=replace(experts, is_sparse=(False, True)))
    wanted = speculative_config({"method": "self", "num_layers": 1})
    storage = opened(mixture, method="self", num_layers=1).storage
    assert draft_model(wanted, mixed, mixture.architecture, storage).config.experts is None


@pytest.mark.parametrize("weights", ["packed", "dequantized"])
def test_only_rounded_matrices_are_its_own(checkpoint: Checkpoint, weights: str) -> None:
    made = opened(checkpoint, weights, method="self", quantization=BOTH_LAYERS)
    params, drafting = loaded(made, checkpoint)
    assert drafting["embedding"] is params["embedding"]
    assert drafting["head"].value is params["head"].value
    for mine, its in zip(params["layers"], drafting["layers"], strict=True):
        assert its["mlp_norm"] is mine["mlp_norm"]
        assert isinstance(its["q"].value, QuantWeight) == (weights == "packed")
        assert its["q"].value is not mine["q"].value
    elements = sum(
        leaf.size for layer in params["layers"] for leaf in jax.tree.leaves(layer) if leaf.ndim == 2
    )
    needs = made.needs
    assert (needs.num_floats, needs.packed_bytes > elements) == (
        (0, True) if weights == "packed" else (elements, False)
    )


def test_shapes_are_those_of_what_is_loaded(checkpoint: Checkpoint) -> None:
    for speculative in (
        {"method": "self", "quantization": BOTH_LAYERS, "num_layers": 1},
        {"method": "draft_model", "model": str(checkpoint.path)},
    ):
        made = opened(checkpoint, "packed", **speculative)
        config, architecture = checkpoint.config, checkpoint.architecture
        shapes = abstract_params(config, architecture, "float32")
        abstract = made.abstract(by_leaf(architecture, config, shapes), "float32")
        _, drafting = loaded(made, checkpoint)
        found, wanted = (
            jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
            for tree in (drafting, abstract)
        )
        assert jax.tree.structure(drafting) == jax.tree.structure(abstract)
        assert found == wanted


def test_another_checkpoint_has_pages_of_its_own(checkpoint: Checkpoint) -> None:
    made = opened(checkpoint, method="draft_model", model=str(checkpoint.path))
    assert made.needs.model == made.config == checkpoint.config
    params, drafting = loaded(made, checkpoint)
    assert drafting["embedding"] is not params["embedding"]


def test_more_layers_than_there_are_are_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="num_layers=3: the model has 2 layers"):
        opened(checkpoint, method="self", num_layers=3)
    with pytest.raises(CheckpointError):
        opened(checkpoint, method="draft_model", model="/nowhere/at/all")


def with_config(checkpoint: Checkpoint, tmp_path: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_tiny(tmp_path, **{"eos_token_id": END, **changes}))


def changed(edit: Any) -> Tokenizer:
    """BYTE with another vocabulary."""
    backend = tokenizers.Tokenizer.from_str(edit(byte_backend().to_str()))
    return Tokenizer(backend, eos_token_ids=(END,))


def test_vocabularies_that_differ_name_the_first_id(checkpoint: Checkpoint) -> None:
    """BB-44, sglang#23838: same size, two strings swapped; a token that one of them lacks."""
    same = byte_tokenizer()
    check_vocabularies(checkpoint, same, checkpoint, byte_tokenizer())

    def swapped(text: str) -> str:
        return text.replace('"Q":81', '"Q":82').replace('"R":82', '"R":81')

    with pytest.raises(ConfigError, match="id 81 is 'R' there and 'Q' in the model"):
        check_vocabularies(checkpoint, same, checkpoint, changed(swapped))
    more = byte_backend()
    more.add_tokens(["<extra>"])
    with pytest.raises(ConfigError, match="id 258 is '<extra>' there and ''"):
        check_vocabularies(checkpoint, same, checkpoint, Tokenizer(more, eos_token_ids=(END,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"eos_token_id": 258}, r"EOS ids \[256, 258\]"), ({"bos_token_id": 7}, "BOS id 7")],
)
def test_special_tokens_that_differ_are_refused(
    checkpoint: Checkpoint, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    """BB-44: another EOS id; BOS likewise."""
    other = with_config(checkpoint, tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        check_vocabularies(checkpoint, byte_tokenizer(), other, byte_tokenizer())


def test_without_tokenizers_only_the_size_can_be_compared(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """BB-44, vllm#13849: padding may differ where the texts can be compared."""
    wider = with_config(checkpoint, tmp_path, vocab_size=328)
    check_vocabularies(checkpoint, byte_tokenizer(), wider, byte_tokenizer())
    check_vocabularies(checkpoint, None, checkpoint, byte_tokenizer())
    with pytest.raises(ConfigError, match="has 328 tokens, the model 320"):
        check_vocabularies(checkpoint, None, wider, byte_tokenizer())
