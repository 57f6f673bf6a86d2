"""The resources under a server, and which of them fail: the one place that is asked.

Parts say why they do not hold whenever they are looked at; this one says since when, and whether
turns may begin. A part that comes and goes has to hold for a while before it counts again. Knows
no journal and no engine. Only the event loop touches it.

Always true: a reason is logged when it begins and when it ends, and never between.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

ENGINE, JOURNAL, DESCRIPTORS = "engine", "journal", "descriptors"
READER, DRAINING = "reader", "draining"
PARTS = (ENGINE, JOURNAL, DESCRIPTORS, READER, DRAINING)
HEALTH_S = 1.0
"""Seconds that a part must hold before it counts again."""
PATIENCE_S = 1.0
"""How long a turn waits that may not begin."""
RETRY_AFTER_S = 2.0
"""When somebody who was refused may come again: a fault that ends is over by then."""
LOOK_S = 0.25
_STEADY = frozenset({ENGINE, DRAINING, READER})
"""Parts that hold as soon as they say so."""
_TOLD = frozenset({ENGINE, DRAINING})
"""Their ends and beginnings are logged by who brings them about."""


@dataclass(slots=True)
class _Fault:
    reason: str
    since_s: float
    held_since_s: float | None = None
    """The part says that it holds, since then."""
    turns: int = 0
    """That it refused or failed."""


class Ground:
    """The ground under one server: which of the parts it stands on are in trouble."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.writable = True
        """Whether what turns leave can be kept: they may begin."""
        self.left_out: frozenset[str] = frozenset()
        """Parts that do not count for whether the server is ready."""
        self._clock = clock
        self._parts: dict[str, Callable[[], str | None]] = {}
        self._faults: dict[str, _Fault] = {}
        self._changed = asyncio.Event()

    def stands_on(self, part: str, trouble: Callable[[], str | None]) -> None:
        """Ask ``trouble`` from now on why a part does not hold; None: it does."""
        self._parts[part] = trouble

    @property
    def ready(self) -> bool:
        """Whether new turns are welcome."""
        return not self._faults.keys() - self.left_out

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why not, by part; also of parts that do not count."""
        return {part: fault.reason for part, fault in self._faults.items()}

    def look(self) -> None:
        """Ask every part whether it is in trouble."""
        now = self._clock()
        for part, trouble in self._parts.items():
            reason, fault = trouble(), self._faults.get(part)
            if reason is not None:
                self._fails(part, reason, fault, now)
            elif fault is not None:
                if fault.held_since_s is None:
                    fault.held_since_s = now
                if part in _STEADY or now - fault.held_since_s >= HEALTH_S:
                    self._holds(part, now)

    def _fails(self, part: str, reason: str, fault: _Fault | None, now: float) -> None:
        if fault is not None:
            fault.held_since_s = None
            return
        self._faults[part] = _Fault(reason, now)
        if part not in _TOLD:
            log.error("not ready part=%s reason=%s", part, reason)
        self._note_change()

    def _holds(self, part: str, now: float) -> None:
        fault = self._faults.pop(part)
        if part not in _TOLD:
            lasted_s = now - fault.since_s
            log.warning("holds again part=%s after_s=%.1f turns=%d", part, lasted_s, fault.turns)
        self._note_change()

    def _note_change(self) -> None:
        self.writable = JOURNAL not in self._faults
        self._changed.set()
        self._changed = asyncio.Event()

    def turn_lost(self) -> None:
        """The journal's fault refused a turn, or failed one."""
        fault = self._faults.get(JOURNAL)
        if fault is not None:
            fault.turns += 1

    async def wait_writable(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait until turns may begin; False: they still may not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.writable:
                    await self._changed.wait()
        return self.writable

    async def keep_looking(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                self.look()
            except Exception:
                log.exception("what the server stands on cannot be told")
            await asyncio.sleep(LOOK_S)
