"""``/cluster.json``: the servers of this one's cluster, for operators.

The rows are those that ``keepwarm cluster status`` prints; the page of the dashboard and ``keepwarm
top --cluster`` show them too. They come from the database: no server is asked.
"""

from functools import partial
from typing import Any

from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, json_response
from sessions.journal.errors import JournalError
from sessions.journal.journal import Owner
from sessions.pages.archive import Beside, unread
from sessions.pages.cluster_rows import cluster_rows


class ClusterPage:
    """The handler of ``/cluster.json``."""

    def __init__(self, cluster: str | None, ownership: Owner | None, beside: Beside) -> None:
        """
        Args:
            cluster: the name of this server's; None: it stands in none.
            ownership: where the members are read.
            beside: makes a call on the journal beside the event loop.
        """
        self._cluster = cluster
        self._ownership = ownership
        self._beside = beside

    async def show(self, call: Call) -> HttpResponse:
        """``{"cluster", "servers"}``, the latter by slot.

        Raises:
            ApiError: the database cannot be read.
        """
        body: dict[str, Any] = {"cluster": self._cluster, "servers": []}
        if self._cluster is None or self._ownership is None:
            return json_response(body)
        work = partial(servers, self._ownership, self._cluster)
        try:
            return json_response(body | await self._beside(call.principal.tenant, work))
        except JournalError as error:
            raise unread(error, "the cluster") from None


def servers(ownership: Owner, cluster: str) -> dict[str, Any]:
    """The rows. Raises JournalError."""
    return {"servers": cluster_rows(*ownership.members(cluster))}
