"""Spans as the SDK makes them equal the ledger, and lie where the client wants them."""

import random
from collections import Counter
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sessions.durable.ledger import PriceTable
from sessions.pages import spans
from sessions.pages.span_export import SpanExport
from sessions.pages.spans import SpanData, turn_span
from tests.support.sessions_rig import END, Rig

PRICES = PriceTable.per_million(input_uncached=3, input_cached=0.3, output=15)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPAN = SpanData(name="chat m", begin_ns=1_000, end_ns=2_000)


def exported(*turns: SpanData) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    assert SpanExport(exporter, version="1").send(turns)
    return list(exporter.get_finished_spans())


def play(rig: Rig, seed: int, turns: int) -> None:
    """Turns of several sessions that end in all ways but by a fault of ours."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    client = rig.connect()
    for number in range(turns):
        session = f"s{dice.randrange(4)}"
        options: dict[str, Any] = {"session": session}
        if dice.random() < 0.2:
            options["budget"] = {"output": dice.choice([0, 3, 1000]), "cost": 0.01}
        client.create(input=f"turn {number} " * dice.randrange(1, 9), keepwarm=options)
        while rig.engine.open:
            (turn,) = rig.engine.open.values()
            kind = dice.choice(["complete", "cut", "cancel"])
            if kind == "cancel":
                rig.emit("any"[: turn.request.max_new_tokens], None, turn.request)
                client.send(type="response.cancel")
            else:
                text = "an answer"[: turn.request.max_new_tokens]
                whole = kind == "complete" and len(text) < turn.request.max_new_tokens
                rig.reply(text + (END if whole else ""), turn.request)


@pytest.mark.parametrize("seed", range(5))
def test_the_spans_of_all_turns_add_up_to_the_ledger(seed: int) -> None:
    rig = Rig(prices=PRICES)
    play(rig, seed, turns=40)
    found = exported(*(turn_span(report, 1000.0) for report in rig.reports))
    turns = [span for span in found if span.name.startswith("chat ")]
    assert len(turns) == len(rig.reports) == 40
    summed: dict[str, Counter[str]] = {}
    for span in turns:
        told = dict(span.attributes or {})
        of_session = summed.setdefault(str(told[spans.CONVERSATION_ID]), Counter())
        for name, value in told.items():
            if isinstance(value, int):
                of_session[name] += value
    views = {view.session: view for view in rig.store.sessions()[1]}
    assert summed.keys() == views.keys()
    for session, view in views.items():
        of_session = summed[session]
        assert of_session[spans.USAGE_INPUT_TOKENS] == view.input_tokens
        assert of_session[spans.USAGE_CACHE_READ_INPUT_TOKENS] == view.cached_tokens
        assert of_session[spans.USAGE_OUTPUT_TOKENS] == view.output_tokens
        assert of_session["keepwarm.cost.nano_dollars"] == view.cost
        assert of_session["keepwarm.saved.nano_dollars"] == view.saved
    computed = sum(
        int(dict(span.attributes or {})["keepwarm.tokens.computed"])  # type: ignore[arg-type]
        for span in found
        if span.name == "prefill"
    )
    written = spans.USAGE_CACHE_CREATION_INPUT_TOKENS
    assert computed == sum(of_session[written] for of_session in summed.values()) > 0


def test_children_lie_under_their_turn_and_the_turn_under_the_clients_span() -> None:
    child = SpanData(name="queue", begin_ns=1_000, end_ns=1_500)
    queue, turn = exported(
        SpanData(name="chat m", begin_ns=1_000, end_ns=2_000, traceparent=PARENT, children=(child,))
    )
    assert turn.parent is not None
    assert queue.parent is not None
    assert f"{turn.parent.trace_id:032x}" == PARENT[3:35]
    assert f"{turn.parent.span_id:016x}" == PARENT[36:52]
    assert turn.parent.is_remote
    assert queue.parent.span_id == turn.context.span_id
    assert queue.context.trace_id == turn.context.trace_id == turn.parent.trace_id
    assert (turn.kind, turn.start_time, turn.end_time) == (SpanKind.SERVER, 1_000, 2_000)
    assert (queue.start_time, queue.end_time) == (1_000, 1_500)


def test_turns_without_a_span_above_begin_traces_of_their_own() -> None:
    first, second = exported(SPAN, SPAN)
    assert first.parent is None
    assert first.context.trace_id != second.context.trace_id


def test_a_client_that_does_not_sample_gets_no_spans() -> None:
    parent = PARENT[:-2] + "00"
    assert exported(SpanData(name="chat m", begin_ns=1, end_ns=2, traceparent=parent)) == []


def test_a_failed_turn_is_an_error_and_says_why() -> None:
    (turn,) = exported(SpanData(name="chat m", begin_ns=1, end_ns=2, error="output_invalid"))
    assert (turn.status.status_code, turn.status.description) == (
        StatusCode.ERROR,
        "output_invalid",
    )


def test_the_service_is_named_and_the_environment_may_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (turn,) = exported(SPAN)
    named = turn.resource.attributes
    assert (named["service.name"], named["service.version"]) == ("keepwarm", "1")
    assert turn.instrumentation_scope is not None
    assert turn.instrumentation_scope.schema_url == spans.CONVENTIONS
    monkeypatch.setenv("OTEL_SERVICE_NAME", "agents")
    (turn,) = exported(SPAN)
    assert turn.resource.attributes["service.name"] == "agents"


def test_an_exporter_that_fails_is_told_of_and_the_next_batch_is_its_own() -> None:
    class Failing(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            super().export(spans)
            return SpanExportResult.FAILURE

    exporter = Failing()
    export = SpanExport(exporter, version="1")
    assert not export.send([SPAN])
    exporter.clear()
    assert not export.send([SPAN])
    assert len(exporter.get_finished_spans()) == 1
