"""A server's inside that stops a request at any question it waits at, and what it holds then.

``PlaceRig`` is ``JournalRig`` over a journal that several servers may share: the first question
that a test looks for is kept unanswered. What the journal has given by then is given, and comes
late. ``held`` looks into everything that holds something for a request.
"""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.messages import FinishReason
from sessions.durable.account import NOTHING
from sessions.durable.ledger import PriceTable
from sessions.durable.session import Session
from sessions.journal.records import TENANT_ACCOUNT, TurnRecord
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import Verdict
from sessions.tenants import TenantPolicy, Tenants
from sessions.turns.connection import Connection
from sessions.turns.effects import Asked, Effects, Question
from sessions.turns.jobs import Job
from sessions.turns.wanted import Recalled, Wanted
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.sessions_rig import END, Client, Event
from tools_api.limits import Limits
from tools_api.requests import Bounds

PRICES = PriceTable(input_uncached=3_000_000_000, input_cached=300_000_000, output=15_000_000_000)
TENANT = "acme"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
Matches = Callable[[Asked, Job], bool]


class PlaceRig(JournalRig):
    """Keeps the first question that ``stop_at`` is about; all others are answered at once."""

    def __init__(self, folder: Path, lives: list["weakref.ref[Any]"]) -> None:
        self.stop_at: Matches | None = None
        self.stopped: tuple[Client, Question] | None = None
        self.gives = True
        """The journal, asked there, reads at once, and only its answer is late."""
        self.given: Recalled | None = None
        self.lives = lives
        self.made: list[Session] = []
        """Every session that there ever was."""
        shared = SqliteJournal(
            folder / "journal.sqlite3",
            fingerprint=FINGERPRINT,
            owner="a",
            shared=True,
            synchronous="OFF",
        )
        budget = Bounds(output=1_000_000, input_uncached=1_000_000)
        super().__init__(
            shared,
            limits=Limits(max_inline_bytes=2000),
            prices=PRICES,
            tenants=Tenants([], {TENANT: TenantPolicy(budget=budget)}),
        )
        assert shared.ownership is not None
        shared.ownership.beat()
        self._watch_sessions()

    def restart(self) -> None:
        super().restart()
        self._watch_sessions()

    def _watch_sessions(self) -> None:
        tenant = self.store.tenant(TENANT)
        make = tenant.new_session

        def made(name: str) -> Session:
            self.made.append(make(name))
            return self.made[-1]

        tenant.new_session = made  # type: ignore[method-assign]

    def ask(self, client: Client, question: Question) -> None:
        job = client.connection.jobs.of_question(question.id)
        assert job is not None
        if self.stop_at is None or self.stopped or not self.stop_at(question.asked, job):
            super().ask(client, question)
            return
        self.stopped = client, question
        if isinstance(question.asked, Wanted) and self.gives:
            self.given = self.recollection.read(self.store.tenant(TENANT), question.asked)

    def job_of(self, client: Client) -> Job:
        """The connection's only job."""
        (job,) = client.connection.jobs
        return job

    def tell_all(self, call: Callable[[Connection], Effects]) -> None:
        """As the hub does: all are told before anybody hears what that leads to."""
        told = [(client, call(client.connection)) for client in self._clients.values()]
        for client, effects in told:
            self.carry(client, effects)

    def kill_engine(self) -> None:
        self.engine.restart()
        self.store.engine_lost()
        self.store.residents.engine_lost()
        self.tell_all(lambda connection: connection.engine_died())

    def runs(self, client: Client) -> bool:
        """One of the connection's requests has become a turn."""
        return any(job.turn is not None for job in client.connection.jobs)

    def answer(self, error: Exception | None = None) -> None:
        """Answer the question that was kept: as ever, or with an error."""
        assert self.stopped is not None
        (client, question), self.stopped = self.stopped, None
        if isinstance(question.asked, TurnRecord):
            self._handed_over += 1
            self.held.append((client, question))
            unavailable = Verdict(written=False, reason="unavailable")
            self.commit(None if error is None else unavailable)
        elif error is not None:
            self.carry(client, client.connection.answer(question.id, error))
        elif self.given is not None:
            self.recollection.remember(self.store.tenant(TENANT), self.given)
            self.carry(client, client.connection.answer(question.id, self.given))
        else:
            super().ask(client, question)

    def lose_base(self) -> None:
        """The engine does not know what the newest request goes on from."""
        self.deliver(self.engine.forget(self.engine.last))

    def play_out(self) -> None:
        """Answer what is asked, and let every turn end, until nothing happens any more."""
        self.stop_at = None
        for _ in range(100):
            if self.stopped is not None:
                self.answer()
            elif self.engine.open:
                request = next(iter(self.engine.open.values())).request
                self.emit("ok" + END, FinishReason.STOP, request)
            else:
                self.pay()
                return
        raise AssertionError("it does not end")


def held(rig: PlaceRig) -> dict[str, Any]:
    """What is held for requests, by whom; empty when all are answered."""
    found: dict[str, Any] = {}
    for name, client in rig._clients.items():
        found[f"requests of {name}"] = client.connection.held
    found |= _of_sessions(rig) | _of_store(rig) | _of_journal(rig)
    found["lives"] = [ref for ref in rig.lives if ref() is not None]
    return {what: each for what, each in found.items() if each}


def _of_sessions(rig: PlaceRig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, session in enumerate(rig.made):
        name = f"{session.name} ({number})"
        found[f"turns of {name}"] = session.running
        found[f"tickets of {name}"] = session.tickets
        accounts = (session.ledger.account, session.ledger.tree, *session.ledger.above)
        found[f"money of {name}"] = [each.scope for each in accounts if each.held != NOTHING]
    return found


def _of_store(rig: PlaceRig) -> dict[str, Any]:
    store, branches = rig.store, rig.store.branches
    places, logs = branches.places, list(store.logs)
    entries = {each.entry for each in store.tenant(TENANT).responses}
    return {
        "places": store.running.held,
        "memory": [store.held.total, *store.held.holders] != [0],
        "ids": [log.request_id for log in logs if log.response_id is None],
        "open logs": [log.response_id for log in logs if not log.ended],
        "followers": [log.response_id for log in logs if log.follower is not None],
        "branches": branches.running_ids
        or branches.ids ^ set(places.values())
        or branches.ids ^ rig.engine.sessions.keys()
        or places.keys() - entries,
        "engine": list(rig.engine.open),
    }


def _of_journal(rig: PlaceRig) -> dict[str, Any]:
    journal, shared = rig.journal, rig.recollection.shared
    assert isinstance(journal, SqliteJournal)
    with journal.reading() as cursor:
        shares = cursor.execute("SELECT tenant, name FROM share").fetchall()
        ids = cursor.execute("SELECT request_id FROM request").fetchall()
        reserved = cursor.execute("SELECT response_id FROM reservation").fetchall()
    in_memory = rig.store.tenant(TENANT).account.spent
    in_journal = journal.account(TENANT, TENANT_ACCOUNT).spent
    return {
        "shares": [*shared.held, *shares],
        "ids in the journal": ids,
        "money in the journal": reserved,
        "noted": rig.noted,
        "spent": in_memory != in_journal and [in_memory, in_journal],
        "in hand": rig.recollection.claims,
        "records": rig.held,
    }


def answers(client: Client) -> list[str]:
    """How each of the client's requests ended, in order."""
    return [_told(event) for event in client.events if event["type"] in TERMINAL]


def _told(event: Event) -> str:
    if event["type"] == "error":
        return str(event["error"]["code"])
    return str(event["type"].removeprefix("response."))
