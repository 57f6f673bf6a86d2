"""An agent's trace reaches from its run down to the server's decode, over a killed server too."""

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keepwarm import Client, Retries, tool
from keepwarm.demo.child_server import ChildServer, child_server
from keepwarm.mcp import McpServer
from tests.e2e.test_tracing import _Collector, attributes
from tests.support.architecture import ROOT

PATIENT = Retries(tries=2400, longest_wait_s=0.2)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield found
    provider.shutdown()


class Served:
    """A server on one port and one journal, whose spans go to one collector."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        collector = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Collector))
        collector.taken = []  # type: ignore[attr-defined]
        self.taken: list[Any] = collector.taken  # type: ignore[attr-defined]
        thread = threading.Thread(target=collector.serve_forever, args=(0.02,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(collector.shutdown)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        self.journal, self._log, self._stack = folder / "journal", folder / "log", stack
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._server: ChildServer | None = None

    def start(self) -> None:
        options = ["--threads", "1", "--port", str(self._port), "--journal", str(self.journal)]
        options += ["--otlp-traces", self._endpoint, "--price", "input=3,cached=0.3,output=15"]
        self._server = self._stack.enter_context(child_server(options, log=self._log))

    def killed_and_started(self) -> None:
        assert self._server is not None
        self._server.process.kill()
        self._server.process.wait()
        self.start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.process.terminate()
        self._server.process.wait()

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.taken
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def forced(*names: str) -> Any:
    """One tool a turn, by its number, and then a text."""
    return lambda number: (
        {"type": "function", "name": names[number]} if number < len(names) else "none"
    )


def test_one_trace_from_the_run_to_the_decode(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    with ExitStack() as stack:
        served = Served(tmp_path, stack)
        served.start()
        client = stack.enter_context(Client(served.url, retries=PATIENT))
        lead = client.session(name="lead", max_output_tokens=120)
        expert = lead.child(name="expert", max_output_tokens=5)

        @tool
        def crash() -> str:
            """The server dies while a tool runs."""
            served.killed_and_started()
            return "up again"

        shop = McpServer.stdio(
            sys.executable, "-m", "tests.support.mcp_tools", "stdio",
            folder=ROOT, environment={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        bought = [each for each in stack.enter_context(shop).tools if each.name == "reserve"]
        tools = [crash, expert.as_tool("ask", "Knows it."), *bought]
        with trace.get_tracer("program").start_as_current_span("program") as root:
            lead.run("go", tools=tools, tool_choice=forced("ask", "reserve", "crash", "ask"))
            lead.fork().respond("and else?", max_output_tokens=5)
            told = root.get_span_context()
        served.stop()
        shown = [row for name in ("lead", "expert") for row in rows(served.journal, name)]
        finished = exporter.get_finished_spans()
        check([span for span in finished if not of_mcp(span)], served.spans(), told, shown)


def of_mcp(span: ReadableSpan) -> bool:
    """A span of the MCP package's own: its server is opened before the run, in other traces."""
    scope = span.instrumentation_scope
    return scope is not None and scope.name.startswith("mcp")


def check(ours: Any, servers: list[Any], root: Any, shown: list[dict[str, Any]]) -> None:
    names = Counter(span.name for span in ours)
    assert names["invoke_agent lead"] == 1
    assert names["execute_tool crash"] == 1
    assert names["execute_tool reserve"] >= 1
    assert names["execute_tool ask"] == names["invoke_agent expert"] >= 1
    assert {span.context.trace_id for span in ours} == {root.trace_id}
    by_id = {span.context.span_id: span for span in ours}
    wanted = {"chat": ("invoke_agent", "program"), "execute_tool": ("invoke_agent",)}
    for span in ours:
        kind = span.name.split()[0]
        if kind in wanted:
            assert by_id[span.parent.span_id].name.split()[0] in wanted[kind], span.name
    turns = {of(span, "gen_ai.response.id"): span for span in ours if span.name[:4] == "chat"}
    below = [span for span in servers if span.name.startswith("chat ")]
    assert below, "the second life's turns at least"
    for span in below:
        above = turns[attributes(span)["gen_ai.response.id"]]
        assert span.trace_id.hex() == f"{root.trace_id:032x}"
        assert span.parent_span_id.hex() == f"{above.context.span_id:016x}"
        parts = [part.name for part in servers if part.parent_span_id == span.span_id]
        assert parts == ["queue", "prefill", "decode"]
    kept = {row["response"]: row for row in shown if row["response"][:5] == "resp_"}
    assert turns.keys() == kept.keys()
    for response, span in turns.items():
        assert of(span, "gen_ai.usage.input_tokens") == kept[response]["input"]
        assert of(span, "gen_ai.usage.output_tokens") == kept[response]["output"]


def of(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


def rows(journal: Path, name: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "keepwarm", "sessions", "show", name, "--json"]
    command += ["--journal", str(journal)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
