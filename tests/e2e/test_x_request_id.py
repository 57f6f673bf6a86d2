"""Every answer names its request, and so does what the log says of it."""

import asyncio
import logging
import re

import orjson
import pytest

from sessions.http.message import MAX_HEAD_BYTES
from tests.support.running_server import RunningServer, play
from tests.support.speaking_engine import SpeakingEngine
from tools_api.limits import Limits

GIVEN = "agent-7/turn:12"
HEAD = "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
PREFLIGHT = "Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n"
NAMED = re.compile(rb"\r\nX-Request-Id: ([^\r]*)\r\n")


def request(path: str, method: str = "GET", more: str = "", body: bytes = b"") -> bytes:
    if body:
        more += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return HEAD.format(method=method, path=path, more=more).encode() + body


def turn(**fields: object) -> bytes:
    return orjson.dumps({"model": "m", "input": "hi"} | fields)


ASKED = {
    "a page": (200, request("/healthz")),
    "a head alone": (200, request("/healthz", "HEAD")),
    "nothing there": (404, request("/none")),
    "a wrong method": (405, request("/healthz", "POST")),
    "a preflight": (204, request("/v1/responses", "OPTIONS", PREFLIGHT)),
    "a foreign page": (403, request("/v1/models", more="Origin: http://elsewhere\r\n")),
    "no upgrade": (426, request("/v1/responses")),
    "an upgrade": (101, request("/v1/responses", more=UPGRADE)),
    "a turn": (200, request("/v1/responses", "POST", body=turn())),
    "a stream": (200, request("/v1/responses", "POST", body=turn(stream=True))),
    "a faulty turn": (400, request("/v1/responses", "POST", body=turn(temperature="hot"))),
    "no JSON": (415, request("/v1/responses", "POST", "Content-Length: 2\r\n") + b"{}"),
    "no host": (400, b"GET /healthz HTTP/1.1\r\n\r\n"),
    "another version": (505, b"GET / HTTP/1.0\r\n\r\n"),
    "no HTTP": (400, b"hello\r\n\r\n"),
    "a long head": (431, request("/healthz", more=f"X: {'x' * MAX_HEAD_BYTES}\r\n")),
    "a large body": (413, request("/v1/responses", "POST", "Content-Length: 99999999\r\n"
                                  "Content-Type: application/json\r\n")),
}  # fmt: skip


async def answered(server: RunningServer, asked: bytes) -> bytes:
    """The head of the answer, as it came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(asked)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head


def test_every_answer_names_its_request() -> None:
    async def scenario(server: RunningServer) -> None:
        seen = set[bytes]()
        for what, (status, asked) in ASKED.items():
            head = await answered(server, asked)
            assert int(head.split(b" ", 2)[1]) == status, (what, head)
            (name,) = NAMED.findall(head)
            assert re.fullmatch(rb"req_[0-9a-f]{24}", name), what
            seen.add(name)
            if b"HTTP/1.1\r\nHost: localhost\r\n" in asked and status != 431:
                named = asked.replace(b"\r\n", f"\r\nX-Request-Id: {GIVEN}\r\n".encode(), 1)
                assert NAMED.findall(await answered(server, named)) == [GIVEN.encode()], what
        assert len(seen) == len(ASKED)

    play(scenario, lambda: RunningServer(SpeakingEngine(), real=True))


def test_clients_of_anthropic_read_it_under_their_own_name() -> None:
    async def scenario(server: RunningServer) -> None:
        own = re.compile(rb"\r\nRequest-Id: ([^\r]*)\r\n")
        body = orjson.dumps(
            {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        )
        streamed = orjson.dumps(orjson.loads(body) | {"stream": True})
        speaks = "anthropic-version: 2023-06-01\r\n"
        for asked in (
            request("/v1/messages", "POST", speaks, body),
            request("/v1/messages", "POST", speaks, streamed),
            request("/v1/messages", "POST", speaks, b"[]"),
            request("/v1/models", more=speaks),
            request("/v1/none", more=speaks),
        ):
            head = await answered(server, asked)
            assert own.findall(head) == NAMED.findall(head) != []
        assert own.findall(await answered(server, request("/v1/models"))) == []

    play(scenario, lambda: RunningServer(SpeakingEngine(), real=True))


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é", "line\x0b", "a\r\nX-Request-Id: b"])
def test_a_name_that_is_unfit_for_a_log_is_replaced(name: str) -> None:
    async def scenario(server: RunningServer) -> None:
        asked = request("/healthz", more=f"X-Request-Id: {name}\r\n")
        (given,) = NAMED.findall(await answered(server, asked))
        assert given.startswith(b"req_")

    play(scenario)


def test_a_server_that_takes_nobody_more_names_what_it_refuses() -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client():
            head = await answered(server, request("/v1/models"))
            assert int(head.split(b" ", 2)[1]) == 503
            assert NAMED.findall(head)

    play(scenario, lambda: RunningServer(limits=Limits(max_open_connections=1)))


def test_requests_behind_each_other_have_their_own_names() -> None:
    async def scenario(server: RunningServer) -> None:
        asked = [request("/healthz", more=f"X-Request-Id: n{n}\r\n") for n in range(3)]
        asked.insert(1, request("/healthz"))
        answer = await server.raw(b"".join(asked) + b"bad\r\n\r\n", ends=False)
        found = NAMED.findall(answer)
        assert [each for each in found if not each.startswith(b"req_")] == [b"n0", b"n1", b"n2"]
        assert len(set(found)) == 5

    play(scenario)


@pytest.mark.parametrize("what", ["a turn", "a stream"])
def test_the_log_names_the_request_of_a_turn(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario(server: RunningServer) -> None:
        _, asked = ASKED[what]
        named = asked.replace(b"\r\n", f"\r\nX-Request-Id: {GIVEN}\r\n".encode(), 1)
        await answered(server, named)
        await server.until(lambda: not server.hub.num_connections)

    play(scenario, lambda: RunningServer(SpeakingEngine(), real=True))
    (finished,) = [each for each in caplog.records if each.getMessage() == "turn finished"]
    assert finished.fields["x_request_id"] == GIVEN  # type: ignore[attr-defined]
    told = [each.getMessage() for each in caplog.records if GIVEN in each.getMessage()]
    assert any(line.startswith("connection opened") for line in told)
    if what == "a turn":
        assert f"http POST /v1/responses 200 x_request_id={GIVEN}" in told


def test_the_log_names_the_handshake_of_a_sockets_turns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(server: RunningServer) -> None:
        async with server.client(additional_headers={"X-Request-Id": GIVEN}) as socket:
            assert socket.response is not None
            assert socket.response.headers["X-Request-Id"] == GIVEN
            await socket.send(turn(type="response.create").decode())
            while orjson.loads(await socket.recv())["type"] != "response.completed":
                pass

    play(scenario, lambda: RunningServer(SpeakingEngine(), real=True))
    (finished,) = [each for each in caplog.records if each.getMessage() == "turn finished"]
    assert finished.fields["x_request_id"] == GIVEN  # type: ignore[attr-defined]
