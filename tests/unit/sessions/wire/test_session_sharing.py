"""Sessions go to other servers once they are idle, and what fails meanwhile is tried again."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from sessions.journal.errors import JournalDamaged, JournalUnavailable
from sessions.wire.session_sharing import SessionSharing, logged
from tests.support.clock import FakeClock
from tests.support.journals import over
from tests.support.sessions_rig import make_service
from tests.support.timed_journal import TimedJournal


def test_a_session_in_use_is_kept_until_its_turn_has_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = TimedJournal(
            tmp_path / "j", lambda: 1_000_000, fingerprint=b"f", owner="a", shared=True
        )
        service, desk = over(journal, make_service(FakeClock(1000.0)))
        sharing = desk.sharing
        assert isinstance(sharing, SessionSharing)
        tenant = service.store.tenant("t")
        tenant.session("busy").start_turn("r", None, 1000.0)
        tenant.session("idle")
        await sharing.let_go([("t", "busy"), ("t", "idle"), ("t", "unknown")])
        assert (tenant.known_session("idle"), sharing.kept) == (None, True)
        busy = tenant.known_session("busy")
        assert busy is not None
        busy.end_turn("r", 1001.0)
        await sharing.let_go([("t", "busy")])
        assert tenant.known_session("busy") is None
        await desk.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_each_heartbeat_tells_the_journals_clock(tmp_path: Path) -> None:
    """This machine's may be wrong, and may jump: turns are written by the one that is common."""

    async def scenario() -> None:
        told, machine = FakeClock(1_800_000_000.0), FakeClock(5.0)
        journal = TimedJournal(
            tmp_path / "j", lambda: round(told() * 1000), fingerprint=b"f", owner="a", shared=True
        )
        service = make_service(FakeClock(1000.0))
        service.store.wall_clock = machine
        service, desk = over(journal, service)
        assert isinstance(desk.sharing, SessionSharing)
        living = asyncio.create_task(desk.sharing.live(lambda _: None))
        for jump_s in (0.0, 4e9, -3e9):
            machine.advance(jump_s)
            told.advance(7.0)
            async with asyncio.timeout(20):
                while abs(service.store.journal_clock() - told()) > 0.001:
                    await asyncio.sleep(0.01)
        living.cancel()
        await desk.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("call", ["beat", "wanted"])
def test_a_commit_that_does_not_end_is_told_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As of a PostgreSQL that waits for its synchronous standby, while it can be read."""
    monkeypatch.setattr("sessions.wire.session_sharing.HANGS_S", 0.02)

    async def scenario() -> None:
        journal = TimedJournal(
            tmp_path / "j", lambda: 1_000_000, fingerprint=b"f", owner="a", shared=True
        )
        _, desk = over(journal, make_service(FakeClock(1000.0)))
        assert isinstance(desk.sharing, SessionSharing)
        committed, make = threading.Event(), getattr(type(journal.ownership), call)

        def slow(*given: object, **options: object) -> object:
            committed.wait(20)
            return make(*given, **options)

        monkeypatch.setattr(type(journal.ownership), call, slow)
        living = asyncio.create_task(desk.sharing.live(lambda _: None))
        async with asyncio.timeout(20):
            while desk.trouble is None:
                await asyncio.sleep(0.001)
            assert desk.trouble == "the journal does not end a commit"
            committed.set()
            while desk.trouble is not None:
                await asyncio.sleep(0.001)
        living.cancel()
        await desk.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (JournalUnavailable("away"), logging.DEBUG),
        (JournalDamaged("torn"), logging.WARNING),
        (ValueError("x"), logging.ERROR),
    ],
)
def test_an_error_of_what_is_tried_again_is_logged_by_its_weight(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with logged("heartbeat"):
        raise error
    assert [record.levelno for record in caplog.records] == [level]
    with pytest.raises(asyncio.CancelledError), logged("heartbeat"):
        raise asyncio.CancelledError
