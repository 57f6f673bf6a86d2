"""The journal's writer: what goes together, what is tried again, and what is kept of the rest."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.journal.encoding import decode_turn
from sessions.journal.errors import JournalDamaged, JournalError, JournalUnavailable
from sessions.journal.journal import Journal
from sessions.journal.records import RESIDENCY, TurnRecord, session_account, usage_alone
from sessions.journal.samples import MINUTE_S, Sample
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import GIVE_UP_S, TOLD_AT_ONCE, JournalWriter, Ticket, Verdict
from tests.support.journals import record, reservation
from tests.support.memory_journal import MemoryJournal
from tests.unit.sessions.journal.test_journal import sample, shared


class Slow(MemoryJournal):
    """Holds its first commit until told, and fails as often as asked."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.failures: list[Exception] = []
        self.refused: set[str] = set()
        self.unfit: dict[str, Exception] = {}
        """What a record of that name raises, and all that are in one commit with it."""

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        self.begun.set()
        self.go_on.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        for turn in (*turns, *reserved):
            if turn.response_id in self.unfit:
                raise self.unfit[turn.response_id]
        self.batches.append([turn.response_id for turn in turns])
        super().append([turn for turn in turns if turn.response_id not in self.refused], reserved)
        return [turn.response_id not in self.refused for turn in turns]


Answers = list[tuple[object, Verdict]]


