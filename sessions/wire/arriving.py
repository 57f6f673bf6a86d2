"""Bytes of messages that are still arriving: when they are parsed, and how many there may be.

One for all sockets of a server; with it goes what clients have not taken (``unsent``). Of a
tenant's connections a few are served in a turn of the event loop, or one that has much to say; who
has asked nothing yet goes by its address. Bytes count from their arrival until the message that
they belong to has been read, for the connection, the tenant and the server.
"""

from sessions.durable.weights import Bounds, HeldBytes, MemoryHold
from sessions.wire.fair_reading import TenantTurns
from sessions.wire.unsent import UnsentBytes
from tools_api.limits import Limits

TURN_S = 0.001
"""Time for one client in one turn of the event loop, its last slice or frame apart: what others'
tokens wait for at most, while one tenant floods."""
TENANT_S = 0.001
"""Time of a tenant's clients in one turn of the event loop, after which the next one waits."""


class Arriving:
    """The bounds on what arrives. Shared by all sockets; only the event loop touches it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turns = TenantTurns(budget_s=TENANT_S)
        bounds = Bounds(
            connection=limits.max_arriving_per_connection,
            tenant=limits.max_arriving_per_tenant,
            server=limits.max_arriving_bytes,
        )
        self.account = HeldBytes(bounds, "unread messages")
        self.unsent = UnsentBytes(limits)

    @property
    def num_bytes(self) -> int:
        """Bytes that are arriving, and that clients have not taken."""
        return self.account.total + self.unsent.total

    def hold(self, tenant: str, connection: object) -> MemoryHold:
        """The hold of a connection's messages, nothing yet."""
        return self.account.hold(tenant, str(id(connection)), 0)
