"""HOST. The sampling parameters of every slot as arrays, ready to be staged.

Written when a request gets its slot, not at every step.
"""

import numpy as np

from jaxinfer.config.step_plan import SamplingPlan, empty_sampling
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.seating import needs_seat

_INT32_MAX = np.iinfo(np.int32).max
_TINY, _HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class SlotSampling:
    """One row of every sampling array a slot, and row B, which stays empty."""

    def __init__(self, num_slots: int) -> None:
        self._arrays = empty_sampling(num_slots + 1)

    def set(self, slot: int, request: Request) -> None:
        """Fills a slot's row from its request."""
        params, arrays = request.params, self._arrays
        arrays.temperature[slot] = _float32_temperature(params.temperature)
        arrays.top_k[slot] = min(max(params.top_k, 0), _INT32_MAX)
        # The smallest float32 stands in for what would round to zero: "only the best".
        arrays.top_p[slot] = max(params.top_p, _TINY)
        arrays.min_p[slot] = params.min_p
        arrays.seeds[slot] = (request.seed & 0xFFFFFFFF, request.seed >> 32)
        arrays.sample_index[slot] = request.sample_index
        arrays.num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        arrays.presence_penalty[slot] = params.presence_penalty
        arrays.frequency_penalty[slot] = params.frequency_penalty
        # Neither zero, which would divide, nor infinite, which would make zero times it NaN.
        arrays.repetition_penalty[slot] = min(max(params.repetition_penalty, _TINY), _HUGE)
        arrays.first_end[slot] = min(len(request.prompt_ids) + params.min_tokens, _INT32_MAX)
        arrays.seated[slot] = needs_seat(params)

    def rows(self, slots: np.ndarray) -> SamplingPlan:
        """A copy of the rows of `slots` [rows] i32, in their order; B gives an empty row."""
        return SamplingPlan(
            **{name: getattr(self._arrays, name)[slots] for name in SamplingPlan.__slots__}
        )


def _float32_temperature(temperature: float) -> float:
    """Keeps a tiny temperature above zero in float32, where denormals count as zero."""
    return max(temperature, _TINY) if temperature > 0 else 0.0
