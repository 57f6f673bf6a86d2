"""Sessions go to other servers once they are idle, and what fails meanwhile is tried again."""

import asyncio
import logging
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
