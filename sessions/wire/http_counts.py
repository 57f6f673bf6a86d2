"""A prompt's length over HTTP: counted as the turn would count it, and nothing runs.

What the request continues is found as for a turn, in the journal too where memory lacks it.

Always true: nothing is claimed, and no session is made or taken in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sessions.durable.store import ConnectionStore
from sessions.http.exchange import Exchange, Pending
from sessions.http.later import Later
from sessions.http.message import HttpResponse, json_response
from sessions.journal.errors import JournalError
from sessions.turns.continuing import Lineage, find_parent
from sessions.turns.memory import Memory
from sessions.turns.planning import count_prompt, takes_long
from sessions.turns.recollection import journal_error
from sessions.turns.references import digested
from sessions.turns.service import Service
from sessions.turns.wanted import Recalled, Wanted
from sessions.wire.http_dialects import Served
from sessions.wire.hub import Hub
from tools_api.requests import CreateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One request whose prompt is counted."""

    hub: Hub
    service: Service
    served: Served
    tenant: str
    request: CreateRequest
    num_bytes: int
    """Of its body."""
    digests: Sequence[bytes] | None
    """Of each prefix of its input, if they are known."""
    visible: ConnectionStore

    def begin(self, exchange: Exchange) -> Pending | None:
        """Raises ApiError for what a turn would be refused for."""
        self.service.check_model(self.tenant, self.request.model)
        return Later(exchange, self._count(), self.served.dialect)

    async def _count(self) -> HttpResponse:
        memory = Memory(self.visible, self.service, ask=self._ask, claims=False)
        request, digests, num_bytes = self.request, self.digests, self.num_bytes
        if request.references:
            request, brought = await memory.with_items(request)
            num_bytes += brought
            whole = await self.hub.beside(self.tenant, partial(digested, request))
            digests = whole.digests
        parent, items = await find_parent(request, memory, digests)
        lineage = Lineage(parent=parent, session=None, session_name="", items=items)
        work = partial(count_prompt, request, lineage, self.service.model)
        long = takes_long(self.service, request, lineage, num_bytes)
        count = await self.hub.beside(self.tenant, work) if long else work()
        assert self.served.count is not None
        return json_response(self.served.count.body(count))

    async def _ask(self, wanted: Wanted) -> Recalled:
        journal = self.hub.journal
        assert journal is not None
        try:
            recalled = await journal.recall(self.tenant, wanted)
        except JournalError as error:
            raise journal_error(error) from error
        journal.take(self.tenant, recalled)
        return recalled
