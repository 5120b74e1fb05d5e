"""Drafters that need no model: they know from the fake device what comes."""

from random import Random

from jaxinfer.scheduler.drafting import DraftCounts
from jaxinfer.scheduler.request import Request
from tests.scheduler.fake_device import FakeDevice


class FixedDrafter:
    """Drafts `most` tokens whenever it may; those at the places in `wrong` are not what comes."""

    on_device = False

    def __init__(self, device: FakeDevice, *, wrong: tuple[int, ...] = ()) -> None:
        self.counts = DraftCounts()
        self._device = device
        self._wrong = wrong

    def num_tokens(self, num_running: int) -> int:
        return self._device.geometry.draft_tokens

    def is_due(self, request: Request) -> bool:
        return True

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        known = request.num_tokens
        coming = self._device.alone(request).tokens[known : known + most]
        return tuple(one + (place in self._wrong) for place, one in enumerate(coming))

    def see(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_drafted <= self._device.geometry.draft_tokens
        self.counts.see(num_drafted, num_accepted)


class KnowingDrafter(FixedDrafter):
    """Drafts what really comes, but for some tokens of it; now and then less, or nothing.

    share: of the drafts that are right.
    """

    def __init__(self, device: FakeDevice, share: float) -> None:
        super().__init__(device)
        self._share = share

    def num_tokens(self, num_running: int) -> int:
        return max(0, self._device.geometry.draft_tokens - num_running // 3)

    def is_due(self, request: Request) -> bool:
        return (request.num_tokens + request.order) % 5 != 0

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        random = Random(f"{request.order} {request.num_tokens}")
        coming = super().drafts(request, random.randint(0, most))
        return tuple(one if random.random() < self._share else one + 1 for one in coming)


class DeviceDrafter(FixedDrafter):
    """Has the device draft as many tokens as may be, for two of three requests."""

    on_device = True

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        return (0,) * most if request.order % 3 else ()
