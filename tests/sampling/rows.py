"""Sampling rows from keyword arguments, through the arrays that the scheduler keeps."""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from jaxinfer.sampling.logits import SamplingRows
from jaxinfer.scheduler.sampling_rows import SlotSampling
from tests.support.records import request


def sampling_rows(*rows: dict[str, Any]) -> SamplingRows:
    """A row a mapping: SamplingParams by name, `seed` and `sample_index`."""
    slots = SlotSampling(len(rows))
    for slot, row in enumerate(rows):
        slots.set(slot, request(**row))
    return SamplingRows(**asdict(slots.rows(np.arange(len(rows)))))


def repeated(rows: SamplingRows, count: int) -> SamplingRows:
    """`count` copies of every row."""
    return jax.tree.map(lambda array: np.repeat(array, count, axis=0), rows)
