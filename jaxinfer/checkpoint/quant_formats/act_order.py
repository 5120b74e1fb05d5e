"""HOST. The order of columns that act-order left behind: a group number a column (`g_idx`).

Knows no file format.
"""

import numpy as np

from jaxinfer.errors import CheckpointError, UnsupportedError


def column_order(groups: np.ndarray, group: int, name: str) -> np.ndarray | None:
    """The order that puts the columns of each group side by side; None where they lie so already.

    Example: group 2, groups [1 0 1 0] → order [1 3 0 2]: stored column 0 is input 1.

    Args:
        groups: [in], the group of each input. group: columns of a group. name: of the tensor.

    Raises:
        CheckpointError: a group that does not exist. UnsupportedError: groups of other sizes.
    """
    sorted_groups = np.arange(len(groups)) // group
    if np.array_equal(groups, sorted_groups):
        return None
    if groups.min() < 0 or groups.max() > sorted_groups[-1]:
        raise CheckpointError(
            f"tensor {name!r} names groups {groups.min()} to {groups.max()}, there are "
            f"{sorted_groups[-1] + 1}; the file is damaged, or a group size is wrong"
        )
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], sorted_groups):
        raise UnsupportedError(
            f"tensor {name!r} has groups of other sizes than {group} columns, which is not read"
        )
    return order
