"""Conversations where they are kept: in the journal, or in memory where there is none.

Always true: what is said to be written is on the disk, if there is a journal.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sessions.durable.conversations import Conversation
from sessions.durable.tenant import Tenant
from sessions.durable.transcript import Entry
from sessions.journal.errors import JournalError
from sessions.journal.journal import Journal
from sessions.turns.recollection import journal_error
from sessions.wire.journal_desk import JournalDesk
from tools_api import errors

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Put:
    """A change that may be made again where the journal's answer did not come: one that is there
    has left its mark, whatever others have changed since."""

    tenant: str
    conversation: Conversation
    version: int | None
    mark: str = field(default_factory=lambda: secrets.token_hex(6))
    tried: bool = False

    def __call__(self, journal: Journal) -> bool:
        before, self.tried = self.tried, True
        marked = self.conversation.marked(self.mark)
        if journal.put_conversation(self.tenant, marked, version=self.version):
            return True
        found = journal.conversation(self.tenant, self.conversation.id) if before else None
        return found is not None and self.mark in found.changes


@dataclass(slots=True)
class _Removal:
    """A conversation taken out, again where the journal's answer did not come; False: it was not
    there when that was asked first."""

    tenant: str
    id: str
    found: bool = False

    def __call__(self, journal: Journal) -> bool:
        self.found = self.found or journal.conversation(self.tenant, self.id) is not None
        return journal.delete_conversation(self.tenant, self.id) or self.found


class KeptConversations:
    """Every method raises ApiError where the journal cannot be asked."""

    def __init__(self, journal: JournalDesk | None) -> None:
        self._journal = journal

    async def get(self, tenant: Tenant, id_: str) -> Conversation | None:
        """The conversation of that id; None: there is none."""
        if self._journal is None:
            return tenant.conversations.get(id_)
        return await self._ask(tenant, lambda journal: journal.conversation(tenant.name, id_))

    async def put(self, tenant: Tenant, conversation: Conversation, *, version: int | None) -> bool:
        """Keep it in the place of the one of that ``version``, None: of none. False: it is another
        one that is there."""
        if self._journal is None:
            return tenant.conversations.put(conversation, version=version)
        return await self._ask(tenant, _Put(tenant.name, conversation, version))

    async def delete(self, tenant: Tenant, id_: str) -> bool:
        """Delete a conversation; False: there is none of that id."""
        if self._journal is None:
            return tenant.conversations.delete(id_)
        return await self._ask(tenant, _Removal(tenant.name, id_))

    async def head(self, tenant: Tenant, conversation: Conversation) -> Entry | None:
        """The entry of its head, if it has one; in memory then.

        Raises:
            ApiError: also where what was said in it is forgotten.
        """
        if conversation.head_id is None:
            return None
        responses = tenant.responses
        if responses.get(conversation.head_id) is None and self._journal is not None:
            try:
                await self._journal.find(tenant, conversation.head_id)
            except JournalError as error:
                raise journal_error(error) from error
        stored = responses.get(conversation.head_id)
        if stored is None:
            raise errors.no_such_conversation(conversation.id)
        return stored.entry

    async def _ask(self, tenant: Tenant, work: Callable[[Journal], Answer]) -> Answer:
        assert self._journal is not None
        try:
            return await self._journal.on_journal(tenant.name, work)
        except JournalError as error:
            raise journal_error(error) from error
