"""JOINT. The model that drafts: another checkpoint, or the engine's own made cheaper.

Opens it, refuses one of another vocabulary, and says what it needs before anything is placed on the
device. Whatever array it has in common with the model is shared. Knows no steps and no control.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.leaf_match import num_elements
from jaxinfer.checkpoint.load import abstract_params, load_params
from jaxinfer.checkpoint.storage import Storage, decide_storage, is_rounded
from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import DraftNeeds
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.speculative_config import SpeculativeConfig
from jaxinfer.engine.checkpoint_text import end_ids, tokenizer_of
from jaxinfer.errors import ConfigError
from jaxinfer.models.spec import Architecture, Leaf
from jaxinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """What drafts, not loaded yet.

    config: its shape; of a model that drafts with its first layers, with so many. storage: how its
    own parameters are kept. own: the leaves that are not the engine's model's; None for all of
    them, and pages of its own. checkpoint: to load it from; None where it is only planned.
    """

    config: ModelConfig
    architecture: Architecture
    storage: Storage
    own: frozenset[Leaf] | None
    checkpoint: Checkpoint | None = None

    @property
    def needs(self) -> DraftNeeds:
        """What it takes beside the model."""
        leaves = jax.tree.leaves(self._leaves())
        own = [leaf for leaf in leaves if self.own is None or leaf in self.own]
        packed = [self.storage.packed[leaf] for leaf in own if leaf in self.storage.packed]
        floats = [leaf for leaf in own if leaf not in self.storage.packed]
        return DraftNeeds(
            num_floats=num_elements(floats),
            packed_bytes=sum(form.num_bytes for form in packed),
            model=self.config if self.own is None else None,
        )

    def abstract(self, model: Mapping[Leaf, Any], weight_dtype: str) -> Any:
        """Its parameters' shapes; `model`: those of the engine's model, from `by_leaf`."""
        shapes = abstract_params(self.config, self.architecture, weight_dtype, self.storage.packed)
        given = self._given(model)
        return jax.tree.map(lambda leaf, shape: given.get(leaf, shape), self._leaves(), shapes)

    def load(self, model: Mapping[Leaf, Any], weight_dtype: str, *, show_progress: bool) -> Any:
        """Its parameters; `model`: the arrays of the engine's model."""
        assert self.checkpoint is not None, "what is only planned is not loaded"
        return load_params(
            replace(self.checkpoint, config=self.config),
            weight_dtype=weight_dtype,
            keep_packed=self.storage.form == "packed",
            sources=self.storage.sources,
            given=self._given(model),
            show_progress=show_progress,
        )

    def _leaves(self) -> Any:
        return self.architecture.leaves(self.config)

    def _given(self, model: Mapping[Leaf, Any]) -> dict[Leaf, Any]:
        own = model if self.own is None else self.own
        return {leaf: value for leaf, value in model.items() if leaf not in own}


def by_leaf(architecture: Architecture, config: ModelConfig, params: Any) -> dict[Leaf, Any]:
    """The parameters of a model by its leaves: an array or a packed record each."""
    leaves, structure = jax.tree.flatten(architecture.leaves(config))
    return dict(zip(leaves, structure.flatten_up_to(params), strict=True))


def open_draft(
    ask: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer | None,
    platform: str,
    *,
    show_progress: bool,
) -> DraftModel | None:
    """What drafts for the model of `checkpoint`; None where no model does.

    Raises:
        ConfigError: another vocabulary, or more layers than there are. Others: as `open_checkpoint`
            and `decide_storage`.
    """
    wanted = ask.speculative_config
    if wanted is None or not wanted.has_model:
        return None
    other = checkpoint
    if wanted.model is not None:
        other = open_checkpoint(wanted.model, show_progress=show_progress)
        check_vocabularies(checkpoint, tokenizer, other, tokenizer_of(other))
    storage = decide_storage(
        other, weights=ask.weights, quantization=wanted.quantization, platform=platform
    )
    made = draft_model(wanted, other.config, other.architecture, storage)
    return replace(made, checkpoint=other)


def draft_model(
    wanted: SpeculativeConfig, config: ModelConfig, architecture: Architecture, storage: Storage
) -> DraftModel:
    """What drafts, of a model with that config: another one, or the engine's own made cheaper.

    Raises:
        ConfigError: more layers than there are.
    """
    own = None
    if wanted.method == "self":
        config = _first_layers(config, wanted.num_layers)
        filled = storage.sources.items() if wanted.quantization else ()
        own = frozenset(leaf for leaf, source in filled if is_rounded(source))
    return DraftModel(config=config, architecture=architecture, storage=storage, own=own)


def _first_layers(config: ModelConfig, count: int | None) -> ModelConfig:
    if count is None:
        return config
    if count > config.num_layers:
        raise ConfigError(
            f"speculative_config num_layers={count}: the model has {config.num_layers} layers; "
            "choose fewer"
        )
    experts = config.experts
    if experts is not None:
        sparse = experts.is_sparse[:count]
        experts = replace(experts, is_sparse=sparse) if any(sparse) else None
    return replace(
        config,
        num_layers=count,
        windows=config.windows[:count],
        layer_ropes=config.layer_ropes[:count],
        experts=experts,
    )


def check_vocabularies(
    model: Checkpoint,
    model_tokenizer: Tokenizer | None,
    draft: Checkpoint,
    draft_tokenizer: Tokenizer | None,
) -> None:
    """Refuses a draft model whose ids mean something else.

    Rows of the two tables may differ in number where they are padding: ids without text.

    Raises:
        ConfigError: it names the first id that differs, or the special token.
    """
    name = f"speculative_config model={str(draft.path)!r}"
    if model_tokenizer is None or draft_tokenizer is None:
        sizes = model.config.vocab_size, draft.config.vocab_size
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"{name} has {sizes[1]} tokens, the model {sizes[0]}, and there are not two "
                "tokenizers to compare; use a draft model with the model's vocabulary"
            )
    elif (differing := _first_difference(model_tokenizer, draft_tokenizer)) is not None:
        texts = [one.token_text(differing) for one in (model_tokenizer, draft_tokenizer)]
        raise ConfigError(
            f"{name} has another vocabulary: id {differing} is {texts[1]!r} there and {texts[0]!r} "
            "in the model; use a draft model with the same tokenizer"
        )
    ends = sorted(end_ids(model, model_tokenizer)), sorted(end_ids(draft, draft_tokenizer))
    starts = model.config.bos_token_id, draft.config.bos_token_id
    for what, ours, theirs in (("EOS ids", *ends), ("BOS id", *starts)):
        if ours != theirs and None not in (ours, theirs):
            raise ConfigError(
                f"{name} has {what} {theirs}, the model {ours}; use a draft model with the same "
                "special tokens, or mend its config.json"
            )


def _first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The lowest id that has another text in the other tokenizer, or none there."""
    ours, theirs = (
        {token: text for text, token in each.backend.get_vocab(with_added_tokens=True).items()}
        for each in (one, other)
    )
    every = ours.keys() | theirs.keys()
    return min((token for token in every if ours.get(token) != theirs.get(token)), default=None)
