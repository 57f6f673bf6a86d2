"""The store as a request asks it: what memory lacks is fetched from the journal first.

A response, a history, a session, its head, an item, the turn of an id: each is asked for by a
coroutine that answers at once where memory knows, or there is no journal. Knows what is private
between the store and the journal: ``Wanted`` and ``Recalled``. Who claims sessions reads for a
turn, which will run in the session of what it continues; who does not makes and claims none.

Always true: what memory knows is not asked for, unless it may have been deleted at another server.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate

from sessions.durable.account import NOTHING, Account, Amount
from sessions.durable.conversations import Conversation
from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session, SessionState
from sessions.durable.store import ConnectionStore
from sessions.durable.transcript import ROOT_DIGEST, by_model, roll
from sessions.durable.turn_logs import EventLog
from sessions.quotas import Draw
from sessions.turns.references import refuse_many_lists, remembered, with_stored
from sessions.turns.service import Service
from sessions.turns.sharing import wants
from sessions.turns.wanted import Recalled, Wanted
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.items import Item
from tools_api.requests import CreateRequest


class Memory:
    """The memory of one request."""

    def __init__(
        self,
        visible: ConnectionStore,
        service: Service,
        *,
        ask: Callable[[Wanted], Awaitable[Recalled]],
        claims: bool = True,
    ) -> None:
        """
        Args:
            ask: has in memory what the journal knows of it; raises ApiError where it cannot say.
            claims: a turn is to come, and no other server may have its session then.
        """
        self.visible = visible
        self._service = service
        self._ask = ask
        self._claims = claims
        self._lasts = service.commits is not None
        self._has_others = service.commits is not None and service.commits.has_others

    async def session(self, name: str, *, with_head: bool = False) -> Session:
        """The session of that name, claimed, or made if nobody knows it."""
        if self._lasts and self.visible.claimed_session(name) is None:
            await self._ask(Wanted(session=name, with_head=with_head))
        return self.visible.session(name)

    async def know(self, name: str) -> None:
        """Have in memory a session that others are a part of, as it is now: what another server has
        may have got other budgets there."""
        known = self.visible.known_session(name)
        if self._lasts and (known is None or not known.claimed):
            await self._ask(Wanted(parent=name))

    async def know_above(self, session: Session) -> None:
        """Have in memory, as they are now, the sessions that this one is a part of."""
        if not self._has_others or session.parent is None:
            return
        if all(map(self._is_ours, session.parents())):
            return
        await self._ask(Wanted(parent=session.parent.name))
        for above in session.parents():
            known = self.visible.known_session(above.name)
            if known is not None and known is not above:
                tree, now = above.ledger.tree, known.ledger.tree
                tree.budget, tree.soft = now.budget, now.soft

    def _is_ours(self, session: Session) -> bool:
        return session.claimed and session.state is not SessionState.CLOSED

    async def response(self, response_id: str, *, goes_on: bool = False) -> StoredResponse | None:
        """The response of that id. ``goes_on``: the turn will run in its session."""
        found = self.visible.response(response_id)
        if found is not None and self._has_others and not found.private:
            if (await self._ask(Wanted(known=(response_id,)))).deleted:
                self.visible.tenant.delete_response(response_id)
            found = self.visible.response(response_id)
        if found is None and self._lasts:
            await self._ask(Wanted(responses=[response_id], owns_first=goes_on and self._claims))
            found = self.visible.response(response_id)
        return found

    async def history(
        self, items: Sequence[Item], digests: Sequence[bytes] | None, *, goes_on: bool
    ) -> tuple[StoredResponse, int] | None:
        """The response whose history is the longest beginning of ``items``, and its length.

        Args:
            digests: of each prefix of the items, if they are known.
            goes_on: the turn will run in its session.
        """
        if digests is None:
            digests = list(accumulate(items, roll, initial=ROOT_DIGEST))
        found = self.visible.history(items, digests)
        if self._lasts:
            longer = range(len(items), 0 if found is None else found[1], -1)
            histories: list[tuple[int, bytes]] = []
            for length in longer:
                if by_model(items[length - 1]):
                    histories.append((length, digests[length]))
            if histories:
                owns_first = goes_on and self._claims
                await self._ask(
                    Wanted(items=tuple(items), histories=histories, owns_first=owns_first)
                )
                found = self.visible.history(items, digests)
        return found

    async def head(self, name: str) -> StoredResponse | None:
        """The response that a turn continues which only names its session."""
        if not self.visible.continues_heads:
            return None
        session = self.visible.known_session(name)
        if session is None:  # nobody claims it, and none is made
            recalled = await self._ask(Wanted(head_of=name)) if self._lasts else Recalled()
            id_ = recalled.head_id
            return None if id_ is None else self.visible.response(id_)
        found = self.visible.head(session)
        if found is not None and self._has_others:
            await self.response(found.id)  # which may have been deleted
        elif self.visible.lacks_head(session) and session.head_id is not None:
            await self.response(session.head_id)
        return self.visible.head(session)

    async def conversation(self, id_: str) -> Conversation:
        """The conversation, whose head is in memory then.

        Raises:
            ApiError: ``conversation_not_found``, also where what was said in it is forgotten.
        """
        found = self.visible.conversation(id_)
        if self._lasts:
            found = (await self._ask(Wanted(conversation=id_))).conversation
        if found is None:
            raise errors.no_such_conversation(id_)
        if found.head_id is not None and await self.response(found.head_id) is None:
            raise errors.no_such_conversation(id_)
        return found

    async def with_items(self, request: CreateRequest) -> tuple[CreateRequest, int]:
        """The request with the stored items that it refers to, and how many bytes those hold.

        Raises:
            ApiError: an item is unknown, or the items are too large together.
        """
        limits = self._service.limits
        refuse_many_lists(request.references, limits)
        found, recalled = remembered(request.references, self.visible), Recalled()
        shared = found.items.keys() - found.own
        if self._has_others and shared:
            listed = {found.listed[id_] for id_ in shared & found.listed.keys()}
            items = tuple(shared - found.listed.keys())
            known = Wanted(known=tuple(listed), known_items=items)
            found.forget((await self._ask(known)).deleted)
        if found.missing and self._lasts:
            recalled = await self._ask(Wanted(item_ids=tuple(found.missing)))
        return with_stored(request, found, recalled.items, limits)

    async def look_for_turn(self, known: EventLog | None, wanted: Wanted) -> None:
        """Have in memory the turn that a request id or a response id leads to.

        Args:
            known: what memory has of it, which may have been deleted at another server, or by a
                command.
        """
        if not self._lasts:
            return
        ended = (await self._ask(wanted)).ended
        if known is not None and known.response_id is not None and (not ended or ended[0].deleted):
            self.visible.tenant.delete_response(known.response_id)
            self._service.store.logs.delete(known)

    async def claim_shares(self, lacking: Sequence[tuple[Account, Amount]]) -> bool:
        """Have what there is of what is lacking of accounts that other servers draw on too.
        Returns whether there was any of it: what was in reach beside it, a turn that ran
        meanwhile may have had, so that something lacks again."""
        commits = self._service.commits
        assert commits is not None
        accounts: Mapping[str, Account] = {account.name: account for account, _ in lacking}
        shares = (await self._ask(Wanted(shares=wants(lacking)))).shares
        for share in shares:
            commits.shared.got(accounts[share.name], share)
        return any(share.amount != NOTHING for share in shares)

    async def draw(self, draws: tuple[Draw, ...]) -> None:
        """Have in stock what there is of limits that other servers draw on too; where that cannot
        be asked for, this server goes on with its part of them."""
        quota = self.visible.tenant.quota
        try:
            recalled = await self._ask(Wanted(draws=draws))
        except ApiError:
            quota.unpaid(draws)
        else:
            quota.drawn(recalled.draws)
