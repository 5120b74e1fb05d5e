"""DEV. The weight records that `linear` runs. Another storage form is another record.

Behind `ModelConfig` a leaf of these records may be an array, a shape or a `models.spec.Leaf`: the
structure is the same for all three.
"""

import jax
from flax import struct


@struct.dataclass
class Weight:
    """A plain matrix."""

    value: jax.Array  # [out, in]


@struct.dataclass
class BiasedWeight:
    """A plain matrix with a bias."""

    value: jax.Array  # [out, in]
    bias: jax.Array  # [out] f32


LinearWeight = Weight | BiasedWeight
