"""Figures of a heartbeat are what the server does; contexts that were used lately are counted."""

from dataclasses import replace

from runtime.messages import StepStats
from sessions.journal.members import MemberLoad
from sessions.wire import member_load as module
from sessions.wire.member_load import ACTIVE_EVERY_S, ACTIVE_S, LoadReader, active_tokens
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import INFO
from tests.support.sessions_rig import Rig


def played() -> Rig:
    """Two sessions of a turn each, the second 100 s behind the first."""
    rig = Rig()
    for name in ("one", "two"):
        rig.connect().turn(input=f"hello {name}", keepwarm={"session": name})
        rig.clock.advance(100.0)
    return rig


def tokens_of(rig: Rig, name: str) -> int:
    session = rig.store.tenant("acme").known_session(name)
    assert session is not None
    return module.context_tokens(rig.store, session)


def test_contexts_of_sessions_that_were_active_since_are_counted() -> None:
    rig = played()
    one, two = tokens_of(rig, "one"), tokens_of(rig, "two")
    assert one > 10
    assert two > 10
    assert active_tokens(rig.store, rig.clock.now_s - 300) == one + two
    assert active_tokens(rig.store, rig.clock.now_s - 150) == two
    assert active_tokens(rig.store, rig.clock.now_s) == 0


def test_of_very_many_those_that_were_active_last_stand_for_all(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_LOOKED_AT", 1)
    rig = played()
    assert active_tokens(rig.store, 0.0) == 2 * tokens_of(rig, "two")


def test_the_figures_are_those_of_engine_store_and_totals() -> None:
    rig = played()
    board = make_dashboard(rig.clock, rig.store)
    reader = LoadReader(board, lambda: 5, rig.clock)
    assert reader.read() == MemberLoad(sockets=5, sessions=2)  # no engine: no capacity
    held = tokens_of(rig, "one") + tokens_of(rig, "two")
    board.engine_ready(replace(INFO, kv_capacity_tokens=held * 2))
    board.step_finished(StepStats(running=2, waiting=1, blocks_total=8, blocks_protected=2))
    for report in rig.reports:
        board.turn_finished(report)
    rig.clock.advance(ACTIVE_EVERY_S)
    found = reader.read()
    assert (found.running, found.waiting, found.kv_permille) == (2, 1, 250)
    assert found.active_permille == 500
    assert found.input_tokens == sum(each.usage.input_tokens for each in rig.reports)
    rig.clock.advance(ACTIVE_S)
    assert reader.read().active_permille == 0
