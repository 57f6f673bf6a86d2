"""Times and misses as the client is told."""

import pytest

from runtime.messages import SequenceStart
from sessions.durable.ledger import Ledger, PriceTable, TurnUsage
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.durable.turn_stats import Pace, TurnClock, TurnStats


def test_the_queue_time_has_a_part_here_and_a_part_in_the_engine() -> None:
    clock = TurnClock(arrival_s=10.0)
    clock.submitted(12.0)
    clock.admitted(0.5)
    assert clock.queue_s == 2.5


@pytest.mark.parametrize(
    ("tokens", "first_s", "end_s", "pace"),
    [(1, 1.0, 2.0, None), (5, 1.0, 3.0, 2.0), (5, 1.0, 1.0, None), (0, None, 3.0, None)],
)
def test_the_pace_counts_from_the_first_token(
    tokens: int, first_s: float | None, end_s: float, pace: float | None
) -> None:
    clock = TurnClock(arrival_s=0.0)
    if first_s is not None:
        clock.token(first_s)
        clock.token(first_s + 0.5)
    clock.end(end_s)
    assert clock.tokens_per_s(tokens) == pace
    assert clock.ttft_s == first_s


def test_a_turn_that_was_never_admitted_consumed_nothing() -> None:
    turn = TurnStats(
        session="s",
        number=1,
        shown=True,
        ledger=Ledger(PriceTable()),
        clock=TurnClock(arrival_s=0.0),
    )
    assert turn.usage(output_tokens=0, reasoning_tokens=0) == TurnUsage()
    shown = turn.full(TurnUsage(), "budget_exhausted")
    assert shown is not None
    assert shown["kv"] == {"cached": 0, "written": 0, "miss": {}, "block_seconds": 0.0}
    assert shown["reason"] == "budget_exhausted"


@pytest.mark.parametrize("shown", [True, False])
def test_what_was_read_is_told_once_the_turn_is_admitted(shown: bool) -> None:
    clock, ledger = TurnClock(arrival_s=0.0), Ledger(PriceTable())
    turn = TurnStats(session="s", number=1, shown=shown, ledger=ledger, clock=clock)
    assert turn.begun() == ({"session": "s", "turn": 1} if shown else None)
    turn.admitted(SequenceStart(input_tokens=40, cached_tokens=32, queue_s=0.0))
    told = turn.brief()
    assert turn.begun() == (told | {"tokens": {"input": 40, "cached": 32}} if told else None)


CUT = MissReason.TRUNCATED


@pytest.mark.parametrize(
    ("cut", "causes", "misses", "told"),
    [
        (False, {"header_changed": 30}, [(MissReason.NEW_INPUT, 30)], {"header_changed": 30}),
        (True, {"header_changed": 30}, [(CUT, 20)], {"truncated": 20, "first_sight": 10}),
        (True, {"first_sight": 30}, [(CUT, 20)], {"truncated": 20, "first_sight": 10}),
        (True, {"evicted": 9, "first_sight": 3}, [(CUT, 3)], {"evicted": 9, "truncated": 3}),
        (True, {"header_changed": 5}, [], {"truncated": 0, "first_sight": 5}),
        (
            True,
            {"header_changed": 30},
            [(MissReason.TOOLS_CHANGED, 20)],
            {"header_changed": 30, "truncated": 0},
        ),
    ],
)
def test_what_a_cut_costs_is_told_beside_the_caches_own_account(
    cut: bool,
    causes: dict[str, int],
    misses: list[tuple[MissReason, int]],
    told: dict[str, int],
) -> None:
    turn = TurnStats(
        session="s",
        number=2,
        shown=True,
        ledger=Ledger(PriceTable()),
        clock=TurnClock(arrival_s=0.0),
        cut=cut,
    )
    turn.admitted(
        SequenceStart(input_tokens=100, cached_tokens=50, queue_s=0.0, miss_causes=causes)
    )
    turn.misses = tuple(Miss(reason=reason, tokens=tokens) for reason, tokens in misses)
    shown = turn.full(TurnUsage(), None)
    assert shown is not None
    assert shown["kv"]["miss"] == told
    assert sum(told.values()) == sum(causes.values())


def test_the_pace_of_the_server_follows_the_intervals_between_ends() -> None:
    pace = Pace()
    assert pace.wait_s(0) == 1.0
    for end in range(100):
        pace.sequence_ended(end * 0.25)
    assert pace.wait_s(3) == pytest.approx(1.0, rel=0.01)
