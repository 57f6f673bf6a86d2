"""Request ids that servers of one journal take: one has each, until it is done with it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sessions.journal import request_ids
from sessions.journal.ownership import DEAD_MS, Ownership
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record, reservation


@dataclass
class Servers:
    """Two over one file, and the clock of their database."""

    here: SqliteJournal
    there: SqliteJournal
    now_ms: int = 1000

    def own(self, journal: SqliteJournal) -> Ownership:
        assert journal.ownership is not None
        return replace(journal.ownership, now_ms=lambda _: self.now_ms)

    def take(self, journal: SqliteJournal, request_id: str = "q") -> bool:
        return self.own(journal).claim_request("t", request_id)

    def left(self) -> list[tuple[str, str]]:
        with self.here.reading() as cursor:
            found = cursor.execute("SELECT request_id, owner FROM request ORDER BY 1").fetchall()
        return [(request_id, owner) for request_id, owner in found]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    here, there = (
        SqliteJournal(tmp_path / "j", fingerprint=b"f", owner=owner, shared=True)
        for owner in ("here", "there")
    )
    made = Servers(here, there)
    for journal in (here, there):
        made.own(journal).beat()
    yield made
    here.close()
    there.close()


def test_one_server_has_an_id_until_it_frees_it(servers: Servers) -> None:
    assert servers.take(servers.here)
    assert servers.take(servers.here), "it has it already"
    assert not servers.take(servers.there)
    assert servers.own(servers.there).request_elsewhere("t", "q")
    assert not servers.own(servers.here).request_elsewhere("t", "q")
    assert not servers.own(servers.there).request_elsewhere("u", "q")
    servers.own(servers.there).free_requests("t", ["q"])
    assert not servers.take(servers.there), "it is not that one's to free"
    servers.own(servers.here).free_requests("t", [f"other {n}" for n in range(64)] + ["q"])
    assert servers.take(servers.there)


def test_an_id_goes_with_its_turns_record_or_with_what_the_turn_held(servers: Servers) -> None:
    here = servers.here
    for n in range(4):
        assert servers.take(here, f"q{n}")
    here.append([record("r0", request_id="q0")], [reservation("r1", request_id="q1")])
    assert [id_ for id_, _ in servers.left()] == ["q1", "q2", "q3"], "the turn of q1 runs"
    here.reserve([reservation("r1", request_id="q1", output=0)])
    assert [id_ for id_, _ in servers.left()] == ["q2", "q3"]
    assert here.append([record("r2", request_id="q2", epoch=9)]) == [False]
    assert [id_ for id_, _ in servers.left()] == ["q3"], "a turn that is refused has ended too"


def test_ids_of_a_server_that_leaves_or_is_dead_are_anybodys(servers: Servers) -> None:
    assert servers.take(servers.here)
    assert servers.take(servers.here, "r")
    servers.now_ms += DEAD_MS + 1
    servers.own(servers.there).beat()
    assert not servers.own(servers.there).request_elsewhere("t", "q")
    assert servers.take(servers.there)
    servers.own(servers.there).settle_left()
    assert servers.left() == [("q", "there")], "a server that begins forgets what the dead had"
    servers.there.close()
    assert servers.left() == []


def test_a_server_that_has_come_back_does_not_take_what_another_has_now(servers: Servers) -> None:
    assert servers.take(servers.here)
    with servers.there.writing() as cursor:
        taken = request_ids.take(servers.there, cursor, "t", "q", lambda _: False)
        assert taken, "the other counts as dead"
    assert not servers.take(servers.here)


def test_who_holds_a_session_is_told_without_being_asked_to_let_go(servers: Servers) -> None:
    own = servers.own(servers.there)
    assert not own.held_elsewhere("t", "s")
    servers.here.append([record("r1")])
    assert own.held_elsewhere("t", "s")
    assert not servers.own(servers.here).held_elsewhere("t", "s")
    assert servers.own(servers.here).wanted() == []
    servers.now_ms += DEAD_MS + 1
    assert not own.held_elsewhere("t", "s")
