"""What a server stands on: reasons, when they begin and end, and who waits for that."""

import asyncio
import logging

import pytest

from sessions.ground import DRAINING, ENGINE, HEALTH_S, JOURNAL, Ground


class Stage:
    """A ground whose parts and clock are set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: dict[str, str | None] = {ENGINE: None, JOURNAL: None}
        self.ground = Ground(lambda: self.now)
        for part in self.told:
            self.ground.stands_on(part, lambda part=part: self.told[part])

    def look(self, after_s: float = 0.0, **told: str | None) -> bool:
        """Whether it is ready then."""
        self.now += after_s
        self.told |= told
        self.ground.look()
        return self.ground.ready


def test_it_is_ready_while_every_part_holds_and_says_why_it_is_not() -> None:
    stage = Stage()
    assert stage.look()
    assert not stage.look(journal="full", engine="starting")
    assert stage.ground.reasons == {ENGINE: "starting", JOURNAL: "full"}
    assert not stage.look(journal=None, engine=None)
    assert stage.ground.reasons == {JOURNAL: "full"}, "an engine that is up holds at once"
    assert stage.look(HEALTH_S)


def test_turns_begin_whatever_does_not_hold_but_the_journal() -> None:
    stage = Stage()
    stage.look(engine="starting")
    assert stage.ground.writable
    stage.look(journal="full")
    assert not stage.ground.writable


def test_a_part_that_comes_and_goes_holds_again_only_after_a_second_of_health() -> None:
    stage = Stage()
    for number in range(20):
        assert not stage.look(0.2, journal=None if number % 2 else "flickers")
    stage.look(0.2, journal=None)
    assert not stage.look(HEALTH_S / 2)
    assert stage.look(HEALTH_S / 2)


def test_a_part_that_is_left_out_is_told_and_does_not_count() -> None:
    stage = Stage()
    stage.ground.left_out = frozenset({JOURNAL})
    assert stage.look(journal="gone")
    assert stage.ground.reasons == {JOURNAL: "gone"}
    assert not stage.ground.writable, "no turn begins all the same"
    assert not stage.look(engine="starting")


def test_a_reason_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    with caplog.at_level(logging.DEBUG, "sessions.ground"):
        for number in range(40):
            stage.look(0.25, journal=f"full {number}")
        stage.ground.turn_lost()
        stage.ground.turn_lost()
        for _ in range(8):
            stage.look(0.25, journal=None)
    begun, ended = caplog.messages
    assert "part=journal" in begun
    assert "full 0" in begun
    assert "turns=2" in ended
    assert "after_s=11.0" in ended


def test_a_drain_is_a_reason_and_logged_by_who_drains(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.ground.stands_on(DRAINING, lambda: "shutting down")
    with caplog.at_level(logging.DEBUG, "sessions.ground"):
        assert not stage.look()
    assert not caplog.messages


def test_who_waits_for_the_journal_goes_on_with_it_or_is_refused() -> None:
    async def scenario() -> None:
        stage = Stage()
        assert await stage.ground.wait_writable(0.0)
        stage.look(journal="full")
        assert not await stage.ground.wait_writable(0.0)
        waiting = asyncio.ensure_future(stage.ground.wait_writable(60.0))
        await asyncio.sleep(0)
        stage.look(journal=None)
        stage.look(HEALTH_S)
        assert await waiting

    asyncio.run(scenario())
