"""DEV. How many drafted tokens stand, and what that means for the law of the output.

The token of every position is drawn as without drafts, with the random numbers of that position; a
draft stands if it equals what was drawn there and all drafts before it stand. So the output is not
only drawn from the same law, it is the same output, and a draft stands with the probability that
the model gives it. For drafts that are certain (looked up, or the best token of another model) that
is exactly the acceptance of the rejection rule (Leviathan et al. 2023, Chen et al. 2023): there the
draft x is accepted with probability min(1, p(x) / 1), and the residual law is p without x.
"""

import jax
import jax.numpy as jnp


def count_accepted(drawn: jax.Array, drafts: jax.Array, num_drafts: jax.Array) -> jax.Array:
    """How many drafts stand in each row.

    Args:
        drawn: [W, J + 1] i32 – the token drawn after the last one and after each draft.
        drafts: [W, J] i32.
        num_drafts: [W] i32 – how many of them are drafts; the others are padding.

    Returns:
        [W] i32.
    """
    places = jnp.arange(drafts.shape[1], dtype=jnp.int32)[None, :]
    stands = (drawn[:, :-1] == drafts) & (places < num_drafts[:, None])
    return jnp.sum(jnp.cumprod(stands.astype(jnp.int32), axis=1), axis=1)
