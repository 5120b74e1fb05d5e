"""HOST. What makers learn of the inputs of a linear layer from a calibration text.

Sums over tokens, of fixed size however long the text is. Knows no model.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatistics:
    """gram: [in, in] f64, inputs times inputs summed over tokens. total: [in] f64, magnitudes
    summed. largest: [in] f64, the largest magnitude. num_tokens: how many there were."""

    gram: np.ndarray
    total: np.ndarray
    largest: np.ndarray
    num_tokens: int

    @property
    def mean(self) -> np.ndarray:
        """[in] – mean magnitude."""
        return self.total / self.num_tokens

    def joined(self, other: Self) -> Self:
        """The statistics of both texts together."""
        return type(self)(
            gram=self.gram + other.gram,
            total=self.total + other.total,
            largest=np.maximum(self.largest, other.largest),
            num_tokens=self.num_tokens + other.num_tokens,
        )

    def divided(self, scales: np.ndarray) -> Self:
        """What the statistics of inputs divided by `scales` [in] would be."""
        wide = scales.astype(np.float64)
        return type(self)(
            gram=self.gram / np.multiply.outer(wide, wide),
            total=self.total / wide,
            largest=self.largest / wide,
            num_tokens=self.num_tokens,
        )
