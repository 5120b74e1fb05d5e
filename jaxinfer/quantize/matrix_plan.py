"""JOINT. Which matrices of a model are rounded, and how: names, groups, and what stays float.

Matrices have the names of Hugging Face files, whatever the source is. Reads no weights.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import ConfigError, UnsupportedError
from jaxinfer.layers.weights import BiasedWeight, Weight
from jaxinfer.models.spec import Architecture, Leaf
from jaxinfer.models.transformer import forward
from jaxinfer.quantize.grid import Scheme
from jaxinfer.quantize.layer import MATRICES, STAGES
from jaxinfer.quantize.recipe import Recipe

AUTO_GROUPS = (128, 64, 32, 16)
_ALWAYS_FLOAT = ("lm_head", "model.embed_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPlan:
    """schemes: of each layer, by the matrix's name in it; what stays float is not there.
    floats: module names of the layers' matrices that stay float, in order."""

    schemes: tuple[Mapping[str, Scheme], ...]
    floats: tuple[str, ...]

    @property
    def num_matrices(self) -> int:
        """That are rounded."""
        return sum(map(len, self.schemes))


def module_of(leaf: Leaf) -> str:
    """Example: "model.layers.3.mlp.down_proj"."""
    return leaf.hf.removesuffix(".weight")


def plan_matrices(
    config: ModelConfig, architecture: Architecture, recipe: Recipe, scale_dtype: np.dtype
) -> MatrixPlan:
    """The plan for a model.

    Raises:
        UnsupportedError: a family that is not quantized. ConfigError: `protect` names nothing, or
            leaves nothing; a group size that does not divide a width.
    """
    if architecture.forward is not forward or config.experts is not None:
        reason = "has experts" if config.experts is not None else "has layers of another make"
        raise UnsupportedError(
            f"architecture {architecture.name!r} {reason}, which the makers do not quantize; it "
            "can be rounded at load: quantization='int4'"
        )
    layers = architecture.leaves(config)["layers"]
    named = [{name: _leaf(layer, name) for name in MATRICES} for layer in layers]
    protected = _protected(named, recipe.protect)
    rounded = [
        {name: leaf for name, leaf in layer.items() if leaf not in protected} for layer in named
    ]
    if not any(rounded):
        raise ConfigError(
            f"protect={list(recipe.protect)} keeps every matrix of the model float; name fewer"
        )
    leaves = [leaf for layer in rounded for leaf in layer.values()]
    _check_groups(leaves, recipe)
    return MatrixPlan(
        schemes=tuple(
            {name: _scheme(leaf, recipe, scale_dtype) for name, leaf in layer.items()}
            for layer in rounded
        ),
        floats=tuple(dict.fromkeys(module_of(leaf) for leaf in protected)),
    )


def _leaf(layer: Mapping[str, Any], name: str) -> Leaf:
    part = layer[name]
    assert isinstance(part, Weight | BiasedWeight)
    leaf: Any = part.value
    return leaf


def _protected(named: Sequence[Mapping[str, Leaf]], protect: Sequence[str]) -> dict[Leaf, None]:
    """The matrices that stay float, in order.

    Those that read the same input stay float together: engines that run them as one matrix need
    one form for all.
    """
    modules = [module_of(leaf) for layer in named for leaf in layer.values()]
    for target in protect:
        _check_target(target, modules)
    return {
        layer[name]: None
        for layer in named
        for stage in STAGES
        for name in stage.readers
        if any(_is_meant(target, module_of(layer[x])) for target in protect for x in stage.readers)
    }


def _is_meant(target: str, module: str) -> bool:
    """Whether a name (of a module or one above it) or a pattern means the module."""
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return module == target or module.startswith(f"{target}.")


def _check_target(target: str, modules: Iterable[str]) -> None:
    try:
        if target in _ALWAYS_FLOAT or any(_is_meant(target, module) for module in modules):
            return
    except re.error as error:
        raise ConfigError(f"protect={target!r} is not a pattern: {error}; mend it") from error
    near = difflib.get_close_matches(target, list(modules), n=1, cutoff=0.0)
    raise ConfigError(
        f"protect={target!r} names no matrix of the model; give a name, one above it, or a pattern "
        f"'re:…' (nearest: {near[0]!r})"
    )


def _check_groups(leaves: Sequence[Leaf], recipe: Recipe) -> None:
    size = recipe.group_size
    if size == "auto" or size == -1:
        return
    bad = {leaf.shape[1]: module_of(leaf) for leaf in leaves if leaf.shape[1] % size}
    if bad:
        shown = ", ".join(f"{width} ({name})" for width, name in sorted(bad.items()))
        raise ConfigError(
            f"group_size={size} does not divide the widths {shown}; take a divisor of them, "
            f"group_size='auto' (each matrix the first of {', '.join(map(str, AUTO_GROUPS))} that "
            "divides its width), -1 (a whole row), or protect those matrices"
        )


def _scheme(leaf: Leaf, recipe: Recipe, scale_dtype: np.dtype) -> Scheme:
    width, size = leaf.shape[1], recipe.group_size
    if size == "auto":
        size = next((group for group in AUTO_GROUPS if width % group == 0), -1)
    return Scheme(
        bits=recipe.bits,
        group=width if size == -1 else size,
        symmetric=recipe.symmetric,
        scale_dtype=scale_dtype,
    )


def layer_trees(config: ModelConfig, architecture: Architecture) -> tuple[Mapping[str, Any], ...]:
    """The leaves of each layer."""
    return tuple(architecture.leaves(config)["layers"])


def outer_leaves(config: ModelConfig, architecture: Architecture) -> list[Leaf]:
    """The leaves that belong to no layer."""
    tree = architecture.leaves(config)
    return jax.tree.leaves({name: part for name, part in tree.items() if name != "layers"})
