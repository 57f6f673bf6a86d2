"""The standing of this server in its cluster: what it says with its heartbeat, and what it hears.

Before it drains it says so and goes on listening until the balancer has heard it, for a while. It
is not ready before somebody could reach it at the address that it gave. Only the event loop touches
it, but for ``beating``.

Always true: what is said is what is so when the heart beats.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sessions.journal.errors import AddressTaken, ClusterRefused, JournalError, JournalUnavailable
from sessions.journal.journal import Owner
from sessions.journal.members import Heard, MemberLoad, MemberState, Presence
from sessions.journal.ownership import DEAD_MS, HEARTBEAT_S
from sessions.quotas import Quotas

log = logging.getLogger(__name__)

TAKEN_S = 1.5 * DEAD_MS / 1000
"""Seconds that an address may still be that of a server which died a moment ago."""
REACH_S = 1.0
"""Between two tries to reach this server from outside, and for one of them."""
LOOK_S = 0.05
PAY_S = 0.1
Answer = TypeVar("Answer")


class Standing:
    """One server's standing in its cluster: presence, heartbeats, how it leaves."""

    def __init__(
        self, presence: Presence, *, notice_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            presence: the state in it does not matter.
            notice_s: how long the balancer is given to hear that the server is about to drain.
        """
        self._said = replace(presence, state=MemberState.STARTING)
        self._notice_s = notice_s
        self._clock = clock
        self._engine_ready: Callable[[], bool] = lambda: False
        self._load: Callable[[], MemberLoad] = MemberLoad
        self._reached = False
        self._leaving = False
        self._joined = False
        self._told = False
        self._ownership: Owner | None = None
        self._early: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Tasks that run beside serving."""
        self.quotas: Quotas | None = None
        """The quotas, which are told how many servers the cluster has."""

    @property
    def presence(self) -> Presence:
        """The server's presence as the next heartbeat says it, with the figures of the last one."""
        state = MemberState.STARTING
        if self._leaving:
            state = MemberState.DRAINING
        elif self._reached and self._engine_ready():
            state = MemberState.READY
        return replace(self._said, state=state)

    @property
    def due(self) -> bool:
        """The heart is to beat at once: the state is another one, or an answer is waited for."""
        return self.presence.state is not self._said.state or (self._leaving and not self._told)

    # Before the server serves

    async def join(self, ownership: Owner) -> None:
        """Become a member, and let the heart beat until ``serves``.

        Raises:
            ClusterRefused, AddressTaken: the server must not start.
        """
        self._ownership, until = ownership, self._clock() + TAKEN_S
        while not self._joined:
            try:
                await in_thread(partial(ownership.join, self._said))
                self._joined = True
            except AddressTaken:
                if self._clock() >= until:
                    raise
                await asyncio.sleep(HEARTBEAT_S)
            except JournalUnavailable as error:
                log.warning("the cluster is joined when its database is there reason=%s", error)
                break
        self._early = asyncio.get_running_loop().create_task(self._beat_early(ownership))

    async def _beat_early(self, ownership: Owner) -> None:
        while True:
            with contextlib.suppress(JournalError):
                await in_thread(self.beating(ownership))
            await asyncio.sleep(HEARTBEAT_S)

    def serves(self, *, engine_ready: Callable[[], bool], load: Callable[[], MemberLoad]) -> None:
        """The server takes clients from now on, and beats by itself."""
        self._engine_ready, self._load = engine_ready, load
        if self._early is not None:
            self._early.cancel()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._reach()))
        if self._ownership is not None and self.quotas is not None:
            self._tasks.append(loop.create_task(self._pay(self._ownership, self.quotas)))

    async def _reach(self) -> None:
        told = False
        while not self._reached:
            self._reached = await answers(self._said.address)
            if not self._reached:
                if not told:
                    log.error("nobody is reached at --advertise %s: not ready", self._said.address)
                told = True
                await asyncio.sleep(REACH_S)

    # While it serves

    def beating(self, ownership: Owner) -> Callable[[], Heard]:
        """One beat of the heart, to be made in a thread, and its answer for ``heard``."""
        now = replace(self.presence, load=self._load())
        changed = now.state is not self._said.state
        self._said = now

        def beat() -> Heard:
            if not self._joined:
                try:
                    ownership.join(now)
                except ClusterRefused as error:
                    log.error("this server is no member of its cluster reason=%s", error)
                    return ownership.beat()
                self._joined = True
            return ownership.beat(now, changed=changed)

        return beat

    def heard(self, heard: Heard) -> None:
        """The heartbeat was written."""
        self._told = heard.told
        if self.quotas is not None:
            self.quotas.servers.count = max(heard.num_ready, 1)

    async def _pay(self, ownership: Owner, quotas: Quotas) -> None:
        """Pay what turns overdrew of limits that the cluster shares, until cancelled."""
        while True:
            for quota, debt in quotas.debts():
                try:
                    drawn = await in_thread(partial(ownership.draw, quota.tenant, [debt]))
                except JournalError as error:
                    log.debug("limits cannot be paid reason=%s", error)
                    quota.unpaid([debt])
                else:
                    quota.drawn(drawn)
            await asyncio.sleep(PAY_S)

    # The end

    async def leave(self, look: Callable[[], None]) -> None:
        """Say that the server is about to drain; returns when the balancer has heard it, or had
        the time to.

        Args:
            look: has the heart beat at once.
        """
        self._leaving, self._told = True, False
        until = self._clock() + self._notice_s
        while not self._told and self._clock() < until:
            look()
            await asyncio.sleep(min(LOOK_S, max(until - self._clock(), 0.0)))
        log.info("leaving the cluster told=%s", self._told)

    async def close(self) -> None:
        """Stop whatever it does beside; then no thread asks the journal for it any more."""
        tasks = [task for task in (*self._tasks, self._early) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(work: Callable[[], Answer]) -> Answer:
    """Do it in a thread; who is cancelled meanwhile goes on when that has come to its end."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def answers(address: str) -> bool:
    """Whether a server of ours answers at ``HOST:PORT``, as a balancer asks it."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(REACH_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(
                    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                )
                await writer.drain()
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False
