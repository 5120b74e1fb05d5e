"""DEV. Matrices that multiply the same rows, kept as one: q, k and v; gate and up.

On a GPU one product in place of several is one launch and one stream of bytes. Stacked once, at
load; knows no engine and no file.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    PermutedWeight,
    RoundedInputWeight,
    Weight,
)

# Name of the stack: what lies in it, in order.
STACKS = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
# Along which axis the outputs of a record's arrays lie.
_OUTPUTS = {"value": 0, "bias": 0, "codes": 0, "scales": 1, "zeros": 1, "offsets": 1}


def stack_products(params: Any) -> Any:
    """The parameters (arrays or shapes) with matrices of the same rows in one record.

    What is stored differently (another type, group or dtype) stays apart, and so do experts. What
    stands in several places stays one. Arrays that went into a stack are deleted at once, so no
    more than one stack is held beside the parameters. Stacks that were made are deleted where a
    later one does not fit: the caller only knows the parameters.
    """
    uses = Counter(id(leaf) for leaf in jax.tree.leaves(params))
    joined: dict[tuple[int, ...], Any] = {}
    groups = Counter(_identity(records) for records in _stacks_of(params))

    def stacked(node: Any) -> Any:
        if isinstance(node, list | tuple):
            return type(node)(map(stacked, node))
        if not isinstance(node, dict):
            return node
        found = {name: stacked(one) for name, one in node.items()}
        for name, parts in STACKS.items():
            if records := _stackable(found, parts):
                key = _identity(records)
                if key not in joined:
                    joined[key] = _joined(records)
                    _delete(
                        [leaf for leaf in jax.tree.leaves(records) if uses[id(leaf)] == groups[key]]
                    )
                found = {part: one for part, one in found.items() if part not in parts}
                found[name] = joined[key]
        return found

    try:
        return stacked(params)
    except BaseException:
        _delete(jax.tree.leaves(joined))
        raise


def _stacks_of(node: Any) -> Iterator[list[Any]]:
    """The records of every stack that can be made, as often as it stands there."""
    if isinstance(node, dict):
        for parts in STACKS.values():
            if records := _stackable(node, parts):
                yield records
    if isinstance(node, dict | list | tuple):
        for one in node.values() if isinstance(node, dict) else node:
            yield from _stacks_of(one)


def _stackable(weights: Mapping[str, Any], parts: tuple[str, ...]) -> list[Any]:
    """The records that become one; none where they are not there or not alike."""
    records = [weights.get(part) for part in parts]
    if not all(isinstance(one, Weight | BiasedWeight) for one in records):
        return []
    if len({jax.tree.structure(one) for one in records}) > 1:
        return []
    matrices = [_multiplied(one) for one in records]
    if isinstance(matrices[0], PermutedWeight):  # each has an order of its own
        return []
    if isinstance(matrices[0], BlockScaledWeight) and _has_part_blocks(matrices):
        return []
    signatures = {_signature(one) for one in records}
    return records if len(signatures) == 1 and None not in signatures else []


def _multiplied(record: Any) -> Any:
    """The matrix of a record, whatever is done to its inputs."""
    matrix = record.value
    return matrix.matrix if isinstance(matrix, RoundedInputWeight) else matrix


def _has_part_blocks(matrices: list[Any]) -> bool:
    return any(one.codes.shape[0] % one.out_group for one in matrices)


def _signature(record: Any) -> tuple[Any, ...] | None:
    """Dtypes of the arrays, and all of their lengths but the one that may differ; None for a stack
    of experts."""
    arrays = _arrays(record)
    if any(leaf.ndim > 2 for _, leaf in arrays):
        return None
    return tuple(
        (str(leaf.dtype), leaf.shape[:axis], leaf.shape[axis + 1 :]) for axis, leaf in arrays
    )


def _arrays(record: Any) -> list[tuple[int, Any]]:
    """The arrays of a record, each with the axis of its outputs."""
    leaves = jax.tree_util.tree_leaves_with_path(record)
    return [(_OUTPUTS[path[-1].name], leaf) for path, leaf in leaves]


def _identity(records: list[Any]) -> tuple[int, ...]:
    return tuple(id(leaf) for leaf in jax.tree.leaves(records))


def _joined(records: list[Any]) -> Any:
    rows = zip(*map(_arrays, records), strict=True)
    leaves = [_concatenated([leaf for _, leaf in row], row[0][0]) for row in rows]
    return jax.tree.unflatten(jax.tree.structure(records[0]), leaves)


def _concatenated(leaves: list[Any], axis: int) -> Any:
    if not isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jnp.concatenate(leaves, axis)
    length = sum(leaf.shape[axis] for leaf in leaves)
    shape = (*leaves[0].shape[:axis], length, *leaves[0].shape[axis + 1 :])
    return jax.ShapeDtypeStruct(shape, leaves[0].dtype)


def _delete(leaves: list[Any]) -> None:
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            leaf.delete()
