"""HOST. What fills which leaf: settled and checked before any weight is read.

Every leaf is filled by exactly one tensor, or by the tensors of one quantized matrix, and every
tensor fills exactly one leaf, or several by parts; a tensor that nothing takes is an error. Reads
no weights, except to compare a tied head with its embedding; quantized matrices look at zero points
and group numbers.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxinfer.checkpoint.expert_stack import StackedMatrices, find_stack
from jaxinfer.checkpoint.leaf_rows import take_rows
from jaxinfer.checkpoint.leaf_source import FloatMatrix, LeafSource, PlainTensor, check_plain
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat
from jaxinfer.checkpoint.tensor_file import CheckpointKind, TensorInfo, TensorSource
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.models.spec import Leaf

ROPE_DIVISORS = "rope_freqs.weight"
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_HF_HEAD = "lm_head.weight"
_COMPARED_BYTES = 2**23


def match_leaves(
    leaves: Sequence[Leaf],
    config: ModelConfig,
    tensors: TensorSource,
    kind: CheckpointKind,
    *,
    quant_format: QuantFormat | None = None,
) -> dict[Leaf, LeafSource | StackedMatrices]:
    """What fills every leaf: a tensor, or a quantized matrix where `quant_format` knows one.

    Raises:
        CheckpointError: tensors are missing, have another shape, or are left over.
        UnsupportedError: a weight is stored as integers.
    """
    place, infos = tensors.files[0].parent if kind == "hf" else tensors.files[0], tensors.infos
    stacks = {
        leaf: find_stack(leaf, tensors, kind, quant_format)
        for leaf in leaves
        if leaf.stack is not None
    }
    names = {leaf: getattr(leaf, kind) for leaf in leaves if leaf not in stacks}
    if kind == "hf":
        newer = {leaf: leaf.hf_newer for leaf in names if leaf.hf_newer in infos}
        names |= {leaf: name for leaf, name in newer.items() if leaf.hf not in infos}
    if kind == "hf" and config.tie_embeddings:
        names = _tied_names(names, infos)
    quantized = _quantized(names, quant_format)
    plain = {leaf: name for leaf, name in names.items() if leaf not in quantized}
    _refuse_missing(plain, infos, str(place))
    for leaf, name in plain.items():
        check_plain(infos[name], leaf.stored_shape)
    made_of_more = [*quantized.values(), *stacks.values()]
    taken = set(plain.values()).union(*(source.tensors for source in made_of_more))
    if quant_format is not None:
        taken |= quant_format.extra_tensors()
        taken |= _zero_biases(tensors, made_of_more)
    _refuse_leftovers(set(infos) - taken, names, config, tensors, str(place))
    whole = {leaf: PlainTensor(info=infos[name], source=tensors) for leaf, name in plain.items()}
    single = {leaf: _part(leaf, source) for leaf, source in {**whole, **quantized}.items()}
    return {leaf: stacks[leaf] if leaf in stacks else single[leaf] for leaf in leaves}


def _part(leaf: Leaf, source: LeafSource) -> LeafSource:
    """What of a tensor fills the leaf."""
    return take_rows(source, leaf.first_row, leaf.shape[0]) if leaf.stored_rows else source


def _quantized(
    names: Mapping[Leaf, str], quant_format: QuantFormat | None
) -> dict[Leaf, FloatMatrix]:
    found = {}
    for leaf, name in names.items() if quant_format is not None else ():
        if leaf.role in ("matrix", "router") and quant_format is not None:
            shape = leaf.stored_shape[0], leaf.stored_shape[1]
            matrix = quant_format.matrix(name.removesuffix(".weight"), shape)
            if matrix is not None:
                found[leaf] = matrix
    return found


def _zero_biases(
    tensors: TensorSource, matrices: Sequence[FloatMatrix | StackedMatrices]
) -> set[str]:
    """Biases that old GPTQ files hold for layers that have none: all zero, so nothing is lost."""
    single = [one for made in matrices for one in getattr(made, "experts", (made,))]
    names = {f"{one.name}.bias" for one in single} & set(tensors.infos)
    return {name for name in names if not tensors.stored(name).any()}


def _tied_names(names: Mapping[Leaf, str], infos: Mapping[str, TensorInfo]) -> dict[Leaf, str]:
    """A tied checkpoint may store its one table as the head instead of the embedding."""
    return {
        leaf: _HF_HEAD
        if leaf.role == "embedding" and name not in infos and _HF_HEAD in infos
        else name
        for leaf, name in names.items()
    }


def _refuse_missing(names: Mapping[Leaf, str], infos: Mapping[str, TensorInfo], place: str) -> None:
    wanted = dict.fromkeys(names.values())
    missing = [name for name in wanted if name not in infos]
    if missing:
        raise CheckpointError(
            f"{place} lacks {len(missing)} of the {len(wanted)} tensors that its config asks for: "
            f"{_some(missing)}; fetch it again, or mend the config (a missing tensor is never made "
            "up)"
        )


def _refuse_leftovers(
    left: set[str],
    names: Mapping[Leaf, str],
    config: ModelConfig,
    tensors: TensorSource,
    place: str,
) -> None:
    left = {name for name in left if not name.endswith("rotary_emb.inv_freq")}
    if any(rope.divisors for rope in config.ropes):
        left.discard(ROPE_DIVISORS)
    if any(rope.long_divisors for rope in config.ropes):
        left -= {ROPE_SHORT, ROPE_LONG}
    if config.tie_embeddings and _HF_HEAD in left:
        embedding = next(name for leaf, name in names.items() if leaf.role == "embedding")
        _refuse_other_head(tensors, embedding)
        left.discard(_HF_HEAD)
    if left:
        raise CheckpointError(
            f"{place} holds {len(left)} tensors that the model does not use: {_some(sorted(left))};"
            " none is dropped in silence: config and weights are not of the same model, or it is a "
            "variant that is not supported"
        )


def _refuse_other_head(tensors: TensorSource, embedding: str) -> None:
    """A tied model's stored head must be its embedding, byte for byte."""
    infos = tensors.infos[embedding], tensors.infos[_HF_HEAD]
    if infos[0].shape != infos[1].shape or infos[0].dtype_name != infos[1].dtype_name:
        same = False
    else:
        rows = max(1, _COMPARED_BYTES * infos[0].shape[0] // max(1, infos[0].nbytes))
        same = all(
            _equal(tensors, embedding, start, min(start + rows, infos[0].shape[0]))
            for start in range(0, infos[0].shape[0], rows)
        )
    if not same:
        raise CheckpointError(
            f"tie_word_embeddings is true, but {_HF_HEAD!r} in {infos[1].file} differs from "
            f"{embedding!r}; set tie_word_embeddings to false in config.json to use both"
        )


def _equal(tensors: TensorSource, embedding: str, start: int, stop: int) -> bool:
    first = tensors.read_rows(embedding, start, stop, np.float32)
    return np.array_equal(first, tensors.read_rows(_HF_HEAD, start, stop, np.float32))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def num_elements(leaves: Sequence[Leaf]) -> int:
    """Parameters of a model, a tied table counted once."""
    return sum(math.prod(leaf.shape) for leaf in leaves)
