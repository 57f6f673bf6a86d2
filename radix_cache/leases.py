"""Leases: how long a branch's blocks stay protected while its tools run.

A lease is a time, not a lock. It follows from what it would cost to bring the branch back,
or from the client's own hint, and a cap bounds both (the robust form of InferCept's
preserve-or-discard rule, arXiv:2402.01869, and of Continuum's time to live,
arXiv:2511.02230). Who may break one is decided in ``radix_cache.retention``.
"""

import heapq
from collections.abc import Callable
from typing import Final

from radix_cache.handle import BranchHandle
from radix_cache.nodes import LEASED

_DUE_SHARE: Final = 0.8
_ANSWER_SHARE: Final = 0.3
"""Lease after an answer in shares of that after a tool call: people take longer than tools, and
many never come back."""
_ANSWER_CAP_SHARE: Final = 0.5


class Leases:
    """Running leases, by when they end.

    Args:
        cap_s: no lease is longer, seconds.
        kappa: seconds of lease per second of restore cost.
        restore_cost: tokens of a transcript -> seconds to bring its KV back. None: unknown,
            and a lease needs a hint.
        track_returns: whether ``take_due`` is asked.
    """

    def __init__(
        self,
        *,
        cap_s: float,
        kappa: float,
        restore_cost: Callable[[int], float] | None,
        track_returns: bool = False,
    ) -> None:
        self._cap_s = cap_s
        self._kappa = kappa
        self._restore_cost = restore_cost
        self._track_returns = track_returns
        self._ends: list[tuple[float, int, BranchHandle]] = []
        self._due: list[tuple[float, int, BranchHandle, float]] = []
        self._order = 0

    def restore_s(self, num_tokens: int) -> float:
        """Seconds to bring the KV of ``num_tokens`` back; 0 where that is unknown."""
        return self._restore_cost(num_tokens) if self._restore_cost is not None else 0.0

    def length_s(self, num_tokens: int, wanted_s: float | None, *, answered: bool = False) -> float:
        """Seconds to hold a transcript of ``num_tokens``; ``wanted_s`` replaces the estimate,
        which is shorter when the sequence has ``answered`` and a person is to come back."""
        if wanted_s is not None:
            return min(self._cap_s, wanted_s)
        estimate_s = self._kappa * self.restore_s(num_tokens)
        if answered:
            return min(_ANSWER_CAP_SHARE * self._cap_s, _ANSWER_SHARE * estimate_s)
        return min(self._cap_s, estimate_s)

    def watch(self, handle: BranchHandle, now: float) -> None:
        """From now on ``take_ended`` and ``live`` know of this lease, and ``take_due`` of the
        return that it expects."""
        self._order += 1
        until = handle.leased_until
        heapq.heappush(self._ends, (until, self._order, handle))
        if self._track_returns:
            due = now + _DUE_SHARE * (until - now)
            heapq.heappush(self._due, (due, self._order, handle, until))
            handle.expected_s = until

    def take_due(self, now: float) -> BranchHandle | None:
        """A branch that is expected back soon, whether its lease was broken or not; None if
        there is none. It is not returned again."""
        while self._due and self._due[0][0] <= now:
            _, _, handle, until = heapq.heappop(self._due)
            if handle.sequence is None and handle.expected_s == until:
                return handle
        return None

    @property
    def expects_returns(self) -> bool:
        """Whether ``take_due`` may return a branch later."""
        return bool(self._due)

    @property
    def empty(self) -> bool:
        return not self._ends

    @property
    def next_end_s(self) -> float:
        """No lease ends before this time; infinite if there is none."""
        return self._ends[0][0] if self._ends else float("inf")

    def take_ended(self, now: float) -> BranchHandle | None:
        """A branch whose lease ended by ``now``, or None; the caller ends that lease."""
        while self._ends and self._ends[0][0] <= now:
            entry = heapq.heappop(self._ends)
            if _is_live(entry):
                return entry[2]
        return None

    def live(self) -> list[BranchHandle]:
        """Leased branches, in no order, some perhaps twice."""
        return [entry[2] for entry in self._ends if _is_live(entry)]


def _is_live(entry: tuple[float, int, BranchHandle]) -> bool:
    """A branch that came back, or got another lease, leaves an entry behind."""
    until, _, handle = entry
    return handle.klass == LEASED and handle.leased_until == until
