"""An agent's trace reaches from its run down to the server's decode, over a killed server too."""

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keepwarm import Client, Retries, tool
from keepwarm.demo.agent import INSTRUCTIONS
from keepwarm.demo.child_server import ChildServer, child_server
from keepwarm.demo.shop import Product
from keepwarm.mcp import McpServer
from tests.e2e.test_tracing import _Collector, attributes
from tests.support.architecture import ROOT

BOTH = "What is the price of desk and the price of lamp?"
USAGE = {
    "input": "gen_ai.usage.input_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "output": "gen_ai.usage.output_tokens",
}
"""The ledger's name -> the conventions'."""
COST = "keepwarm.cost.dollars"
FORK = ("program", "lead")
"""The span above a fork's turn, and whose account it is."""
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

        at_once = threading.Barrier(2, timeout=60)

        @tool
        def get_price(product: Product) -> dict[str, int]:
            """Get the price of a product."""
            at_once.wait()  # passes only where another call runs meanwhile
            return {"price": 24}

        shop = McpServer.stdio(
            sys.executable, "-m", "tests.support.mcp_tools", "stdio",
            folder=ROOT, environment={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        bought = [each for each in stack.enter_context(shop).tools if each.name == "reserve"]
        tools = [crash, expert.as_tool("ask", "Knows it."), *bought]
        with trace.get_tracer("program").start_as_current_span("program") as root:
            lead.run(BOTH, tools=[get_price], temperature=0, instructions=INSTRUCTIONS)
            lead.run("go", tools=tools, tool_choice=forced("ask", "reserve", "crash", "ask"))
            lead.fork().respond("and else?", max_output_tokens=5)
            told = root.get_span_context()
        ledger = httpx.get(f"{served.url}/usage", timeout=60).json()["total"]
        served.stop()
        shown = [row for name in ("lead", "expert") for row in rows(served.journal, name)]
        ours = [span for span in exporter.get_finished_spans() if not of_mcp(span)]
        check_parents(ours, told)
        check_servers(ours, served.spans(), told)
        check_sums(ours, ledger, shown)


def of_mcp(span: ReadableSpan) -> bool:
    """A span of the MCP package's own: its server is opened before the run, in other traces."""
    scope = span.instrumentation_scope
    return scope is not None and scope.name.startswith("mcp")


def check_parents(ours: Sequence[Any], root: Any) -> None:
    names = Counter(span.name for span in ours)
    assert names["invoke_agent lead"] == 2
    assert names["execute_tool crash"] == 1
    assert names["execute_tool reserve"] >= 1
    assert names["execute_tool ask"] == names["invoke_agent expert"] >= 1
    first, second = (span for span in ours if span.name == "execute_tool get_price")
    assert max(first.start_time, second.start_time) < min(first.end_time, second.end_time)
    assert {span.context.trace_id for span in ours} == {root.trace_id}
    by_id = {span.context.span_id: span for span in ours}
    above = {span.context.span_id: by_id[span.parent.span_id].name for span in ours if span.parent}
    for span in ours:
        name, found = span.name.split()[0], above.get(span.context.span_id)
        session = (span.attributes or {}).get("gen_ai.conversation.id")
        match name:
            case "program":
                assert found is None
            case "invoke_agent":
                assert found == ("program" if session == "lead" else "execute_tool ask")
            case "execute_tool":
                assert found == "invoke_agent lead"
            case _:
                assert found == f"invoke_agent {session}" or (found, session) == FORK, span.name
    assert Counter(above.values())["program"] == 3, "two runs and the fork's turn"


def check_servers(ours: Sequence[Any], servers: Sequence[Any], root: Any) -> None:
    """Of the second life all turns are there; the first one's last seconds died with it."""
    turns = turns_of(ours)
    below = {attributes(span)["gen_ai.response.id"]: span for span in servers if is_turn(span)}
    (died,) = (span for span in ours if span.name == "execute_tool crash")
    second_life = {id_ for id_, span in turns.items() if span.start_time > died.end_time}
    assert second_life
    assert second_life <= below.keys() <= turns.keys()
    for id_, span in below.items():
        assert span.trace_id.hex() == f"{root.trace_id:032x}"
        assert span.parent_span_id.hex() == f"{turns[id_].context.span_id:016x}"
        parts = [part.name for part in servers if part.parent_span_id == span.span_id]
        assert parts == ["queue", "prefill", "decode"]


def check_sums(
    ours: Sequence[Any], ledger: dict[str, Any], shown: Sequence[dict[str, Any]]
) -> None:
    """A turn's usage is that of its row; runs are the sums of their turns, all are the ledger's."""
    turns = turns_of(ours)
    kept = {row["response"]: row for row in shown if row["response"][:5] == "resp_"}
    assert turns.keys() == kept.keys()
    for response, span in turns.items():
        for kind, name in USAGE.items():
            assert of(span, name) == kept[response][kind]
    for run in ours:
        if run.name.startswith("invoke_agent"):
            parts = [t for t in turns.values() if t.parent.span_id == run.context.span_id]
            assert of(run, "keepwarm.turns") == len(parts) > 0
            for name in USAGE.values():
                assert of(run, name) == sum(of(part, name) for part in parts)
            cost = sum(of(part, COST) for part in parts)
            assert of(run, COST) == pytest.approx(cost, abs=1e-12)
    for kind, name in USAGE.items():
        assert sum(of(span, name) for span in turns.values()) == ledger[f"{kind}_tokens"]
    cost = sum(of(span, COST) for span in turns.values())
    assert round(cost * 1e9) == ledger["cost_nano"] > 0


def turns_of(ours: Sequence[Any]) -> dict[str, Any]:
    """The client's spans of turns, by their responses."""
    return {of(span, "gen_ai.response.id"): span for span in ours if is_turn(span)}


def is_turn(span: Any) -> bool:
    return bool(span.name.startswith("chat "))


def of(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


def rows(journal: Path, name: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "keepwarm", "sessions", "show", name, "--json"]
    command += ["--journal", str(journal)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
