"""JOINT. How the parameters of an engine are kept: what fills each leaf, and what stays packed.

Puts together what the checkpoint stores, what was asked (`quantization`, `weights`) and where it
runs; reads no weights. `load` does as it says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxinfer.checkpoint.checkpoint import Checkpoint, find_sources
from jaxinfer.checkpoint.expert_stack import StackedMatrices
from jaxinfer.checkpoint.leaf_source import FloatMatrix, LeafSource, PackedForm
from jaxinfer.checkpoint.load import packed_forms
from jaxinfer.checkpoint.round_to_nearest import RoundedMatrix
from jaxinfer.config.geometry import PackedShare
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.quantization import Quantization, choose_weight_form
from jaxinfer.errors import ConfigError
from jaxinfer.models.spec import Architecture, Leaf

Source = LeafSource | StackedMatrices


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """sources: what fills each leaf. packed: the leaves that stay packed, and how. form: "packed"
    or "dequantized", of all that could be either; reason: why.
    round_inputs: inputs of packed layers are rounded where the checkpoint says how."""

    sources: Mapping[Leaf, Source]
    packed: Mapping[Leaf, PackedForm]
    form: str
    reason: str
    round_inputs: bool = False

    @property
    def share(self) -> PackedShare:
        """Elements of the matrices that stay packed, and their bytes."""
        forms = self.packed.values()
        return PackedShare(
            num_elements=sum(form.num_elements for form in forms),
            num_bytes=sum(form.num_bytes for form in forms),
        )


def decide_storage(
    checkpoint: Checkpoint,
    *,
    weights: str,
    quantization: Quantization | None,
    platform: str,
    activations: str = "float",
) -> Storage:
    """How an engine on `platform` keeps the checkpoint's parameters.

    Args:
        weights: "auto", "packed" or "dequantized".
        activations: "float", or "checkpoint" to round inputs where the checkpoint says how.
        quantization: rounds matrices at load, those of GGUF blocks too.

    Raises:
        CheckpointError, UnsupportedError: as `find_sources`.
        ConfigError: rounding a checkpoint that somebody has quantized with care, or rounding inputs
            of layers that are not packed, or of a checkpoint that says nothing of them.
    """
    if quantization is not None and checkpoint.kind != "gguf" and checkpoint.quant_format:
        raise ConfigError(
            f"quantization={quantization.method!r} rounds float models, {checkpoint.path} is "
            f"quantized already ({checkpoint.quantization}); leave quantization out"
        )
    storage = _storage(
        find_sources(checkpoint),
        weights=weights,
        quantization=quantization,
        platform=platform,
        activations=activations,
        num_layers=checkpoint.config.num_layers,
    )
    if activations == "checkpoint" and not any(kept.inputs for kept in storage.packed.values()):
        raise ConfigError(
            f"activations='checkpoint' rounds inputs of packed layers: weights are {storage.form} "
            f"here, and {checkpoint.path} is {checkpoint.quantization}; set weights='packed' with "
            "a checkpoint made for that, or leave activations out"
        )
    return storage


def storage_without_weights(
    config: ModelConfig,
    architecture: Architecture,
    *,
    weights: str,
    quantization: Quantization | None,
    platform: str,
) -> Storage:
    """How an engine would keep a float checkpoint of that config; its sources cannot be read.

    Args:
        weights, quantization, platform: as for `decide_storage`.
    """
    leaves = jax.tree.leaves(architecture.leaves(config))
    return _storage(
        {leaf: _absent(leaf) for leaf in leaves},
        weights=weights,
        quantization=quantization,
        platform=platform,
        activations="float",
        num_layers=config.num_layers,
    )


def _absent(leaf: Leaf) -> Source:
    """What would fill a leaf, had the checkpoint weights."""
    if leaf.stack is None:
        return _AbsentTensor(leaf.hf, leaf.shape)
    names = [leaf.stack.hf_each.format(expert=expert) for expert in range(leaf.shape[0])]
    return StackedMatrices([_AbsentTensor(name, leaf.shape[1:]) for name in names])


class _AbsentTensor(FloatMatrix):
    """One tensor of it."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.file, self.shape = name, Path(), shape
        self.num_bytes, self.tensors = 0, frozenset({name})

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        raise AssertionError(f"{self.name} was planned without weights")


def _storage(
    sources: Mapping[Leaf, Source],
    *,
    weights: str,
    quantization: Quantization | None,
    platform: str,
    activations: str,
    num_layers: int,
) -> Storage:
    if quantization is not None:
        sources = {
            leaf: _rounded(leaf, source, quantization, num_layers)
            for leaf, source in sources.items()
        }
    forms = packed_forms(sources)
    form, reason = choose_weight_form(weights, platform, len(forms))
    if weights == "auto" and activations == "checkpoint" and forms:
        form, reason = "packed", "activations='checkpoint' rounds inputs of packed layers"
    return Storage(
        sources=sources,
        packed=forms if form == "packed" else {},
        form=form,
        reason=reason,
        round_inputs=activations == "checkpoint",
    )


def is_rounded(source: Source) -> bool:
    """True for what `quantization=` rounds as it is read; all experts of a stack are kept alike."""
    one = source.experts[0] if isinstance(source, StackedMatrices) else source
    return isinstance(one, RoundedMatrix)


def _rounded(leaf: Leaf, source: Source, quantization: Quantization, num_layers: int) -> Source:
    if leaf.role != "matrix":
        return source
    layer = leaf.hf.removesuffix(".weight")
    if isinstance(source, StackedMatrices):
        names = [layer.format(expert=expert) for expert in range(len(source.experts))]
        methods = {quantization.method_of(name, num_layers) for name in names}
        if len(methods) > 1:
            raise ConfigError(
                f"quantization overrides keep the experts {layer} as {', '.join(sorted(methods))}: "
                "all experts of a layer are kept alike; write a pattern that all of them match"
            )
        method = methods.pop()
        return StackedMatrices(
            [_rounded_matrix(one, method, quantization) for one in source.experts]
        )
    return _rounded_matrix(source, quantization.method_of(layer, num_layers), quantization)


def _rounded_matrix(source: LeafSource, method: str, quantization: Quantization) -> LeafSource:
    if method == "float":
        return source
    group = quantization.group_of(method, source.shape[1])
    return RoundedMatrix(source, method, group)  # type: ignore[arg-type]  # checked there
