"""``Rig`` with a journal: records are committed, and what fell out is asked for.

``hold`` keeps verdicts back, so that a test sees what waits for them; what turns hold is noted in
the order of a ``JournalWriter``, behind the records that were handed over before. ``restart`` is a
server that died and another that found its journal.
"""

import itertools
from dataclasses import replace
from typing import Any

from sessions.journal.adoption import Loader
from sessions.journal.journal import Journal
from sessions.journal.records import (
    JOURNAL_UNAVAILABLE,
    TENANT_ACCOUNT,
    TurnRecord,
    usage_alone,
)
from sessions.journal.writer import STALE, WRITTEN, Verdict
from sessions.turns.commits import Commits
from sessions.turns.effects import Effects, Question, TurnHold
from sessions.turns.recollection import Recollection
from sessions.turns.wanted import Recalled, Wanted
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sessions_rig import Client, Rig, make_service

FINGERPRINT = b"f"


class JournalRig(Rig):
    """Commits and looks up at once, in order."""

    def __init__(self, journal: Journal, *, fingerprint: bytes = FINGERPRINT, **options: Any):
        self.journal = journal
        self.fingerprint = fingerprint
        self.retokenise = False
        self.options = options
        self.hold = False
        self.held: list[tuple[Client, Question]] = []
        self.unpaid: list[TurnRecord] = []
        """What turns consumed whose records the journal did not take."""
        self.noted: dict[str, TurnRecord] = {}
        """By response: what the journal says that a running turn holds."""
        self._handed_over = self._committed = 0
        self._notes: list[tuple[int, TurnRecord]] = []
        """What turns hold, and how many records have to be written before it is noted."""
        self.lookups = 0
        self.numbers = itertools.count(1)
        super().__init__(**options)
        self._with_journal()

    def restart(self) -> None:
        """All that was in memory is gone."""
        self.engine = ScriptedEngine()
        self.service = make_service(self.clock, **self.options)
        self.store, self.model = self.service.store, self.service.model
        self._clients.clear()
        self._routes.clear()
        self.held.clear()
        self.unpaid.clear()
        self.noted.clear()
        self._notes.clear()
        self._handed_over = self._committed = 0
        self._with_journal()

    def _with_journal(self) -> None:
        self.left = self.journal.settle_left()
        """What was cut short by the server before."""
        commits = Commits(self.journal)
        self.service = replace(
            self.service,
            commits=commits,
            new_id=lambda prefix: f"{prefix}_{next(self.numbers)}",
        )
        self.store.lasts()
        in_all = self.journal.accounts_named(TENANT_ACCOUNT)
        by_policy = self.journal.accounts_of_policies()
        self.store.know_spent(
            {name: account.spent for name, account in in_all.items()},
            {key: account.spent for key, account in by_policy.items()},
        )
        loader = Loader(
            self.journal,
            fingerprint=self.fingerprint,
            retokenise=self.model.renderer if self.retokenise else None,
        )
        self.recollection = Recollection(
            journal=self.journal,
            loader=loader,
            store=self.store,
            commits=commits,
            wall_clock=self.service.wall_clock,
        )

    def carry(self, client: Client, effects: Effects) -> None:
        records = [q for q in effects.questions if isinstance(q.asked, TurnRecord)]
        before = self._handed_over + len(records)
        for note in effects.notes:
            if isinstance(note, TurnHold):
                self._notes.append((before, note.record))
            elif self.journal.ownership is not None:
                self.journal.ownership.free_requests(
                    client.connection.tenant.name, [note.request_id]
                )
        if not records:
            self._note()
        super().carry(client, effects)
        if self.journal.ownership is not None:
            for key in self.recollection.shared.idle():
                self.journal.ownership.give_back(*key)
                self.recollection.shared.gone(key)

    def ask(self, client: Client, question: Question) -> None:
        match question.asked:
            case TurnRecord():
                self._handed_over += 1
                self.held.append((client, question))
                if not self.hold:
                    self.commit()
            case Wanted() as wanted:
                self.lookups += 1
                answer: Recalled | Exception
                try:
                    answer = self.recollection.read(client.connection.tenant, wanted)
                    self.recollection.remember(client.connection.tenant, answer)
                except Exception as error:
                    answer = error
                self.carry(client, client.connection.answer(question.id, answer))
            case _:
                super().ask(client, question)

    def commit(self, verdict: Verdict | None = None) -> None:
        """Write the record that waits longest, or say that it could not be."""
        client, question = self.held.pop(0)
        record = question.asked
        assert isinstance(record, TurnRecord)
        if verdict is None:
            self.pay()
            (written,) = self.journal.append([record])
            verdict = WRITTEN if written else STALE
        self._committed += 1
        if verdict.reason == "unavailable":
            self.unpaid.append(usage_alone(record, reason=JOURNAL_UNAVAILABLE))
        else:
            self.noted.pop(record.response_id, None)
        self._note()
        self.carry(client, client.connection.answer(question.id, verdict))

    def pay(self) -> None:
        """Write what waits of refused turns."""
        if not self.unpaid:
            return
        self.journal.append(self.unpaid)
        for record in self.unpaid:
            self.noted.pop(record.response_id, None)
        self.unpaid.clear()

    def _note(self) -> None:
        """What is due of what turns hold."""
        while self._notes and self._notes[0][0] <= self._committed:
            self.pay()
            _, record = self._notes.pop(0)
            self.journal.reserve([record])
            self.noted.pop(record.response_id, None)
            if record.holds:
                self.noted[record.response_id] = record
