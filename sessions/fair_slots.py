"""A few places for work beside the event loop, shared by tenants in turn.

Who comes with a hundred connections waits behind its own work, not before that of others:
a free place goes to the waiting tenant that has fewest, of those to the one that has waited
longest since it last let one go. A tenant whose work has taken long leaves the last place to
others, until a piece of its work is short again. Knows neither threads nor what the work is.

Always true: nobody waits while a place is free, but for tenants whose work takes long.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """``count`` places. For one event loop."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} places")
        self._count = count
        self._free = count
        self._slow: set[str] = set()
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting callers by tenant; the tenant that has waited longest since it last let one go is
        first."""

    @property
    def held(self) -> list[object]:
        """Tenants that have places or wait for one, and how many places are taken."""
        taken = self._count - self._free
        return [*self._used, *self.waiting, *([taken] if taken else [])]

    @property
    def waiting(self) -> frozenset[str]:
        """Tenants that wait for a place."""
        return frozenset(tenant for tenant, turns in self._waiting.items() if turns)

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it inside the block."""
        if self._free and self._may_have(tenant):
            self._free -= 1
            self._used[tenant] += 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._release(tenant)

    def judge(self, tenant: str, *, took_long: bool) -> None:
        """Note whether a piece of the tenant's work took so long that others should not have to
        wait for all places at once."""
        if took_long:
            self._slow.add(tenant)
        else:
            self._slow.discard(tenant)

    def _may_have(self, tenant: str) -> bool:
        most = self._count - (tenant in self._slow)
        return self._used[tenant] < max(1, most)

    async def _wait(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had the place already
                self._release(tenant)
            raise

    def _release(self, tenant: str) -> None:
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        self._free += 1
        if tenant in self._waiting:
            self._waiting[tenant] = self._waiting.pop(tenant)
        while self._free and self._give_one():
            pass

    def _give_one(self) -> bool:
        for other in sorted(self._waiting, key=self._used.__getitem__):
            if not self._may_have(other):
                continue
            turns = self._waiting.pop(other)
            turn = _first_live(turns)
            if turns:
                self._waiting[other] = turns
            if turn is not None:
                self._free -= 1
                self._used[other] += 1
                turn.set_result(None)
                return True
        return False


def _first_live(turns: "deque[asyncio.Future[None]]") -> asyncio.Future[None] | None:
    """Take the first that nobody has given up."""
    while turns:
        turn = turns.popleft()
        if not turn.done():
            return turn
    return None
