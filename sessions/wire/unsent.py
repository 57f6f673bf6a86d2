"""Bytes that clients have not taken yet of what was written to them, and how many there may be.

One for all sockets of a server. Each socket has a bound of its own; many of one tenant could hold
that many times over, so that the tenant has one as well, and all together. Who has not read for
longest goes first, of those that have much: one that was just given a large answer reads perhaps.
What a socket has below ``BEHIND_BYTES`` does not count. Knows nothing of what was written.

Always true: a socket counts with what it was last seen to have, until it is forgotten; nobody is
cut off before all that count have been looked at again.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from tools_api.limits import MIB, Limits

log = logging.getLogger(__name__)

BEHIND_BYTES = 64 * 1024
"""A transport says that it is full from there on, and says so when it is not any more."""
MUCH_BYTES = MIB


class SlowReader(Protocol):
    """A socket whose client may not read."""

    @property
    def unsent_bytes(self) -> int:
        """The written bytes that the client has not taken yet."""
        ...

    def cut(self) -> None:
        """Drop the client's connection."""
        ...


class UnsentBytes:
    """The untaken bytes of all sockets of a server; only the event loop touches it."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_unsent_per_tenant
        self._most_of_all = limits.max_unsent_of_all
        self._seen: dict[str, dict[SlowReader, int]] = {}
        """Readers that are behind, by tenant; who has been for longest is first."""
        self._of_tenant: dict[str, int] = {}
        self.total = 0
        self._due = False

    def note(self, tenant: str, reader: SlowReader) -> None:
        """Something was written to a socket of ``tenant``."""
        num_bytes = reader.unsent_bytes
        if num_bytes < BEHIND_BYTES:
            return
        self._see(tenant, reader, num_bytes)
        if self._is_over(tenant) and not self._due:
            self._due = True
            # By itself: who writes need not expect that a socket is gone behind it.
            asyncio.get_running_loop().call_soon(self._thin_out)

    def forget(self, reader: SlowReader) -> None:
        """A socket's client has taken nearly all, or is gone. Unknown ones are ignored."""
        for tenant, seen in self._seen.items():
            if reader in seen:
                self._drop(tenant, reader)
                return

    def _is_over(self, tenant: str) -> bool:
        return self._of_tenant.get(tenant, 0) > self._most or self.total > self._most_of_all

    def _see(self, tenant: str, reader: SlowReader, num_bytes: int) -> None:
        seen = self._seen.setdefault(tenant, {})
        more = num_bytes - seen.get(reader, 0)
        seen[reader] = num_bytes
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + more
        self.total += more

    def _drop(self, tenant: str, reader: SlowReader) -> None:
        self._see(tenant, reader, 0)
        del self._seen[tenant][reader]
        if not self._seen[tenant]:
            del self._seen[tenant], self._of_tenant[tenant]

    def _thin_out(self) -> None:
        self._due = False
        for tenant, seen in list(self._seen.items()):
            self._look_again(tenant, list(seen))
        for tenant in list(self._seen):
            while self._of_tenant.get(tenant, 0) > self._most:
                self._cut_slowest(tenant, self._most)
        while self.total > self._most_of_all:
            most = max(self._of_tenant, key=lambda name: self._of_tenant[name])
            self._cut_slowest(most, self._most_of_all)

    def _look_again(self, tenant: str, readers: Iterable[SlowReader]) -> None:
        for reader in readers:
            num_bytes = reader.unsent_bytes
            if num_bytes < BEHIND_BYTES:
                self._drop(tenant, reader)
            else:
                self._see(tenant, reader, num_bytes)

    def _cut_slowest(self, tenant: str, most: int) -> None:
        seen = self._seen[tenant]
        much = (reader for reader in seen if seen[reader] >= MUCH_BYTES)
        slowest = next(much, None) or max(seen, key=lambda reader: seen[reader])
        log.warning(
            "clients do not read, cutting one off tenant=%r unsent_mib=%.1f allowed_mib=%g",
            tenant,
            (self.total if most == self._most_of_all else self._of_tenant[tenant]) / MIB,
            most / MIB,
        )
        self._drop(tenant, slowest)
        slowest.cut()
