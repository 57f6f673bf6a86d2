"""A prompt's length over HTTP: counted as the turn would count it, and nothing runs.

What the request continues is found as for a turn, in the journal too where memory lacks it.

Always true: nothing is claimed, and no session is made or taken in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sessions.durable.store import ConnectionStore
from sessions.http.exchange import Exchange, Pending
from sessions.http.later import Later
from sessions.http.message import HttpResponse, json_response
from sessions.journal.errors import JournalError
from sessions.turns.planning import Lineage, count_prompt, find_parent, takes_long
from sessions.turns.recollection import journal_error
from sessions.turns.references import digested, refuse_many_lists, remembered, with_stored
from sessions.turns.service import Service
from sessions.turns.wanted import Wanted, wanted_by
from sessions.wire.http_dialects import Served
from sessions.wire.hub import Hub
from sessions.wire.journal_desk import JournalDesk
from tools_api.items import Item
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
    continues_heads: bool
    """One that only names a session is counted from where that stands."""

    def begin(self, exchange: Exchange) -> Pending | None:
        """Answer at once, or later where something has to be fetched or the prompt is long.

        Raises:
            ApiError: what a turn would be refused for.
        """
        self.service.check_model(self.tenant, self.request.model)
        journal, references = self.hub.journal, self.request.references
        if references:
            refuse_many_lists(references, self.service.limits)
            return Later(exchange, self._referred(journal), self.served.dialect)
        if journal is not None:
            wanted = wanted_by(self.request, self.visible, self.digests)
            if wanted:
                recalled = self._recalled(journal, wanted)
                return Later(exchange, recalled, self.served.dialect)
        work, long = self._work()
        if long:
            return Later(exchange, self._beside(work), self.served.dialect)
        exchange.answer(self._answer(work()))
        return None

    async def _referred(self, journal: JournalDesk | None) -> HttpResponse:
        """Of a request that refers to stored items."""
        found = remembered(self.request.references, self.visible)
        items: Mapping[str, Item] = {}
        if journal is not None and found.missing:
            wanted = Wanted(item_ids=tuple(found.missing))
            try:
                items = (await journal.recall(self.tenant, wanted)).items
            except JournalError as error:
                raise journal_error(error) from error
        request, brought = with_stored(self.request, found, items, self.service.limits)
        whole = await self.hub.beside(self.tenant, partial(digested, request))
        num_bytes = self.num_bytes + brought
        counted = replace(self, request=request, digests=whole.digests, num_bytes=num_bytes)
        wanted = wanted_by(request, self.visible, whole.digests)
        return await counted._recalled(journal, wanted)

    async def _recalled(self, journal: JournalDesk | None, wanted: Wanted) -> HttpResponse:
        head_id = None
        if journal is not None:
            try:
                head_id = await self._fetched(journal, wanted)
            except JournalError as error:
                raise journal_error(error) from error
        work, long = self._work(head_id)
        return await self._beside(work) if long else self._answer(work())

    async def _fetched(self, journal: JournalDesk, wanted: Wanted) -> str | None:
        """Have in memory what is wanted; returns the head of a session that memory lacks."""
        responses, head_id = wanted.responses, None
        if wanted.session is not None and wanted.with_head and self.continues_heads:
            head_id = await journal.head(self.tenant, wanted.session)
            responses = responses if head_id is None else [*responses, head_id]
        alone = Wanted(responses=responses, items=wanted.items, histories=wanted.histories)
        if alone:
            journal.take(self.tenant, await journal.recall(self.tenant, alone))
        return head_id

    def _work(self, head_id: str | None = None) -> tuple[Callable[[], int], bool]:
        """What counts, and whether it takes long.

        Args:
            head_id: the newest response of a session that memory does not know.
        """
        request = self.request
        name = request.keepwarm.session
        session = None if name is None else self.visible.known_session(name)
        parent, items = find_parent(request, self.visible, session, self.digests)
        if parent is None and head_id is not None:
            parent = self.visible.response(head_id)
        lineage = Lineage(parent=parent, session=None, session_name="", items=items)
        work = partial(count_prompt, request, lineage, self.service.model)
        return work, takes_long(self.service, request, lineage, self.num_bytes)

    async def _beside(self, work: Callable[[], int]) -> HttpResponse:
        return self._answer(await self.hub.beside(self.tenant, work))

    def _answer(self, num_tokens: int) -> HttpResponse:
        assert self.served.count is not None
        return json_response(self.served.count.body(num_tokens))
