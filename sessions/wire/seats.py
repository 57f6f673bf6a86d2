"""Which open sockets have a seat: bounded for the server, for each tenant and for each address.

A socket whose first request head is still unread has none: such ones are bounded by themselves,
with those that have said nothing at all (``acceptor``), which go before them; the oldest goes
first, so that thousands of silent ones keep nobody out. One that has sent what
nobody has had the time to read yet is not silent. Those that were asked something are seated, and
stay so until they end. Knows nothing of what a socket is.

Always true: a socket is unread or seated, not both, from ``greet`` to ``forget``; a seat counts for
the tenant that asked last.
"""

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Generic, TypeVar

from tools_api.limits import Limits

Socket = TypeVar("Socket")


class Seats(Generic[Socket]):
    """The sockets of one server that may stay open."""

    def __init__(
        self,
        limits: Limits,
        make_room: Callable[[], bool],
        most_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """
        Args:
            make_room: ends a seated socket that nobody needs, if there is one.
            most_of: what a tenant may have instead of ``max_connections_per_tenant``.
        """
        self._limits = limits
        self._most_of = most_of
        self._make_room = make_room
        self._unread: dict[Socket, None] = {}
        self._seated: dict[Socket, tuple[str, str]] = {}
        """Seated sockets, with their addresses and tenants; a tenant is "" where none was named."""
        self._of_address: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()

    def greet(self, newcomer: Socket) -> None:
        """A socket has opened, and has asked for nothing yet."""
        self._unread[newcomer] = None

    def too_many(self, others: int) -> int:
        """How many more have asked nothing than may be, ``others`` that are not here among them."""
        return max(len(self._unread) + others - self._limits.max_unread_connections, 0)

    def thin_out(self, silent: Callable[[Socket], bool], excess: int) -> list[Socket]:
        """Sockets that have to go: of the silent ones the oldest, as many as are too many."""
        gone = list(islice(filter(silent, self._unread), max(0, excess)))
        for each in gone:
            del self._unread[each]
        return gone

    def seat(self, each: Socket, address: str, tenant: str) -> str | None:
        """A request has come; ``tenant`` is "" if nobody in particular asks. Returns why it can
        have no seat for that tenant; nothing is changed then."""
        if each in self._seated:
            return self._move(each, tenant)
        limits, address = self._limits, network_of(address)
        if len(self._seated) >= limits.max_open_connections and not self._make_room():
            return f"{limits.max_open_connections} connections are open"
        if reason := self._too_many_of(tenant):
            return reason
        most = limits.max_connections_per_address
        if address and self._of_address[address] >= most:
            return f"{most} connections from this address are open"
        self._unread.pop(each, None)
        self._take(each, address, tenant)
        return None

    def _move(self, each: Socket, tenant: str) -> str | None:
        """A further request of one that is seated; who asks for nobody leaves it where it is."""
        address, before = self._seated[each]
        if tenant in {"", before}:
            return None
        if reason := self._too_many_of(tenant):
            return reason
        self.forget(each)
        self._take(each, address, tenant)
        return None

    def _too_many_of(self, tenant: str) -> str | None:
        most = self._most_of(tenant) or self._limits.max_connections_per_tenant
        if tenant and self._of_tenant[tenant] >= most:
            return f"{most} connections of this tenant are open"
        return None

    def pass_on(self, old: Socket, new: Socket) -> None:
        """``new`` has taken over the transport of ``old``, and its seat with it."""
        address, tenant = self._seated[old]
        self.forget(old)
        self._take(new, address, tenant)

    def forget(self, gone: Socket) -> None:
        """A socket is closed. Unknown ones are ignored."""
        self._unread.pop(gone, None)
        if gone not in self._seated:
            return
        address, tenant = self._seated.pop(gone)
        for counts, name in ((self._of_address, address), (self._of_tenant, tenant)):
            counts[name] -= 1
            if counts[name] <= 0:
                del counts[name]

    def _take(self, each: Socket, address: str, tenant: str) -> None:
        self._seated[each] = (address, tenant)
        self._of_address[address] += 1
        self._of_tenant[tenant] += 1


def network_of(address: str) -> str:
    """The network of which one client can have many addresses: of IPv6 the first 64 bits, of IPv4
    all. "" for the machine's own, where a proxy speaks for many."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.is_loopback:
        return ""
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Address(int(parsed) >> 64 << 64)) + "/64"
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
