"""Host memory below a simulated device: the way between them, in virtual time.

What comes back arrives in order, each block when all before it have; what leaves goes the
other way meanwhile and delays nobody, as on a link that is full duplex.
"""

from collections.abc import Callable

import numpy as np

from radix_cache.block_pool import BlockArray
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove


class HostLink:
    """A mover whose copies to the device take ``block_s`` seconds a block."""

    def __init__(
        self, num_device_blocks: int, *, block_s: float, clock: Callable[[], float]
    ) -> None:
        self._arrives_s = np.zeros(num_device_blocks)
        self._block_s = block_s
        self._clock = clock
        self.free_s = 0.0
        """When the last copy that was ordered has arrived."""

    def move(self, move: BlockMove) -> None:
        """Take an order between the device and host memory."""
        if move.target != Tier.DEVICE:
            return
        start = max(self.free_s, self._clock())
        self.free_s = start + len(move.target_blocks) * self._block_s
        self._arrives_s[move.target_blocks] = self.free_s

    def arrived(self, blocks: BlockArray) -> bool:
        """Whether all these device blocks are where they should be by now."""
        now = self._clock()
        return self.free_s <= now or not (self._arrives_s[blocks] > now).any()

    def reload_s(self, num_blocks: int) -> float:
        """Seconds that so many blocks take to come back."""
        return num_blocks * self._block_s
