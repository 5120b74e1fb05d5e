"""How many drafts stand: the leading ones that equal what was drawn."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling.accept import count_accepted

ROWS, MOST = 3, 4
TOKENS = st.lists(st.integers(0, 2), min_size=MOST, max_size=MOST)


@settings(deadline=None, derandomize=True, database=None)
@given(
    drawn=st.lists(TOKENS, min_size=ROWS, max_size=ROWS),
    drafts=st.lists(TOKENS, min_size=ROWS, max_size=ROWS),
    counts=st.lists(st.integers(0, MOST), min_size=ROWS, max_size=ROWS),
)
def test_the_leading_equal_ones(
    drawn: list[list[int]], drafts: list[list[int]], counts: list[int]
) -> None:
    expected = []
    for row in range(ROWS):
        place = 0
        while place < counts[row] and drawn[row][place] == drafts[row][place]:
            place += 1
        expected.append(place)
    bonus = np.zeros((ROWS, 1), np.int32)
    found = count_accepted(
        jnp.asarray(np.hstack([np.array(drawn, np.int32), bonus])),
        jnp.asarray(np.array(drafts, np.int32)),
        jnp.asarray(np.array(counts, np.int32)),
    )
    assert found.tolist() == expected
