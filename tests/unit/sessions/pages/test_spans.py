"""A turn as a span, and a queue that never holds up who hands one over."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from sessions.durable.ledger import TurnReport, TurnUsage
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.pages import spans
from sessions.pages.spans import SpanData, SpanQueue, turn_span
from tests.support.clock import FakeClock

REPORT = TurnReport(
    tenant="acme",
    session="s",
    turn=2,
    response_id="resp_1",
    status="completed",
    reason=None,
    usage=TurnUsage(input_tokens=100, cached_tokens=75, output_tokens=20, forwards=10),
    cost=2_000_000_000,
    saved=1,
    queue_s=0.1,
    ttft_s=0.25,
    total_s=1.0,
    misses=(Miss(reason=MissReason.EVICTED, tokens=25),),
    model="default",
)


class Collector:
    """Takes turns only while it is allowed to."""

    def __init__(self, *, arrives: bool = True) -> None:
        self.names: list[str] = []
        self.arrives = arrives
        self.may = threading.Event()
        self.asked = threading.Event()

    def __call__(self, turns: Sequence[SpanData]) -> bool:
        self.asked.set()
        assert self.may.wait(30)
        self.names += [str(turn.attributes[spans.RESPONSE_ID]) for turn in turns]
        return self.arrives


def queue(collector: Collector, capacity: int = 100) -> SpanQueue:
    return SpanQueue(collector, wall_clock=FakeClock(1000.0), capacity=capacity)


def numbered(number: int) -> TurnReport:
    return replace(REPORT, response_id=str(number))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (getattr(spans, name), getattr(gen_ai_attributes, f"GEN_AI_{name}"))
        for name in sorted(vars(spans))
        if name.startswith(
            ("OPERATION_", "PROVIDER_", "REQUEST_", "RESPONSE_", "USAGE_", "CONVERSATION_")
        )
    ],
)
def test_names_are_those_of_the_conventions(ours: str, theirs: str) -> None:
    assert ours == theirs


def test_the_schema_is_one_that_was_published() -> None:
    assert spans.CONVENTIONS in {schema.value for schema in Schemas}
    assert error_attributes.ERROR_TYPE == spans.ERROR_TYPE


def test_a_turn_has_a_child_for_each_part_of_its_time_and_they_fill_it() -> None:
    span = turn_span(REPORT, 1000.0)
    assert (span.name, span.begin_ns, span.end_ns) == ("chat default", 999 * 10**9, 1000 * 10**9)
    times = [(child.name, child.begin_ns - span.begin_ns) for child in span.children]
    assert times == [("queue", 0), ("prefill", 100_000_000), ("decode", 250_000_000)]
    ends = [child.end_ns for child in span.children]
    assert [child.begin_ns for child in span.children[1:]] + [span.end_ns] == ends
    prefill, decode = span.children[1:]
    assert prefill.attributes == {"keepwarm.tokens.computed": 25, "keepwarm.miss.evicted": 25}
    assert decode.attributes == {spans.USAGE_OUTPUT_TOKENS: 20, "keepwarm.forwards": 10}


@pytest.mark.parametrize(
    ("report", "children"),
    [
        (replace(REPORT, ttft_s=None), ["queue", "prefill"]),
        (replace(REPORT, ttft_s=None, usage=TurnUsage(), queue_s=0.0), ["queue"]),
        (replace(REPORT, queue_s=5.0), ["queue", "prefill", "decode"]),
        (replace(REPORT, ttft_s=5.0), ["queue", "prefill", "decode"]),
        (replace(REPORT, ttft_s=0.01), ["queue", "prefill", "decode"]),
    ],
    ids=["no token", "not admitted", "clocks apart", "late token", "early token"],
)
def test_no_child_reaches_out_of_its_turn(report: TurnReport, children: list[str]) -> None:
    span = turn_span(report, 1000.0)
    assert [child.name for child in span.children] == children
    for child in span.children:
        assert span.begin_ns <= child.begin_ns <= child.end_ns <= span.end_ns


def test_a_turn_that_failed_says_why_and_one_that_was_cut_is_no_error() -> None:
    failed = turn_span(replace(REPORT, status="failed", reason="output_invalid"), 1.0)
    assert failed.error == failed.attributes[spans.ERROR_TYPE] == "output_invalid"
    cut = turn_span(replace(REPORT, status="incomplete", reason="max_output_tokens"), 1.0)
    assert cut.error is None
    assert cut.attributes[spans.RESPONSE_FINISH_REASONS] == ("max_output_tokens",)


def test_turns_arrive_in_order_and_are_counted() -> None:
    collector = Collector()
    collector.may.set()
    waiting = queue(collector, capacity=10_000)
    for number in range(300):
        waiting.turn_finished(numbered(number))
    waiting.close()
    assert collector.names == [str(number) for number in range(300)]
    assert waiting.counts() == {"sent": 300, "failed": 0, "dropped": 0}


def test_a_collector_that_stalls_holds_nobody_up_and_what_is_dropped_is_counted() -> None:
    collector = Collector()
    waiting = queue(collector, capacity=5)
    waiting.turn_finished(numbered(0))
    assert collector.asked.wait(30)  # the thread has it, and waits
    for number in range(1, 11):
        waiting.turn_finished(numbered(number))
    assert waiting.counts()["dropped"] == 5
    collector.may.set()
    waiting.close()
    assert collector.names == ["0", "1", "2", "3", "4", "5"]
    assert waiting.counts() == {"sent": 6, "failed": 0, "dropped": 5}


def test_turns_that_do_not_arrive_are_counted_whether_it_is_said_or_raised() -> None:
    collector = Collector(arrives=False)
    collector.may.set()
    waiting = queue(collector)
    waiting.turn_finished(REPORT)
    waiting.close()
    assert waiting.counts()["failed"] == 1

    def broken(_: Sequence[SpanData]) -> bool:
        raise OSError("no route")

    waiting = SpanQueue(broken, wall_clock=FakeClock(1.0))
    waiting.turn_finished(REPORT)
    waiting.close()
    assert waiting.counts()["failed"] == 1


def test_the_end_does_not_wait_for_a_collector_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions.pages.spans.CLOSE_TIMEOUT_S", 0.01)
    collector = Collector()
    waiting = queue(collector)
    waiting.turn_finished(numbered(0))
    assert collector.asked.wait(30)
    waiting.turn_finished(numbered(1))
    waiting.close()
    waiting.turn_finished(numbered(2))
    assert waiting.counts() == {"sent": 0, "failed": 0, "dropped": 2}
    collector.may.set()
