"""Whose frame is read next: one of a tenant in a turn of the event loop, large ones elsewhere.

A small frame is handled in the loop, and a tenant with a hundred connections has one in each of
the loop's turns like everybody else. A large one is read in a process of its own; tenants take
turns there, and one that has used more of its CPU time than ``Limits`` allow waits until that is
paid back. Knows neither what a frame says nor how the process is spoken to.

Always true: a call that was taken is made once, or never if it was withdrawn.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sessions.fair_slots import FairSlots
from sessions.wire.http_dialects import Body, ReadBody
from sessions.wire.read_process import ReadResult

Call = Callable[[], None]


class TenantTurns:
    """One call of each tenant in one turn of the event loop, or as many as take ``budget_s``
    together, the last one apart."""

    def __init__(
        self, *, budget_s: float = 0.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._had: dict[str, float] = {}
        """Seconds of those that had a call in this turn of the loop."""
        self._waiting: dict[str, deque[Call]] = {}
        self._due = False

    def run(self, tenant: str, call: Call) -> None:
        """Make the call: now, or in the tenant's next turn if it has had this one. A call that is
        not wanted any more does nothing when it is made."""
        self._schedule()
        if tenant in self._waiting or not self._may_go_on(tenant):
            self._waiting.setdefault(tenant, deque()).append(call)
        else:
            self._make(tenant, call)

    def _may_go_on(self, tenant: str) -> bool:
        had_s = self._had.get(tenant)
        return had_s is None or had_s < self._budget_s

    def _make(self, tenant: str, call: Call) -> None:
        begun, had_s = self._clock(), self._had.get(tenant, 0.0)
        self._had[tenant] = math.inf  # what the call itself leads to waits
        try:
            call()
        finally:
            self._had[tenant] = had_s + self._clock() - begun

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        self._had.clear()
        if self._waiting:
            self._schedule()
        for tenant in self._waiting:
            # Each by itself, so that the loop's other work comes between them.
            asyncio.get_running_loop().call_soon(self._serve, tenant)

    def _serve(self, tenant: str) -> None:
        calls = self._waiting.get(tenant, deque())
        while calls and self._may_go_on(tenant):
            self._make(tenant, calls.popleft())
        if not calls:
            self._waiting.pop(tenant, None)


class CpuAllowance:
    """The share of a core that each tenant may take: a bucket of seconds that fills again."""

    def __init__(self, *, share: float, burst_s: float, clock: Callable[[], float]) -> None:
        """
        Args:
            share: seconds of CPU time that a second gives back.
            burst_s: what a full bucket holds.
        """
        self._share = share
        self._burst_s = burst_s
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}
        """The time that is not paid back yet, and when that was worked out."""

    def spend(self, tenant: str, cpu_s: float) -> None:
        """The tenant has used so much."""
        self._spent[tenant] = (self._owed(tenant) + cpu_s, self._clock())

    def wait_s(self, tenant: str) -> float:
        """Seconds until the tenant may go on; 0: now."""
        return max(self._owed(tenant) - self._burst_s, 0.0) / self._share

    def _owed(self, tenant: str) -> float:
        owed, at = self._spent.get(tenant, (0.0, 0.0))
        left = owed - self._share * (self._clock() - at)
        if left <= 0:
            self._spent.pop(tenant, None)
        return max(left, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How large frames and bodies are read."""

    read: Callable[[bytes | Body], Awaitable[ReadResult]]
    slots: FairSlots
    allowance: CpuAllowance
    turns: TenantTurns
    max_inline_bytes: int
    """The size from which on frames are read beside the event loop."""
    clock: Callable[[], float]
    """A clock in seconds; how long an attempt took that gave no outcome."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def beside(self, tenant: str, job: bytes | Body) -> ReadBody:
        """Have it read beside the event loop, when it is the tenant's turn. A caller that gives
        up withdraws it until it has begun; after that it is paid for all the same.

        Raises:
            ReaderLost, NoText: as of ``ReadProcess.read``.
        """
        begun = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._in_turn(tenant, job, begun))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if begun.is_set():
                task.add_done_callback(_forget)
            else:
                task.cancel()
            raise

    async def _in_turn(self, tenant: str, job: bytes | Body, begun: asyncio.Event) -> ReadBody:
        while True:
            if wait_s := self.allowance.wait_s(tenant):
                await self.pause(wait_s)
            async with self.slots.place(tenant):
                if not self.allowance.wait_s(tenant):
                    begun.set()
                    return await self._attempt(tenant, job)

    async def _attempt(self, tenant: str, job: bytes | Body) -> ReadBody:
        """An attempt that gives no outcome costs the time for which it held the process: nobody
        tells what that took of its CPU, and it is no more."""
        since = self.clock()
        try:
            outcome = await self.read(job)
        except BaseException:
            self.allowance.spend(tenant, self.clock() - since)
            raise
        self.allowance.spend(tenant, outcome.cpu_s)
        return outcome.body


def _forget(task: asyncio.Task[ReadBody]) -> None:
    """Nobody waits for it; how it ended is told in the log where it matters."""
    if not task.cancelled():
        task.exception()
