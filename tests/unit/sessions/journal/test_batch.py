"""What journals write together: reservations and what they become, parents that are gone, owners.

Tests that take a ``journal`` are promises of every store; ``tests.e2e.test_postgres`` asks them of
PostgreSQL too.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.journal.batch import reservations
from sessions.journal.encoding import decode_turn
from sessions.journal.errors import JournalDamaged, JournalParentGone, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.ownership import DEAD_MS, Ownership, SystemWaiter
from sessions.journal.records import (
    RESIDENCY,
    SERVER_DIED,
    TurnRecord,
    session_account,
    tree_account,
)
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.tables import SqlTables
from sessions.journal.writer import BUSY_S, FEW, GATHER_S, JournalWriter, Ticket, Verdict
from tests.support.journals import record, reservation
from tests.support.memory_journal import MemoryJournal


@pytest.fixture(params=["memory", "sqlite", "shared"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    opened: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    elif request.param == "shared":
        opened = SqliteJournal(tmp_path / "j", fingerprint=b"f", owner="a", shared=True)
    yield opened
    opened.close()


def held(journal: Journal, session: str = "s") -> dict[str, int]:
    found = journal.reservations("t", session)
    return {each.response_id: each.usage.output_tokens for each in found}


def settled(journal: Journal) -> int:
    """By a server that begins, of one that is long dead."""
    own = journal.ownership
    if isinstance(own, Ownership):
        dead = replace(own, now_ms=lambda cursor: own.now_ms(cursor) + DEAD_MS + 1)
        return len(dead.settle_left())
    return len(journal.settle_left())


# Reservations


def test_a_reservation_goes_with_its_turns_record(journal: Journal) -> None:
    journal.reserve([reservation("r1"), reservation("r2")])
    journal.append([record("r1")])
    assert held(journal) == {"r2": 256}
    assert journal.reservations("u", "s") == []


def test_of_a_turns_reservations_the_last_one_counts(journal: Journal) -> None:
    journal.reserve([reservation("r1"), reservation("r2")])
    journal.append([record("r3")], [reservation("r1", output=512), reservation("r4")])
    assert held(journal) == {"r1": 512, "r2": 256, "r4": 256}
    journal.reserve([reservation("r1", output=0)])
    assert held(journal) == {"r2": 256, "r4": 256}
    assert journal.account("t", session_account("s")).turns == 1


def test_what_a_dead_server_left_becomes_a_failed_turn_once(journal: Journal) -> None:
    journal.append([record("r0", accounts=("tenant",))])
    left = reservation("r1", request_id="q", accounts=("tenant", tree_account("s")))
    journal.reserve([left])
    assert settled(journal) == 1
    assert settled(journal) == 0
    row = journal.turn_of_request("t", "q")
    assert row is not None
    assert (row.response_id, row.parent_id, row.continuable) == ("r1", "r0", False)
    body = decode_turn(row)
    assert (body.status, body.reason, body.number) == ("failed", SERVER_DIED, 2)
    assert (body.usage, body.cost, body.saved) == (left.usage, left.cost, left.saved)
    assert body.request_digest == left.request_digest
    session = journal.session("t", "s")
    assert session is not None
    assert (session.head_id, session.head_seq, session.turns_begun) == ("r0", 2, 2)
    assert session.options == left.options
    assert session.account.turns == 2
    assert journal.account("t", "tenant").cost == session.account.cost
    assert journal.account("t", tree_account("s")).cost == left.cost
    assert held(journal) == {}
    assert journal.turn("t", "r1") is None, "there is nothing to continue"
    assert journal.ended_turn("t", "r1") is not None
    assert len(journal.session_turns("t", "s")) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_options_that_a_turn_takes_back_are_gone(journal: Journal, fails: bool) -> None:
    told = b'{"session":[{"output":9},{}],"labels":{"a":"b"}}'
    first = replace(record("r1"), options=told)
    journal.append([first, replace(record("kv"), status=RESIDENCY)])
    assert options_of(journal) == told, "what is no turn says nothing of them"
    last = record("r2", said=not fails)
    journal.append([last])
    assert options_of(journal) == b""
    journal.append([replace(record("r3"), options=told), record("r4")])
    assert options_of(journal) == b""


def options_of(journal: Journal) -> bytes:
    session = journal.session("t", "s")
    assert session is not None
    return session.options


def test_a_request_that_ended_meanwhile_keeps_its_id(journal: Journal) -> None:
    journal.reserve([reservation("r1", request_id="q")])
    journal.append([record("r2", request_id="q")])
    assert settled(journal) == 1
    row = journal.turn_of_request("t", "q")
    assert row is not None
    assert row.response_id == "r2"
    assert journal.account("t", session_account("s")).turns == 2


def test_a_turn_that_runs_is_found_by_its_request_and_its_id(journal: Journal) -> None:
    for n, request_id in enumerate(("q", 'q"', "q%", "\u2028", "qq")):
        journal.reserve([reservation(f"r{n}", request_id=request_id, session=f"s{n}")])
    journal.reserve([reservation("r9", session="none")])
    assert journal.session_running("t", "q", None) == "s0"
    assert journal.session_running("t", 'q"', None) == "s1"
    assert journal.session_running("t", "\u2028", None) == "s3"
    assert journal.session_running("t", "_", None) is None
    assert journal.session_running("u", "q", None) is None
    assert journal.session_running("t", None, "r4") == "s4"
    assert journal.session_running("t", None, "r5") is None


def test_a_private_turn_is_asked_for_by_its_request_alone(journal: Journal) -> None:
    journal.append([replace(record("r1", said=False, request_id="p"), private=True)])
    journal.reserve([replace(reservation("r2", request_id="q"), private=True)])
    settled(journal)
    for response_id, request_id in (("r1", "p"), ("r2", "q")):
        assert journal.ended_turn("t", response_id) is None
        assert journal.turn_of_request("t", request_id) is not None


def test_a_hidden_response_has_no_end_to_be_asked_for(journal: Journal) -> None:
    journal.append([record("r1")])
    assert journal.ended_turn("t", "r1") is not None
    journal.hide("t", "r1")
    assert journal.ended_turn("t", "r1") is None
    assert journal.ended_turn("t", "r2") is None


# What goes with a session


def test_a_session_whose_turns_left_nothing_is_not_there(journal: Journal) -> None:
    journal.reserve([reservation("r1"), reservation("r2"), reservation("r3", session="kept")])
    journal.reserve([reservation("r1", output=0)])
    assert held(journal) == {"r2": 256}, "one turn still runs in it"
    journal.append([record("r3", session="kept")], [reservation("r2", output=0)])
    assert journal.session("t", "s") is None
    assert [each.name for each in journal.sessions()] == ["kept"]
    journal.reserve([reservation("r4", session="kept")])
    journal.reserve([reservation("r4", session="kept", output=0)])
    kept = journal.session("t", "kept")
    assert kept is not None
    assert kept.head_id == "r3"


def test_nothing_of_a_forgotten_session_stays(journal: Journal) -> None:
    accounts = (tree_account("s"), "tenant")
    journal.append([record("r1", created_s=1.0, accounts=accounts)])
    journal.expire(50.0)
    for name in (session_account("s"), tree_account("s")):
        assert journal.account("t", name).turns == 0, name
    assert journal.account("t", "tenant").turns == 1
    journal.append([record("r2", accounts=accounts)])
    journal.reserve([reservation("r3")])
    journal.delete_session("t", "s")
    assert journal.account("t", tree_account("s")).turns == 0
    assert held(journal) == {}


def test_a_session_in_which_a_turn_runs_is_not_forgotten(journal: Journal) -> None:
    journal.append([record("r1", created_s=1.0)])
    journal.reserve([reservation("r2", epoch=1)])
    assert journal.expire(5000.0) == 1
    assert held(journal) == {"r2": 256}
    assert journal.account("t", session_account("s")).turns == 1
    journal.reserve([reservation("r2", output=0)])
    journal.expire(5000.0)
    assert journal.session("t", "s") is None


# Parents


def test_a_turn_is_never_left_on_a_parent_that_is_gone(journal: Journal) -> None:
    first = record("r1")
    second = record("r2", parent=first, session="fork")
    journal.append([first])
    journal.delete_session("t", "s")
    with pytest.raises(JournalParentGone, match="r1"):
        journal.append([record("r3", session="other"), second])
    assert journal.turn("t", "r3") is None, "all of a transaction or nothing"
    assert journal.sessions() == []
    assert journal.append([first, second]) == [True, True], "a parent may come beside its child"


def test_a_hidden_parent_carries_what_stands_on_it(journal: Journal) -> None:
    first = record("r1")
    journal.append([first])
    journal.hide("t", "r1")
    assert journal.append([record("r2", parent=first)]) == [True]


def test_headers_that_another_program_swept_are_written_again(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.append([record("r1")])
    other = SqliteJournal(tmp_path / "j", fingerprint=b"", beside=True)
    other.delete_session("t", "s")
    other.vacuum()
    other.close()
    last = record("r2")
    journal.append([last])
    (row,) = journal.chain("t", "r2")
    assert journal.header(decode_turn(row).links[0].header)
    journal.close()
    again = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    assert again.turn("t", "r2") is not None
    again.close()


# Owners


def shared(path: Path, owner: str) -> SqliteJournal:
    return SqliteJournal(path, fingerprint=b"f", owner=owner, shared=True)


def taken_over(journal: SqliteJournal) -> None:
    own = Ownership(journal=journal, now_ms=lambda _: 10**15, waiter=SystemWaiter())
    assert own.claim("t", "s", 0.0) is not None


def test_a_turn_that_its_next_owner_ended_is_not_written_by_the_last(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    a.append([record("r1")])
    a.reserve([reservation("r2", epoch=1, request_id="q")])
    taken_over(b)
    assert b.account("t", session_account("s")).turns == 2
    assert a.append([record("r2", epoch=1)]) == [False]
    row = b.turn_of_request("t", "q")
    assert row is not None
    assert decode_turn(row).reason == SERVER_DIED
    assert b.account("t", session_account("s")).turns == 2
    a.close()
    b.close()


def test_a_call_that_is_repeated_after_the_session_moved_was_written(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    turn = record("r1")
    assert a.append([turn]) == [True]
    taken_over(b)
    assert a.append([turn]) == [True]
    assert a.append([record("r2", epoch=1)]) == [False]
    assert b.account("t", session_account("s")).turns == 1
    a.close()
    b.close()


def test_of_a_session_that_moved_nothing_is_reserved(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    a.append([record("r1")])
    taken_over(b)
    a.reserve([reservation("r2", epoch=1)])
    assert held(b) == {}
    b.reserve([reservation("r3", epoch=2)])
    assert held(a) == {"r3": 256}
    a.close()
    b.close()


def test_who_reserves_first_in_a_new_session_has_it(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    a.reserve([reservation("r1")])
    b.reserve([reservation("r2")])
    assert held(a) == {"r1": 256}
    assert b.append([record("r2")]) == [False]
    assert a.append([record("r1")]) == [True]
    assert b.settle_left() == []
    a.close()
    b.close()


def test_an_empty_session_goes_when_it_is_let_go_or_taken_over(tmp_path: Path) -> None:
    a, b = shared(tmp_path / "j", "a"), shared(tmp_path / "j", "b")
    for server, epoch in ((a, 1), (b, 2)):
        with a.writing() as cursor:  # as a former version left it
            row = replace(a.new_session("t", "s"), owner=server.owner, epoch=epoch)
            a.write_session(cursor, row)
        server.release("t", ["s"], unasked=True)
        assert a.session("t", "s") is None
    with a.writing() as cursor:
        a.write_session(cursor, replace(a.new_session("t", "s"), epoch=2))
    assert b.claim("t", "s", 0.0) is None, "its owner is dead"
    assert a.session("t", "s") is None
    assert b.append([record("r1")]) == [True]
    assert a.append([record("r2")]) == [False], "it is another's now"
    a.close()
    b.close()


def test_an_empty_session_of_a_later_epoch_stays_its_owners(tmp_path: Path) -> None:
    a = shared(tmp_path / "j", "a")
    with a.writing() as cursor:
        a.write_session(cursor, replace(a.new_session("t", "s"), epoch=2))
    a.reserve([reservation("r1", epoch=2)])
    a.reserve([reservation("r1", epoch=2, output=0)])
    assert a.append([record("r2", epoch=2)]) == [True]
    a.close()


def test_a_server_that_begins_settles_for_the_dead_alone(tmp_path: Path) -> None:
    a, b, c = (shared(tmp_path / "j", name) for name in "abc")
    a.ownership.beat()  # type: ignore[union-attr]
    a.reserve([reservation("r1", session="living")])
    b.reserve([reservation("r2", session="dead")])
    (settled,) = c.settle_left()
    assert (settled.response_id, settled.status) == ("r2", "failed")
    assert held(c, "living") == {"r1": 256}
    assert held(c, "dead") == {}
    assert b.append([record("r2", session="dead")]) == [False]
    assert a.append([record("r1", session="living")]) == [True]
    for each in (a, b, c):
        each.close()


def test_who_takes_a_dead_servers_session_hears_once_of_what_it_settled(tmp_path: Path) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    a.reserve([reservation("r1"), reservation("r2", session="other")])
    assert b.ownership is not None
    b.claim("t", "s", 0.0)
    assert [each.response_id for each in b.ownership.pop_settled()] == ["r1"]
    assert b.ownership.pop_settled() == []
    b.claim("t", "s", 0.0)
    assert b.ownership.pop_settled() == []
    assert [each.response_id for each in b.settle_left()] == ["r2"]
    assert b.ownership.pop_settled() == []
    a.close()
    b.close()


def test_what_was_settled_in_vain_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (shared(tmp_path / "j", name) for name in "ab")
    a.reserve([reservation("r1")])
    assert b.ownership is not None
    with monkeypatch.context() as patch:
        patch.setattr(b.ownership.journal, "account_of", unreachable)
        with pytest.raises(JournalUnavailable):
            b.claim("t", "s", 0.0)
    assert b.ownership.pop_settled() == []
    b.claim("t", "s", 0.0)
    assert [each.response_id for each in b.ownership.pop_settled()] == ["r1"]
    a.close()
    b.close()


def unreachable(*_: object) -> None:
    raise JournalUnavailable("the disk is busy")


def test_a_reservation_that_has_changed_is_damage(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    journal.reserve([reservation("r1")])
    with journal.writing() as cursor:
        cursor.execute("UPDATE reservation SET session = 'x'")
    with pytest.raises(JournalDamaged), journal.reading() as cursor:
        reservations(cursor, "t", "x")
    with pytest.raises(JournalDamaged):
        journal.settle_left()
    assert isinstance(journal, SqlTables)
    journal.close()


# The writer


class Watched(MemoryJournal):
    """Says what it was asked to write together, and is out of reach as often as asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[list[str], list[str]]] = []
        self.busy, self.go_on = threading.Event(), threading.Event()
        self.unreachable = 0
        self.bad: str | None = None

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        self.busy.set()
        self.go_on.wait(10)
        ids = [[each.response_id for each in some] for some in (turns, reserved)]
        if self.bad in ids[1]:
            raise RuntimeError(self.bad)
        answer = super().append(turns, reserved)
        self.calls.append((ids[0], ids[1]))
        return answer

    def reserve(self, reserved: Sequence[TurnRecord]) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise JournalUnavailable("locked")
        super().reserve(reserved)


