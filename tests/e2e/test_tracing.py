"""``keepwarm serve --otlp-traces`` sends a collector what its turns were."""

import gzip
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from keepwarm.demo.child_server import child_server
from sessions.command.options import OptionError
from sessions.command.tracing import Tracing

MODEL = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--threads", "1"]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.taken.append(ExportTraceServiceRequest.FromString(body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Its endpoint, and the requests it took."""
    with HTTPServer(("127.0.0.1", 0), _Collector) as server:
        server.taken = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", server.taken  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes
    }


def test_a_server_sends_its_turns_under_the_clients_span_before_it_ends(tmp_path: Path) -> None:
    body = {"model": "default", "input": "Hi", "max_output_tokens": 6}
    with collector() as (endpoint, taken):
        with child_server([*MODEL, "--otlp-traces", endpoint], log=tmp_path / "log") as server:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                traced = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
                by_header = client.post("/responses", json=body, headers=traced).json()
                untold = {"traceparent": "00-nonsense"}
                alone = client.post("/responses", json=body, headers=untold).json()
                wrong = client.post("/responses", json=body | {"keepwarm": untold})
                numbers = client.get("http://" + server.url.split("/")[2] + "/metrics").text
        assert 'keepwarm_spans_turns_total{outcome="dropped"} 0.0' in numbers
    assert wrong.status_code == 400
    assert json.loads(wrong.text)["error"]["param"] == "keepwarm.traceparent"
    spans = [
        span
        for request in taken
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    turns = {
        attributes(span)["gen_ai.response.id"]: span for span in spans if span.name[:5] == "chat "
    }
    assert turns.keys() == {by_header["id"], alone["id"]}
    for response in (by_header, alone):
        told, usage = attributes(turns[response["id"]]), response["usage"]
        assert told["gen_ai.usage.input_tokens"] == usage["input_tokens"]
        assert told["gen_ai.usage.output_tokens"] == usage["output_tokens"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        assert told["gen_ai.usage.cache_read.input_tokens"] == cached
    under = turns[by_header["id"]]
    assert (under.trace_id.hex(), under.parent_span_id.hex()) == (TRACE, SPAN)
    assert turns[alone["id"]].parent_span_id == b""
    children = [span.name for span in spans if span.parent_span_id == under.span_id]
    assert children == ["queue", "prefill", "decode"]


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sessions.pages.span_export", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(OptionError, match=r"pip install 'keepwarm\[otel\]'"):
        Tracing("http://127.0.0.1:4318/v1/traces")
    monkeypatch.undo()
    importlib.import_module("sessions.pages.span_export")
