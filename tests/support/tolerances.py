"""How far numbers may be from an oracle's, in one table. Never loosened to make a test pass.

Batching independence has no entry here: there the tolerance is zero bits.
"""

# Largest absolute difference by the dtype that the engine runs in.
LOGITS = {"float32": 1e-4}
LOGPROBS = {"float32": 1e-3}
# Where the best two logits are closer than this, either token is right and a comparison ends.
MIN_MARGIN = 1e-3
# A kernel's output against float64, as norm(difference) / norm(exact). Rounding the output to
# bfloat16 alone gives 1.7e-3; rounding a second operand (softmax weights) about as much again.
KERNELS = {"float32": 2e-6, "bfloat16": 3e-3}
