"""Questions that a connection's requests ask of others, by number; who waits for one is woken.

Everything of a connection that waits has one ``Asking``. It knows nothing of those who have it, so
that no connection's parts hold each other and all of them go with the last of them that is used.

Always true: no two questions of a connection have the same id.
"""

import itertools
from collections.abc import Hashable
from functools import partial
from typing import Any

from sessions.durable.store import ConnectionStore
from sessions.turns.effects import Outbox, Question, SessionGranted
from sessions.turns.jobs import EarlyEnd, EndedEarly, Job
from sessions.turns.memory import Memory
from sessions.turns.recollection import journal_error
from sessions.turns.service import Service
from sessions.turns.wanted import Recalled, Wanted


class Asking:
    """The questions of one connection."""

    def __init__(
        self, *, connection_id: str, visible: ConnectionStore, service: Service, outbox: Outbox
    ) -> None:
        self._id = connection_id
        self._visible = visible
        self._service = service
        self._outbox = outbox
        self._numbers = itertools.count(1)

    def question(self, asked: Any) -> Question:
        """A question that is not yet put: that is done by awaiting it."""
        return Question(f"{self._id}.{next(self._numbers)}", asked)

    def ticket(self, question: Question) -> tuple[str, str]:
        """A ticket by which the question can be answered from another connection: see ``wake``."""
        return (self._id, question.id)

    async def ask(self, job: Job, asked: Any) -> Any:
        """Put a question for a job; returns its answer.

        Raises:
            EndedEarly: the request is ended, or another one bears its id.
        """
        answer = await self.question(asked)
        if job.turn is None and job.log is not None and job.log.follower is not job:
            raise EndedEarly(EarlyEnd.NEWER_REQUEST)  # before the notice that says so
        return answer

    def memory_of(self, job: Job) -> Memory:
        """The store as the job's request asks it."""
        return Memory(self._visible, self._service, ask=partial(self._recall, job))

    async def _recall(self, job: Job, wanted: Wanted) -> Recalled:
        """Ask the journal, and have in memory what it knows."""
        try:
            recalled: Recalled = await self.ask(job, wanted)
        except Exception as error:
            raise journal_error(error) from None
        return recalled

    def wake(self, ticket: Hashable | None) -> None:
        """Have the question answered that has the ticket, if there is one."""
        if ticket is not None:
            assert isinstance(ticket, tuple)
            self._outbox.others.append(SessionGranted(*ticket))