def written(journal: Watched, *later: TurnRecord, end: Sequence[TurnRecord]) -> list[Verdict]:
    """The verdicts, after ``later`` was reserved and ``end`` ended while a commit was under way."""

    async def run() -> list[Verdict]:
        verdicts: list[Verdict] = []

        def tell(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
            verdicts.extend(verdict for _, verdict in pairs)

        writer = JournalWriter(journal, tell)
        writer.append(record("first"), None)
        await asyncio.to_thread(journal.busy.wait, 10)
        for each in later:
            writer.reserve(each)
        for each in end:
            writer.append(each, None)
        journal.go_on.set()
        await asyncio.wait_for(writer.drained(), 10)
        writer.close()
        return verdicts

    return asyncio.run(run())


def test_reservations_go_with_the_next_commit_and_none_behind_its_turn() -> None:
    journal = Watched()
    later = [reservation("r1"), reservation("r2"), reservation("r2", output=512)]
    written(journal, *later, end=[record("r1")])
    assert journal.calls == [(["first"], []), (["r1"], ["r2"])]
    assert held(journal) == {"r2": 512}


def test_a_reservation_alone_is_noted_at_once_or_as_soon_as_it_can_be() -> None:
    journal = Watched()
    journal.unreachable = 1
    journal.go_on.set()

    async def run() -> None:
        writer = JournalWriter(journal, lambda _: None)
        writer.reserve(reservation("r1"))
        while not held(journal):
            await asyncio.sleep(0.01)
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert journal.calls == []


def test_what_is_not_urgent_waits_for_something_to_go_with() -> None:
    journal = Watched()
    journal.go_on.set()
    noted: list[list[str]] = []
    reserve = journal.reserve

    def reserving(reserved: Sequence[TurnRecord]) -> None:
        noted.append([each.response_id for each in reserved])
        reserve(reserved)

    journal.reserve = reserving  # type: ignore[method-assign]

    async def run() -> None:
        writer = JournalWriter(journal, lambda _: None)
        writer.reserve(reservation("r1"), urgent=False)
        writer.append(record("r2"), None)
        await writer.drained()
        assert journal.calls == [(["r2"], ["r1"])]
        writer.reserve(reservation("r3"), urgent=False)
        writer.reserve(reservation("r4"))
        while len(noted) < 2:
            await asyncio.sleep(0.01)
        writer.reserve(reservation("r5"), urgent=False)
        while len(noted) < 3:
            await asyncio.sleep(0.01)
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert noted == [["r1"], ["r3", "r4"], ["r5"]]


@pytest.mark.parametrize(
    ("shared", "later_s", "together"),
    [(False, 0.0, True), (True, 0.0, False), (False, 60.0, False)],
)
def test_soon_after_a_commit_a_reservation_waits_for_the_next_unless_others_read_it(
    monkeypatch: pytest.MonkeyPatch, shared: bool, later_s: float, together: bool
) -> None:
    monkeypatch.setattr("sessions.journal.writer.SOON_S", 60.0)
    journal = Watched()
    monkeypatch.setattr(Watched, "shared", shared)
    journal.go_on.set()
    noted = threading.Event()
    reserve = journal.reserve

    def reserving(reserved: Sequence[TurnRecord]) -> None:
        reserve(reserved)
        noted.set()

    journal.reserve = reserving  # type: ignore[method-assign]
    now = [0.0]

    async def run() -> None:
        writer = JournalWriter(journal, lambda _: None, clock=lambda: now[0], pause=lambda _: None)
        writer.append(record("r1"), None)
        await writer.drained()
        now[0] += later_s
        writer.reserve(reservation("r2"))
        await asyncio.sleep(0)  # it is handed over
        while writer.num_queued:
            await asyncio.sleep(0)
        if not together:
            await asyncio.to_thread(noted.wait, 10)
        writer.append(record("r3"), None)
        await writer.drained()
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert journal.calls == [(["r1"], []), (["r3"], ["r2"] if together else [])]


def test_what_one_round_of_the_loop_hands_over_is_committed_together() -> None:
    journal = Watched()
    journal.go_on.set()

    async def run() -> None:
        writer = JournalWriter(journal, lambda _: None)
        for n in range(50):
            writer.append(record(f"r{n}"), None)
        await writer.drained()
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert [len(turns) for turns, _ in journal.calls] == [50]


@pytest.mark.parametrize(("count", "waits"), [(1, True), (FEW - 1, True), (FEW, False)])
def test_soon_after_a_commit_a_few_records_wait_for_others(count: int, waits: bool) -> None:
    journal = Watched()
    journal.go_on.set()
    pauses: list[float] = []
    now = [0.0]

    async def run() -> None:
        writer = JournalWriter(journal, lambda _: None, clock=lambda: now[0], pause=pauses.append)
        for n, pause_s in enumerate((0.0, BUSY_S / 2, BUSY_S * 2)):
            now[0] += pause_s
            for k in range(count):
                writer.append(record(f"r{n}.{k}"), None)
            await writer.drained()
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert pauses == ([GATHER_S] if waits else [])
    assert [len(turns) for turns, _ in journal.calls] == [count] * 3


def test_a_reservation_that_cannot_be_written_harms_no_turn() -> None:
    journal = Watched()
    journal.bad = "r2"
    verdicts = written(journal, reservation("r2"), end=[record("r1"), record("r3")])
    assert [verdict.written for verdict in verdicts] == [True, True, True]


def test_a_turn_whose_parent_is_gone_fails_alone_and_is_charged() -> None:
    journal = Watched()
    lost = record("r1", parent=record("r0"), session="mine", request_id="q")
    first, second, third = written(journal, end=[record("r2"), lost])
    assert (first.written, second.written, third.written) == (True, True, False)
    assert third.reason == "parent_deleted"
    row = journal.turn_of_request("t", "q")
    assert row is not None
    body = decode_turn(row)
    assert (body.status, body.reason, body.links, body.cost) == (
        "failed", "parent_deleted", (), lost.cost
    )  # fmt: skip
