"""How many file descriptors this process has for sockets, and whether there are any left.

Bounds on sockets follow from what the system allows: so many are kept that another engine can be
started, the journal opened and a health check answered, however many clients come.

Without one no client is accepted, no child is started and nothing is read from disk, and the
event loop says nothing of it by itself. So it is tried, once a second; the ground says the rest.
"""

import contextlib
import errno
import logging
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools_api.limits import Limits

log = logging.getLogger(__name__)

_MANY = 1 << 20
OWN = 64
"""Files that a server has open beside its connections."""
KEPT = 32
"""Descriptors kept for the engine's next process, the journal and health checks."""


def raise_limit() -> int:
    """Have as many descriptors as this process may have; returns how many that are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names more than it gives
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return allowed()


def allowed() -> int:
    """How many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else soft


def most_sockets() -> int:
    """How many sockets there may be now."""
    return max(allowed() - OWN - KEPT, 2)


def within(limits: Limits, descriptors: int) -> Limits:
    """The bounds on sockets that so many descriptors allow, each at least one."""
    sockets = descriptors - OWN - KEPT
    wanted = limits.max_open_connections + limits.max_unread_connections
    if sockets >= wanted:
        return limits
    share = max(sockets, 2) / wanted
    log.warning(
        "fewer sockets than could be served, for want of descriptors sockets=%d descriptors=%d",
        *(max(sockets, 2), descriptors),
    )
    return replace(
        limits,
        max_open_connections=max(int(limits.max_open_connections * share), 1),
        max_unread_connections=max(int(limits.max_unread_connections * share), 1),
        max_connections_per_tenant=max(int(limits.max_connections_per_tenant * share), 1),
        max_connections_per_address=max(int(limits.max_connections_per_address * share), 1),
    )


class DescriptorWatch:
    """Knows whether there are descriptors left, as of the last look."""

    def __init__(self, take: Callable[[], int] = lambda: os.dup(2)) -> None:
        """``take`` opens a descriptor that means nothing."""
        self._take = take
        self._none_left = False
        self._least = min(allowed(), OWN + KEPT + 2)
        """The fewest descriptors that the server began with."""

    @property
    def trouble(self) -> str | None:
        """Why descriptors are short: there is none left, or the kept ones are gone; None: they were
        there when looked for."""
        if not self._none_left and allowed() >= self._least:
            return None
        return "file descriptors have run out, nobody is accepted; raise the limit (ulimit -n)"

    def tick(self) -> None:
        """Look whether there is a descriptor left."""
        try:
            os.close(self._take())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._none_left = True
        else:
            self._none_left = False


class SpareDescriptor:
    """A descriptor that is kept for when there is no other: given up for a moment, somebody can be
    told so. Another thread may take it in that moment; then there is none until one is free.

    It has the lowest number that could be had: given up, one above a limit that was lowered
    meanwhile lets nobody in.
    """

    def __init__(self) -> None:
        self._kept: int | None = None
        self.restore()

    @contextlib.contextmanager
    def lent(self) -> Iterator[bool]:
        """Whether there is one to be used meanwhile."""
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)
        try:
            yield kept is not None
        finally:
            self.restore()

    def restore(self) -> None:
        """Keep one, if there is one to be had, or a lower one than is kept."""
        with contextlib.suppress(OSError):
            found = os.open(os.devnull, os.O_RDONLY)
            self._kept, other = (
                (found, self._kept)
                if self._kept is None or found < self._kept
                else (self._kept, found)
            )
            if other is not None:
                os.close(other)

    def close(self) -> None:
        """Keep none any more."""
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None
