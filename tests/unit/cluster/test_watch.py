"""Who was heard lately, by the balancer's own clock alone."""

from dataclasses import replace

from cluster.watch import LEAVING_S, PRESSED_PERMILLE, PRESSED_S, Watch
from sessions.journal.members import Member, MemberLoad, MemberState, Presence


def row(heartbeat_ms: int, *, kv: int = 0, told_ms: int = 0) -> Member:
    said = Presence(
        cluster="c",
        address="a:1",
        identity="m",
        state=MemberState.READY,
        load=MemberLoad(kv_permille=kv),
    )
    return Member(owner="a", heartbeat_ms=heartbeat_ms, presence=said, told_ms=told_ms)


def test_a_member_is_heard_when_its_row_changes_whatever_the_databases_clock_says() -> None:
    watch = Watch(2.0)
    assert watch.look([row(9_000_000)], 100.0)[0].fresh
    assert watch.look([row(9_000_000)], 102.0)[0].fresh
    assert not watch.look([row(9_000_000)], 102.1)[0].fresh
    assert watch.look([row(5)], 103.0)[0].fresh  # the clock was set back


def test_silence_while_the_rows_could_not_be_read_makes_nobody_dead() -> None:
    watch = Watch(2.0)
    watch.look([row(1)], 0.0)
    watch.nothing_read()
    assert watch.look([row(1)], 60.0)[0].fresh
    assert not watch.look([row(1)], 62.5)[0].fresh


def test_kv_that_was_full_for_a_moment_presses_nobody() -> None:
    watch, full = Watch(2.0), row(1, kv=PRESSED_PERMILLE)
    assert not watch.look([full], 0.0)[0].pressed
    assert not watch.look([full], PRESSED_S - 0.1)[0].pressed
    assert watch.look([full], PRESSED_S)[0].pressed
    assert not watch.look([replace(full, presence=row(1).presence)], PRESSED_S + 1)[0].pressed
    assert not watch.look([full], PRESSED_S + 2)[0].pressed


def test_who_was_told_was_told_a_moment_ago_only_for_a_moment() -> None:
    watch = Watch(2.0)
    assert not watch.look([row(1)], 0.0)[0].told_now
    assert watch.look([row(2, told_ms=7)], 1.0)[0].told_now
    assert watch.look([row(3, told_ms=7)], 2.0)[0].told_now
    assert not watch.look([row(4, told_ms=7)], 2.1)[0].told_now


def test_one_that_drains_may_be_silent_for_longer() -> None:
    watch, draining = Watch(2.0), row(1)
    said = replace(draining.presence, state=MemberState.DRAINING)
    draining = replace(draining, presence=said)
    assert watch.look([draining], 0.0)[0].fresh
    assert watch.look([draining], LEAVING_S)[0].fresh
    assert not watch.look([draining], LEAVING_S + 0.1)[0].fresh
