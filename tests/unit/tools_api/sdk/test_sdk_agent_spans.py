"""A program that traces has a span for each run, turn and tool; one that does not pays nothing."""

import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.fake_server import Close, FakeServer, call, message, turn
from tools_api.sdk import agent_spans
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.failures import TurnFailed
from tools_api.sdk.sync_client import Client
from tools_api.sdk.tool_making import tool

USED = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 4,
}
TOLD = {"session": "shop", "cost": {"turn": 0.25}, "kv": {"miss": {"first_sight": 10}}}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield found
    provider.shutdown()


def scripted(*rounds: list[dict[str, Any]]) -> FakeServer:
    left = iter(rounds)
    return FakeServer(lambda request: turn(request, next(left), usage=USED, keepwarm=TOLD))


def by_name(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def above(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@tool
def ask() -> str:
    """A span of the program's own lies beneath the tool's."""
    with trace.get_tracer("program").start_as_current_span("inside"):
        return "eight"


@tool(name="ask")
async def ask_in_loop() -> str:
    with trace.get_tracer("program").start_as_current_span("inside"):
        return "eight"


@pytest.mark.parametrize("tool_used", [ask, ask_in_loop])
def test_a_run_its_turns_and_its_tools_are_one_trace(
    exporter: InMemorySpanExporter, tool_used: Any
) -> None:
    with scripted([call("ask", "{}")], [message("done")]) as server, Client(server.url) as client:
        with trace.get_tracer("program").start_as_current_span("program") as program:
            client.session(name="shop").run("go", tools=[tool_used])
            root = program.get_span_context()
    spans = by_name(exporter)
    (agent,), turns, (used,) = (
        spans["invoke_agent shop"],
        spans["chat default"],
        spans["execute_tool ask"],
    )
    assert above(agent) == root.span_id
    assert {above(span) for span in (*turns, used)} == {agent.context.span_id}
    assert above(spans["inside"][0]) == used.context.span_id
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    sent = [request["keepwarm"]["traceparent"] for request in server.requests]
    assert sent == [f"00-{root.trace_id:032x}-{span.context.span_id:016x}-01" for span in turns]
    told = dict(agent.attributes or {})
    assert told["gen_ai.conversation.id"] == "shop"
    assert told["gen_ai.usage.input_tokens"] == 60
    assert told["keepwarm.cost.dollars"] == 0.5
    of_turn = dict(turns[0].attributes or {})
    assert of_turn["gen_ai.usage.cache_read.input_tokens"] == 20
    assert of_turn["keepwarm.miss.first_sight"] == 10
    assert dict(used.attributes or {})["gen_ai.tool.call.id"] == "call_1"


@pytest.mark.parametrize("shown", [True, False])
def test_texts_are_in_spans_only_where_they_are_asked_for(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setenv(agent_spans.CONTENT, str(shown).lower())
    with scripted([call("ask", "{}")], [message("done")]) as server, Client(server.url) as client:
        client.session(name="shop").run("my secret", tools=[ask])
    said = str([dict(span.attributes or {}) for span in exporter.get_finished_spans()])
    for text in ("my secret", "eight", "done"):
        assert (text in said) is shown


def test_a_child_that_a_tool_asks_lies_beneath_it(exporter: InMemorySpanExporter) -> None:
    rounds = [call("expert", '{"input": "?"}')], [message("eight")], [message("done")]
    with scripted(*rounds) as server, Client(server.url) as client:
        session = client.session(name="lead")
        expert = session.child(name="expert").as_tool("expert", "Knows numbers.")
        session.run("go", tools=[expert])
    spans = by_name(exporter)
    assert above(spans["invoke_agent expert"][0]) == spans["execute_tool expert"][0].context.span_id


def test_what_failed_is_an_error_and_what_was_sent_again_is_told(
    exporter: InMemorySpanExporter,
) -> None:
    rounds: Iterator[Callable[[dict[str, Any]], Sequence[Any]]] = iter(
        [
            lambda request: [Close(1012)],
            lambda request: turn(request, [call("ask", '{"wrong": 1}')]),
            lambda request: turn(request, [], status="failed"),
        ]
    )

    def answer(request: dict[str, Any]) -> Sequence[Any]:
        return next(rounds)(request)

    with FakeServer(answer) as server:
        with Client(server.url, retries=Retries(first_wait_s=0.01)) as client:
            with pytest.raises(TurnFailed):
                client.session(name="shop").run("go", tools=[ask])
    spans = by_name(exporter)
    (agent,), (first, failed), (used,) = (
        spans["invoke_agent shop"],
        spans["chat default"],
        spans["execute_tool ask"],
    )
    assert [event.name for event in first.events] == ["turn sent again"]
    assert first.status.is_ok or first.status.is_unset
    for span, kind in ((failed, "TurnFailed"), (agent, "TurnFailed"), (used, "tool failed")):
        assert not span.status.is_ok
        assert dict(span.attributes or {})["error.type"] == kind


async def test_a_stream_that_is_left_is_no_failure(exporter: InMemorySpanExporter) -> None:
    with scripted([message("done")]) as server:
        async with AsyncClient(server.url) as client:
            stream = client.session(name="shop").stream("go")
            await anext(stream)
            await stream.aclose()
    for span in exporter.get_finished_spans():
        assert dict(span.attributes or {})["keepwarm.status"] in ("left", "incomplete", "completed")
        assert span.status.is_unset


def test_a_collector_that_hangs_holds_no_turn_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that takes a connection and never answers, as OTLP's own exporter meets it: its
    queue is full long before the turns have ended, and nothing of it runs on a turn's way."""
    met, exporting = threading.Event(), set[int]()

    class Watched(OTLPSpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            exporting.add(threading.get_ident())
            met.set()
            return super().export(spans)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        provider = TracerProvider(shutdown_on_exit=False)
        hanging = BatchSpanProcessor(
            Watched(endpoint=address, timeout=60),
            max_queue_size=8, max_export_batch_size=1, schedule_delay_millis=1,
        )  # fmt: skip
        provider.add_span_processor(hanging)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        with scripted(*([message("done")] for _ in range(40))) as server:
            with Client(server.url) as client:
                session = client.session()
                session.respond("go")
                taken, _ = silent.accept()
                assert met.wait(60)
                with taken:
                    for _ in range(39):
                        session.respond("go")
                    assert session.stats.turns == 40
                    assert len(exporting) == 1
                    (worker,) = exporting
                    played = {threading.get_ident(), *(each.ident for each in portal_threads())}
                    assert worker not in played
        threading.Thread(target=provider.shutdown, daemon=True).start()


def portal_threads() -> list[threading.Thread]:
    """Those in which clients play their turns."""
    found = [each for each in threading.enumerate() if each.name.startswith("keepwarm")]
    assert found
    return found


def test_without_a_provider_a_turn_makes_at_most_ten_calls_more() -> None:
    """All that ``agent_spans`` calls counts, down to what OpenTelemetry, which is loaded, does."""
    calls: list[str] = []

    def profile(frame: Any, event: str, _: object) -> None:
        above = frame
        while above is not None and above.f_code.co_filename != agent_spans.__file__:
            above = above.f_back
        if event == "call" and above is not None:
            calls.append(frame.f_code.co_qualname)

    rounds = [[call("ask", "{}")] for _ in range(19)]
    with scripted(*rounds, [message("done")]) as server, Client(server.url) as client:
        threading.setprofile(profile)
        try:
            result = client.session().run("go", tools=[ask], max_turns=20)
        finally:
            threading.setprofile(None)
    assert len(result.responses) == 20
    assert 20 < len(calls) <= 10 * 20, Counter(calls)


def test_nothing_of_opentelemetry_is_loaded_by_the_client() -> None:
    program = (
        "import sys, keepwarm; keepwarm.Client, keepwarm.tool, keepwarm.Session;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
