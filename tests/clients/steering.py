"""Between a coding agent and the server: what the model has to say next is put into each request.

The default model cannot follow thousands of lines of instructions; so that an agent's tools are
played all the same, each request is changed into one that leaves the model no choice (a tool
choice, a format of one value) before it goes on to the server. Everything else passes as it is.

Always true: what was sent and what came back is kept, in order; outside the ``with`` block nothing
listens any more.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

Body = dict[str, Any]
SAID = "It is done."
ANSWER = {"type": "object", "properties": {"said": {"enum": [SAID]}}, "required": ["said"],
          "additionalProperties": False}  # fmt: skip


@dataclass
class Passed:
    """What went through."""

    url: str = ""
    """Where the agent is to be pointed, without ``/v1``."""
    requests: list[Body] = field(default_factory=list)
    """As the agent sent them."""
    statuses: list[int] = field(default_factory=list)
    """Of answers over HTTP."""
    events: list[Body] = field(default_factory=list)
    """All that the server said."""


@contextmanager
def steered_messages(server: str, steer: Callable[[int, Body], Body]) -> Iterator[Passed]:
    """A server of Messages; ``steer`` changes the body of the n-th request, from 0."""
    passed = Passed()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.partition("?")[0] == "/v1/messages":
                number = len(passed.requests)
                passed.requests.append(json.loads(json.dumps(body)))
                body = steer(number, body)
            status, kind, answer = _posted(server, self.path, dict(self.headers), body)
            passed.statuses.append(status)
            passed.events += _server_sent(answer)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    passed.url = f"http://127.0.0.1:{listening.server_address[1]}"
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield passed
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _posted(server: str, path: str, headers: dict[str, str], body: Body) -> tuple[int, str, bytes]:
    own = {"host", "connection", "content-length", "accept-encoding", "transfer-encoding"}
    kept = {name: value for name, value in headers.items() if name.lower() not in own}
    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=110)
    try:
        connection.request("POST", path, json.dumps(body), kept)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def _server_sent(answer: bytes) -> list[Body]:
    lines = answer.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@contextmanager
def steered_responses(
    server: str,
    steer: Callable[[int, Body], Body],
    prepare: Callable[[Body], Body] = lambda create: create,
) -> Iterator[Passed]:
    """A WebSocket of Responses; ``steer`` changes the n-th create that is to be answered,
    ``prepare`` before it each one, a warm-up too."""
    passed = Passed()

    def back(upstream: ClientConnection, agent: ServerConnection) -> None:
        try:
            for frame in upstream:
                passed.events.append(json.loads(frame))
                agent.send(frame, text=True)
        except ConnectionClosed:
            pass
        agent.close()

    def handle(agent: ServerConnection) -> None:
        assert agent.request is not None
        address = server.replace("http", "ws", 1) + agent.request.path
        with connect(address, max_size=None) as upstream:
            thread = threading.Thread(target=back, args=(upstream, agent))
            thread.start()
            try:
                for frame in agent:
                    event = json.loads(frame)
                    if event["type"] == "response.create":
                        event = prepare(event)
                    if event["type"] == "response.create" and event.get("generate") is not False:
                        number = len(passed.requests)
                        passed.requests.append(json.loads(frame))
                        event = steer(number, event)
                    upstream.send(json.dumps(event))
            except ConnectionClosed:
                pass
            upstream.close()
            thread.join()

    with serve(handle, "127.0.0.1", 0, max_size=None) as listening:
        passed.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield passed
        finally:
            listening.shutdown()
            thread.join()
