"""The cost of bringing a branch back that has to leave the device.

Without a tier below it is computed again. With one it comes back from there, if it has not been
forgotten in the meantime; how often it has been is learnt from the sequences that came.
"""

from collections.abc import Callable
from typing import Final

from radix_cache.counters import Counters
from radix_cache.ghosts import MissCause

_FIRST_TOKENS: Final = 65_536
"""As if so many had come back already: at first nothing is known to be forgotten."""


class RestoreCost:
    """Between what reloading costs and what recomputing does.

    Args:
        recompute, reload: tokens of a transcript -> seconds.
        counters: of the cache; tells how many evicted tokens were restored, how many missed.
    """

    def __init__(
        self,
        recompute: Callable[[int], float],
        reload: Callable[[int], float],
        counters: Counters,
    ) -> None:
        self._recompute = recompute
        self._reload = reload
        self._counters = counters

    def seconds(self, num_tokens: int) -> float:
        """For a transcript of ``num_tokens``, never more than computing it takes."""
        again = self._recompute(num_tokens)
        reload = min(self._reload(num_tokens), again)
        lost = self._counters.miss_tokens[MissCause.EVICTED]
        kept = self._counters.restored_tokens + _FIRST_TOKENS
        return again + (reload - again) * kept / (kept + lost)
