"""How far numbers may be from an oracle's, in one table. Never loosened to make a test pass.

Batching independence has no entry here: there the tolerance is zero bits.
"""

# Largest absolute difference by the dtype that the engine runs in.
LOGITS = {"float32": 1e-4}
LOGPROBS = {"float32": 1e-3}
# Where the best two logits are closer than this, either token is right and a comparison ends.
MIN_MARGIN = 1e-3
