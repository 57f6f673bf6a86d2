"""The turns that run on a server, by tenant and connection, and who may have another."""

from collections import Counter

from tools_api.limits import takes_one_more


class RunningTurns:
    """Over all connections.

    Args:
        limit: how many may be open where nobody has less than its share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._where: dict[str, tuple[str, str]] = {}
        """Tenant and connection of each, by its response id."""
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._where)

    @property
    def held(self) -> list[str]:
        """The turns that run, and the tenants they count for."""
        return [*self._where, *self._held]

    def add(self, response_id: str, tenant: str, connection_id: str) -> None:
        """A turn of that connection runs, until ``remove``."""
        self._where[response_id] = (tenant, connection_id)
        self._held[tenant] += 1

    def remove(self, response_id: str) -> None:
        tenant, _ = self._where.pop(response_id)
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]

    def has_room_for(self, tenant: str) -> bool:
        """Whether another turn of the tenant may run beside those that do."""
        return takes_one_more(
            self._limit,
            total=len(self._where),
            held=self._held[tenant],
            tenants=len(self._held) + (tenant not in self._held),
        )

    def connection_of(self, tenant: str, response_id: str) -> str | None:
        """The connection on which this turn of the tenant runs; None if there is no such turn."""
        owner, connection_id = self._where.get(response_id, (None, ""))
        return connection_id if owner == tenant else None