async def written(journal: Slow, names: Sequence[str], clock: Sequence[float] = ()) -> Answers:
    answers: Answers = []

    def tell(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
        answers.extend((ticket.key, verdict) for ticket, verdict in pairs)

    times = iter(clock)
    writer = JournalWriter(journal, tell, clock=lambda: next(times, 0.0), pause=lambda _: None)
    writer.append(record(names[0]), names[0])
    await asyncio.to_thread(journal.begun.wait, 10)
    for name in names[1:]:
        writer.append(record(name), name)
    journal.go_on.set()
    await asyncio.wait_for(writer.drained(), 10)
    writer.close()
    return answers


def test_what_gathers_during_a_commit_goes_into_the_next() -> None:
    journal = Slow()
    names = [f"r{n}" for n in range(20)]
    answers = asyncio.run(written(journal, names))
    assert journal.batches == [names[:1], names[1:]]
    assert [key for key, _ in answers] == names
    assert all(verdict.written for _, verdict in answers)


def test_sockets_are_served_between_the_verdicts_of_a_large_commit() -> None:
    """All are told before the writer counts as drained, in the order in which they were handed
    over."""
    names = [f"r{n}" for n in range(4 * TOLD_AT_ONCE)]
    turns_of_the_loop, answers = [0], []

    async def play() -> None:
        loop, journal = asyncio.get_running_loop(), Slow()

        def turn() -> None:
            turns_of_the_loop[0] += 1
            loop.call_soon(turn)

        def tell(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
            answers.append((turns_of_the_loop[0], [ticket.key for ticket, _ in pairs]))

        writer = JournalWriter(journal, tell, clock=lambda: 0.0, pause=lambda _: None)
        turn()
        for name in names:
            writer.append(record(name), name)
        journal.go_on.set()
        await asyncio.wait_for(writer.drained(), 10)
        assert journal.batches == [names]
        writer.close()

    asyncio.run(play())
    assert [key for _, keys in answers for key in keys] == names
    assert all(len(keys) <= TOLD_AT_ONCE for _, keys in answers)
    assert len({at for at, _ in answers}) == len(answers)


def test_a_stale_owner_is_told_of_its_own_turn_only() -> None:
    journal = Slow()
    journal.refused = {"r1"}
    answers = dict(asyncio.run(written(journal, ["r0", "r1", "r2"])))
    assert [answers[name].reason for name in ("r0", "r1", "r2")] == ["", "stale", ""]


def test_a_journal_out_of_reach_is_tried_again_then_given_up() -> None:
    journal = Slow()
    journal.failures = [JournalUnavailable("locked"), JournalUnavailable("locked")]
    answers = asyncio.run(written(journal, ["r0", "r1"]))
    assert all(verdict.written for _, verdict in answers)
    journal = Slow()
    journal.failures = [JournalUnavailable("full")] * 3
    answers = asyncio.run(written(journal, ["r0"], clock=[0.0, 1.0, GIVE_UP_S]))
    assert answers == [("r0", Verdict(written=False, reason="unavailable", message="full"))]


class Failing(Slow):
    """Notes what it is given of turns, and is out of reach for so many calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.failures = [JournalUnavailable("full")] * calls
        self.written = threading.Event()
        self.go_on.set()

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        owned = super().append(turns, reserved)
        self.written.set()
        return owned


async def refused_then(journal: Journal, first: TurnRecord, *later: TurnRecord) -> JournalWriter:
    """The writer at its end, after ``first`` was given up and the others came."""
    times, told = itertools.chain([0.0], itertools.repeat(GIVE_UP_S)), list[Verdict]()

    def tell(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
        told.extend(verdict for _, verdict in pairs)

    writer = JournalWriter(journal, tell, clock=lambda: next(times), pause=lambda _: None)
    for each in (first, *later):
        writer.append(each, None)
        await asyncio.wait_for(writer.drained(), 10)
    await asyncio.to_thread(writer.close)
    assert [verdict.written for verdict in told] == [False, *[True] * len(later)]
    return writer


def test_what_a_refused_turn_consumed_is_written_before_the_next_and_frees_what_it_held() -> None:
    journal, first = Failing(1), record("r0", accounts=("tenant",), request_id="q")
    journal.reserve([reservation("r0")])
    writer = asyncio.run(refused_then(journal, first, record("r1")))
    assert journal.batches == [["r0"], ["r1"]]
    assert journal.reservations("t", "s") == []
    assert journal.turn("t", "r0") is None
    row = journal.turn_of_request("t", "q")
    assert row is not None
    body = decode_turn(row)
    assert (body.status, body.reason, body.usage) == ("failed", "journal_unavailable", first.usage)
    assert journal.account("t", "tenant").cost == first.cost
    assert writer.lost == 0


def test_what_waits_of_a_refused_turn_is_tried_at_the_end_and_said_if_it_cannot_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Failing(1)
    assert asyncio.run(refused_then(journal, record("r0"))).lost == 0
    assert journal.batches == [["r0"]]
    journal = Failing(1000)
    assert asyncio.run(refused_then(journal, record("r0"))).lost == 1
    assert "usage of refused turns is not in the journal turns=1" in caplog.text


def test_what_waits_of_refused_turns_is_written_though_nothing_else_comes() -> None:
    async def story(journal: Failing) -> None:
        times = itertools.chain([0.0], itertools.repeat(GIVE_UP_S))
        writer = JournalWriter(
            journal, lambda _: None, clock=lambda: next(times), pause=lambda _: None
        )
        writer.append(record("r0"), None)
        await asyncio.wait_for(asyncio.to_thread(journal.written.wait, 10), 10)
        assert journal.batches == [["r0"]]
        writer.close()

    asyncio.run(story(Failing(2)))


class Ordered(Failing):
    """Remembers in which order usage was written and holds were noted."""

    def __init__(self, calls: int) -> None:
        super().__init__(calls)
        self.order: list[str] = []
        self.noted = threading.Event()

    def append(
        self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
    ) -> list[bool]:
        owned = super().append(turns, reserved)
        self.order += [f"{turn.response_id} is written" for turn in turns]
        return owned

    def reserve(self, reserved: Sequence[TurnRecord]) -> None:
        super().reserve(reserved)
        self.order += [f"{turn.response_id} is noted" for turn in reserved]
        self.noted.set()


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_what_a_turn_holds_is_noted_behind_what_a_refused_one_consumed(calls: int) -> None:
    """What the refused turn held and did not consume may be held by the other: were that noted
    first, both would be spent in full by a server that dies in between."""

    async def story(journal: Ordered) -> None:
        times = itertools.chain([0.0], itertools.repeat(GIVE_UP_S))
        writer = JournalWriter(
            journal, lambda _: None, clock=lambda: next(times), pause=lambda _: None
        )
        writer.append(record("r0"), None)
        await asyncio.wait_for(writer.drained(), 10)
        writer.reserve(reservation("r1"))
        await asyncio.wait_for(asyncio.to_thread(journal.noted.wait, 10), 10)
        await asyncio.to_thread(writer.close)
        assert journal.order == ["r0 is written", "r1 is noted"]

    asyncio.run(story(Ordered(calls)))


def test_no_more_waits_of_refused_turns_than_was_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sessions.journal.writer.MOST_UNPAID", 2)

    async def story(journal: Slow) -> JournalWriter:
        times = itertools.chain([0.0], itertools.repeat(GIVE_UP_S))
        writer = JournalWriter(
            journal, lambda _: None, clock=lambda: next(times), pause=lambda _: None
        )
        for name in ("r0", "r1", "r2", "r3"):
            writer.append(record(name), None)
        await asyncio.wait_for(writer.drained(), 10)
        await asyncio.to_thread(writer.close)
        return writer

    journal = Failing(1)
    assert asyncio.run(story(journal)).lost == 2
    assert journal.batches == [["r0", "r1"]]
    assert caplog.text.count("usage of a refused turn") == 1


def test_usage_whose_request_was_sent_again_keeps_none_of_the_id(tmp_path: Path) -> None:
    class Locked(SqliteJournal):
        """Until another turn of the same request is there."""

        locked = True

        def append(
            self, turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()
        ) -> list[bool]:
            if self.locked:
                self.locked = False
                super().append([record("again", request_id="q")])
                raise JournalUnavailable("locked")
            return super().append(turns, reserved)

    journal = Locked(tmp_path / "j", fingerprint=b"f")
    first = record("r0", request_id="q")
    asyncio.run(refused_then(journal, first, record("r1")))
    account = journal.account("t", session_account("s"))
    assert (account.turns, account.cost) == (3, 3 * first.cost)
    row = journal.turn_of_request("t", "q")
    assert row is not None
    assert row.response_id == "again"
    journal.close()


def test_kv_that_was_charged_is_no_turn_however_late_it_is_written() -> None:
    kv = replace(record("kv", said=False), status=RESIDENCY, reason=None)
    journal = Failing(1)
    asyncio.run(refused_then(journal, kv, record("r1")))
    assert journal.account("t", session_account("s")).turns == 1


@pytest.mark.parametrize("error", [RuntimeError("x"), JournalError("x"), JournalDamaged("x")])
def test_a_record_that_cannot_be_written_takes_no_other_with_it(error: Exception) -> None:
    journal = Slow()
    journal.unfit = {"r2": error}
    answers = asyncio.run(written(journal, ["r0", "r1", "r2", "r3"]))
    refused = Verdict(written=False, reason="error", message="x")
    assert [verdict for _, verdict in answers] == [*[Verdict(written=True)] * 2, refused,
                                                   Verdict(written=True)]  # fmt: skip
    assert journal.batches == [["r0"], ["r1"], ["r3"]]


def test_samples_wait_for_a_journal_that_is_out_of_reach_and_nobody_for_them() -> None:
    class Unreachable(Slow):
        tried = 0

        def keep_samples(self, kept: Sequence[Sample]) -> None:
            self.tried += 1
            if self.tried < 3:
                raise JournalUnavailable("gone") if self.tried == 1 else JournalUnavailable("still")
            super().keep_samples(kept)

    async def story(journal: Unreachable) -> None:
        told: list[object] = []
        writer = JournalWriter(journal, lambda pairs: told.extend(t.key for t, _ in pairs))
        journal.go_on.set()
        for number in (1, 2):
            writer.keep([sample(number)])
            writer.append(record(f"r{number}"), number)
            await asyncio.wait_for(writer.drained(), 10)
            assert told[-1] == number
        await asyncio.to_thread(writer.close)

    journal = Unreachable()
    asyncio.run(story(journal))
    assert journal.tried == 3
    assert journal.samples("", MINUTE_S, 0, own=True) == [sample(1), sample(2)]


def test_what_a_refused_turn_consumed_is_written_though_its_share_went_back(tmp_path: Path) -> None:
    journal = shared(tmp_path / "j", "a")
    turn = record("r0", accounts=("tenant",), shares=(("tenant", ("output",)),))
    assert journal.append([turn]) == [False], "it was never given any"
    assert journal.append([usage_alone(turn, reason="journal_unavailable")]) == [True]
    assert journal.account("t", "tenant").cost == turn.cost
    journal.close()
