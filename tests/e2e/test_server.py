"""The port as clients see it: routes and keys, turns over sockets, slow readers, the end."""

import asyncio
import base64
import contextlib
import socket

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from runtime.messages import CancelRequest, FinishReason
from sessions.http.front_door import Access
from sessions.pages.event_stream import Parts
from sessions.pages.views import Views, Wish
from sessions.tenants import ApiKey, Principal, Role, TenantPolicy
from tests.support.fake_engine import EchoEngine, HandEngine, tokens
from tests.support.running_server import RunningServer, play, texts
from tools_api.limits import Limits

ACME_KEY, BOSS_KEY = "key-of-acme", "key-of-boss"
ACME = ApiKey.of(ACME_KEY, tenant="acme")
BOSS = ApiKey.of(BOSS_KEY, tenant="boss", role=Role.OPERATOR)
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PUBLIC = {"/", "/health", "/healthz", "/openapi.json", "/readyz"}
NOT_FOUND = {
    "/dashboard/journal",
    "/v1/usage",
    "/v1/responses/{id}",
    "/v1/responses/{id}/calls",
    "/v1/responses/{id}/input_items",
    "/v1/conversations/{id}",
    "/v1/conversations/{id}/items",
    "/v1/conversations/{id}/items/{id}",
    "/v1/sessions/{name}",
    "/v1/models/{name}",
    "/dashboard/assets/{id}",
    "/dashboard/items/{id}",
}
"""What there is none of: the braces stand for an id that nothing has."""


def keyed() -> RunningServer:
    return RunningServer(keys=[ACME, BOSS])


def bearer(key: str) -> str:
    return f"Bearer {key}"


def post_a_turn(key: str) -> bytes:
    body = b'{"model":"default","input":"hello"}'
    head = (
        "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: {bearer(key)}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_every_route_but_the_probes_asks_for_a_key() -> None:
    async def scenario(server: RunningServer) -> None:
        assert len(server.routes) >= 14
        for route in server.routes:
            without = await server.http(route.path)
            wrong = await server.http(route.path, Authorization="Bearer wrong-key")
            if route.path in PUBLIC:
                assert route.access is Access.PUBLIC
                assert without.status == wrong.status == 200
            else:
                assert without.status == wrong.status == 401, route.path
            # A stream does not end by itself.
            method = "HEAD" if route.path == "/dashboard/events" else "GET"
            right = await server.http(route.path, method, Authorization=bearer(BOSS_KEY))
            if route.websocket:
                assert right.status == 426
            elif "GET" not in route.methods:
                assert right.status == 405, route.path
            else:
                assert right.status == (404 if route.path in NOT_FOUND else 200), route.path

    play(scenario, keyed)


def test_a_tenants_key_does_not_open_what_concerns_all() -> None:
    async def scenario(server: RunningServer) -> None:
        assert (await server.http("/metrics", Authorization=bearer(ACME_KEY))).status == 403
        assert (await server.http("/dashboard", Authorization=bearer(ACME_KEY))).status == 200
        shown = await server.http("/sessions.json", Authorization=bearer(ACME_KEY))
        assert orjson.loads(shown.body)["engine"] is None

    play(scenario, keyed)


def test_a_browser_may_send_the_key_as_a_password() -> None:
    async def scenario(server: RunningServer) -> None:
        asked = await server.http("/dashboard")
        assert asked.headers["WWW-Authenticate"].startswith("Basic")
        password = "Basic " + base64.b64encode(f"any:{BOSS_KEY}".encode()).decode()
        page = await server.http("/dashboard", Authorization=password)
        assert page.status == 200
        assert page.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (await server.http("/sessions.json", Authorization=password)).status == 200

    play(scenario, keyed)


def test_no_turn_of_the_loop_makes_two_pages_of_a_tenant_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, int]] = []
    turn = 0

    def parts(views: Views, who: Principal, wish: Wish) -> Parts:
        made.append((who.tenant, turn))
        return {"n": str(len(made)).encode()}

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async def opened(server: RunningServer, key: str) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
        writer.write(f"{head}{bearer(key)}\r\n\r\n".encode())
        await reader.readuntil(b"\n\n")
        return writer

    async def scenario(server: RunningServer) -> None:
        pages = [await opened(server, key) for key in [ACME_KEY, BOSS_KEY] * 20]
        made.clear()
        next_turn()
        server.pass_time(1.0)
        await server.until(lambda: len(made) == 40)
        assert len(set(made)) == len(pages)
        for page in pages:
            page.close()

    monkeypatch.setattr(Views, "parts", parts)
    monkeypatch.setattr("sessions.wire.server.TENANT_S", 0.0)
    play(scenario, keyed)


def test_unknown_paths_are_404_and_a_plain_get_is_426() -> None:
    async def scenario(server: RunningServer) -> None:
        assert (await server.http("/v1/chat")).status == 404
        plain = await server.http("/v1/responses")
        assert (plain.status, plain.headers["Upgrade"]) == (426, "websocket")

    play(scenario)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong-key"}, 401),
        ({"Authorization": bearer(ACME_KEY)}, 0),
    ],
)
def test_a_handshake_needs_the_key(headers: dict[str, str], status: int) -> None:
    async def scenario(server: RunningServer) -> None:
        if status:
            with pytest.raises(InvalidStatus) as caught:
                await server.client(additional_headers=headers)
            assert caught.value.response.status_code == status
            assert server.connections == []
            return
        async with server.client(additional_headers=headers) as client:
            await client.send("say hello")
            assert await client.recv() == "hello"
        assert server.connections[0].tenant == "acme"

    play(scenario, keyed)


@pytest.mark.parametrize(
    ("offer", "named"),
    [
        (["keepwarm", f"openai-insecure-api-key.{ACME_KEY}"], "keepwarm"),
        ([f"openai-insecure-api-key.{ACME_KEY}", "realtime"], "realtime"),
        (["keepwarm", "openai-insecure-api-key.wrong-key"], None),
        ([f"openai-insecure-api-key.{ACME_KEY}"], None),
        ([f"keepwarm openai-insecure-api-key.{ACME_KEY}"], None),
    ],
)
def test_a_key_may_be_offered_as_a_sub_protocol_and_is_never_repeated(
    offer: list[str], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: RunningServer) -> None:
        with caplog.at_level("DEBUG", logger="sessions"):
            head = await server.raw(
                HANDSHAKE.removesuffix(b"\r\n")
                + b"Sec-WebSocket-Protocol: "
                + ", ".join(offer).encode()
                + b"\r\n\r\n"
            )
        assert head.startswith(b"HTTP/1.1 101 ") is bool(named)
        assert (f"Sec-WebSocket-Protocol: {named}\r\n".encode() in head) is bool(named)
        assert ACME_KEY.encode() not in head
        assert ACME_KEY not in caplog.text
        assert [each.tenant for each in server.connections] == ["acme"] * bool(named)

    play(scenario, keyed)


def test_a_revoked_key_ends_its_sockets_and_its_requests_in_flight_and_no_others() -> None:
    async def scenario(server: RunningServer) -> None:
        def client(key: str) -> connect:
            return server.client(additional_headers={"Authorization": bearer(key)})

        async with client(ACME_KEY) as revoked, client(BOSS_KEY) as other:
            answer = asyncio.ensure_future(server.raw(post_a_turn(ACME_KEY), ends=False))
            await server.until(lambda: server.server.num_sockets == 3 and bool(server.engine.sent))
            assert server.server.revoke({ACME.principal}) == 2
            with pytest.raises(ConnectionClosed) as caught:
                await revoked.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1008
            assert await answer == b""
            await other.send("say hello")
            assert await other.recv() == "hello"

    play(scenario, keyed)


def test_a_turn_beyond_the_tenants_minute_is_429_with_the_time_to_come_back() -> None:
    async def scenario(server: RunningServer) -> None:
        first = asyncio.ensure_future(server.raw(post_a_turn(ACME_KEY), ends=False))
        await server.until(lambda: bool(server.engine.sent))
        refused = (await server.raw(post_a_turn(ACME_KEY), ends=False)).decode()
        assert refused.startswith("HTTP/1.1 429 ")
        assert "\r\nretry-after: 60\r\n" in refused.lower()
        assert "rate_limit_exceeded" in refused
        server.server.revoke({ACME.principal})
        assert await first == b""

    policies = {"acme": TenantPolicy(turns_per_minute=1)}
    play(scenario, lambda: RunningServer(keys=[ACME, BOSS], policies=policies))


def test_foreign_origins_are_refused_and_ours_are_not() -> None:
    async def scenario(server: RunningServer) -> None:
        with pytest.raises(InvalidStatus) as caught:
            await server.client(origin="https://evil.example")
        assert caught.value.response.status_code == 403
        for origin in ("http://localhost:3000", "https://agents.example"):
            async with server.client(origin=origin) as client:
                await client.send("say hello")
                assert await client.recv() == "hello"

    play(scenario, lambda: RunningServer(allowed_origins=["https://agents.example"]))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_turn_runs_over_a_socket_with_query_and_stray_headers(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        headers = {"X-Stainless-Lang": "python", "OpenAI-Beta": "responses_websockets=2026-02-06"}
        async with server.client("/v1/responses?x=1", additional_headers=headers) as client:
            await client.send("go a")
            assert await texts(client, 5) == ["created a", "a +1", "a +1", "a +1", "done a"]

    play(scenario, lambda: RunningServer(EchoEngine()), loop)


def of(first: int, data: bytes = b"", *, mask: int = 0x80, length: bytes | None = None) -> bytes:
    """A frame of up to 125 bytes; ``first``: its first byte, ``length``: all that tells its length,
    as it is."""
    told = bytes([mask | len(data)]) if length is None else length
    return bytes([first]) + told + (bytes(4) if mask else b"") + data


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (of(0x81, b"{}", mask=0), 1002),
        (of(0xC1, b"{}"), 1002),
        (of(0xA1, b"{}"), 1002),
        (of(0x83, b"x"), 1002),
        (of(0x8B, b"x"), 1002),
        (of(0x80, b"x"), 1002),
        (of(0x01, b"say a") + of(0x81, b"say b"), 1002),
        (of(0x89, length=b"\xfe\x00\x7e") + bytes(126), 1002),
        (of(0x09, b"x"), 1002),
        (of(0x88, b"\x03"), 1002),
        (of(0x88, b"\x03\xed"), 1002),
        (of(0x88, b"\x13\x88"), 1002),
        (of(0x88, b"\x03\xe8\xff"), 1007),
        (of(0x81, b"\xff"), 1007),
        (of(0x01, b"\xc3") + of(0x80, b"\x28"), 1007),
        (of(0x81, length=b"\xff" * 9), 1009),
        (of(0x81, length=b"\xff" + (1 << 40).to_bytes(8, "big")), 1009),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1002),
        (of(0x88, b"\x0f\xa0bye") + of(0x81, b"say a"), 4000),
    ],
)
def test_what_is_no_frame_ends_its_own_socket_alone_with_the_code_for_it(
    sent: bytes, code: int
) -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as neighbour:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(HANDSHAKE)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            answer = await reader.read()
            assert answer[0] == 0x88, "a close and nothing before it"
            assert int.from_bytes(answer[2:4], "big") == code
            assert len(answer) == 2 + answer[1], "nor behind it"
            writer.close()
            await neighbour.send("say hello")
            assert await neighbour.recv() == "hello"
            await server.until(lambda: server.hub.num_connections == 1)

    play(scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_drops_its_socket_cancels_its_turn(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        client = await server.client()
        await client.send("go a")
        assert await client.recv() == "created a"
        client.transport.abort()
        await server.until(lambda: server.engine.sent_ids(CancelRequest) == ["a"])
        await server.until(lambda: server.server.num_sockets == 0)

    play(scenario, loop=loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_large_frame_travels_whole_and_one_beyond_the_limit_ends_with_1009(loop: str) -> None:
    limit = 3_000_000

    async def scenario(server: RunningServer) -> None:
        async with server.client(max_size=None) as client, server.client() as other:
            await client.send("x" * limit)
            assert await client.recv() == f"read {limit} bytes"
            await client.send("x" * (limit + 1))
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
            await other.send("say well")
            assert await other.recv() == "well"

    play(scenario, lambda: RunningServer(limits=Limits(max_frame_bytes=limit)), loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_of_many_that_do_not_read_the_first_are_cut_where_together_they_are_too_much(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them is within the bound of one connection."""
    limits = Limits(max_unsent_per_tenant=12_000_000)
    number = 6

    async def scenario(server: RunningServer) -> None:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(socket.socket()) for _ in range(number)]
            key = base64.b64encode(bytes(16)).decode()
            frame = b"fill 7000000"
            for each in slow:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                each.connect(("127.0.0.1", server.port))
                each.sendall(
                    f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                    f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
                    "\r\n\r\n".encode()
                )
            await server.until(lambda: server.hub.num_connections == number)
            for each in slow:
                each.sendall(bytes([0x81, 0x80 | len(frame)]) + bytes(4) + frame)
            await server.until(lambda: server.hub.num_connections < number)
            async with server.client() as other:
                await other.send("say well")
                assert await other.recv() == "well"
                assert server.hub.num_connections > 1, "those that are not too many stay"
        await server.until(lambda: server.server.num_sockets == 0)
        assert server.server.arriving.unsent.total == 0

    play(scenario, lambda: RunningServer(limits=limits), loop)
    assert "clients do not read, cutting one off" in caplog.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_does_not_read_is_closed_and_harms_no_one(loop: str) -> None:
    limits = Limits(max_unsent_bytes=1_000_000)

    async def scenario(server: RunningServer) -> None:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        key = base64.b64encode(bytes(16)).decode()
        slow.sendall(
            f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
            "\r\n\r\n".encode()
        )
        frame = b"fill 1000000"
        async with server.client() as other:
            sent = 0
            while server.hub.num_connections < 2:
                await asyncio.sleep(0)
            while server.hub.num_connections == 2:
                slow.sendall(bytes([0x81, 0x80 | len(frame)]) + bytes(4) + frame)
                sent += 1
                await other.send("say well")
                assert await other.recv() == "well"
            assert sent <= 3, "more is kept for a slow reader than allowed"
            closes = server.metrics.registry.get_sample_value(
                "keepwarm_connection_closes_total", {"code": "1008"}
            )
            assert closes == 1
            server.pass_time(5)
            await server.until(lambda: server.server.num_sockets == 1)
            await other.send("say still")
            assert await other.recv() == "still"
        slow.close()

    play(scenario, lambda: RunningServer(limits=limits), loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_flood_of_frames_is_answered_whole_while_others_are_served(loop: str) -> None:
    number = 5000

    async def scenario(server: RunningServer) -> None:
        async with server.client(max_queue=None) as flooding, server.client() as other:
            frame = b"\x81\x85" + bytes(4) + b"say x"
            flooding.transport.write(frame * number)
            answers = 0
            while server.connections[0].calls.count("say x") < number:
                await other.send("say well")
                assert await other.recv() == "well"
                answers += 1
            assert answers > 1, "the flood was handled in one go"
            assert await texts(flooding, number) == ["x"] * number

    play(scenario, lambda: RunningServer(real_time=True), loop)


def test_a_client_that_never_answers_pings_is_closed() -> None:
    async def scenario(server: RunningServer) -> None:
        client = await server.client(ping_interval=None)
        client.transport.pause_reading()
        server.pass_time(20)
        server.pass_time(60)
        assert server.hub.num_connections == 0
        server.pass_time(5)
        await server.until(lambda: server.server.num_sockets == 0)
        client.transport.abort()

    play(scenario)


def test_readiness_follows_the_engine() -> None:
    async def scenario(server: RunningServer) -> None:
        assert (await server.http("/readyz")).status == 200
        server.engine_may_return.clear()
        server.engine.die()
        await server.until(lambda: not server.hub.ready)
        assert (await server.http("/readyz")).status == 503
        assert (await server.http("/healthz")).status == 200
        server.engine_may_return.set()
        await server.until(lambda: server.hub.ready)
        assert (await server.http("/readyz")).status == 200

    play(scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_at_the_end_turns_finish_and_sockets_close_with_1012(loop: str) -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as idle, server.client() as busy:
            await busy.send("go a")
            assert await busy.recv() == "created a"
            stopping = asyncio.get_running_loop().create_task(server.server.stop(20))
            with pytest.raises(ConnectionClosed) as caught:
                await idle.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", server.port)
            server.engine.say(tokens("a", finish=FinishReason.STOP))
            assert await texts(busy, 2) == ["a +1", "done a"]
            with pytest.raises(ConnectionClosed) as caught:
                await busy.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012
            await stopping
            assert server.server.num_sockets == 0

    play(scenario, loop=loop)


def test_at_the_end_a_turn_that_takes_too_long_fails_first() -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as client:
            await client.send("go a")
            assert await client.recv() == "created a"
            await server.server.stop(0.05)
            assert await client.recv() == "failed a"
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012

    play(scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_many_clients_at_once_all_get_their_turns_and_leave_nothing_behind(loop: str) -> None:
    async def one(server: RunningServer, number: int) -> None:
        async with server.client() as client:
            for turn in range(5):
                name = f"t{number}.{turn}"
                await client.send(f"go {name}")
                assert await texts(client, 3) == [f"created {name}", f"{name} +1", f"done {name}"]

    async def scenario(server: RunningServer) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(one(server, number))
        await server.until(lambda: server.server.num_sockets == 0)
        assert server.hub.num_connections == 0

    play(scenario, lambda: RunningServer(EchoEngine(num_steps=1)), loop)


def test_metrics_and_json_tell_of_the_turns() -> None:
    async def scenario(server: RunningServer) -> None:
        async with server.client() as client:
            await client.send("go a")
            await texts(client, 3)
            text = (await server.http("/metrics")).body.decode()
            assert 'keepwarm_turns_total{status="completed"} 1.0' in text
            assert "keepwarm_connections 1.0" in text
            shown = orjson.loads((await server.http("/sessions.json")).body)
            assert shown["server"]["connections"] == 1
            assert [turn["session"] for turn in shown["turns"]] == ["a"]

    play(scenario, lambda: RunningServer(EchoEngine(num_steps=1)))


def test_the_engine_by_hand_is_asked_nothing_by_an_idle_server() -> None:
    engine = HandEngine()

    async def scenario(server: RunningServer) -> None:
        async with server.client():
            server.pass_time(1)
        await server.until(lambda: server.server.num_sockets == 0)
        assert engine.sent == []

    play(scenario, lambda: RunningServer(engine))


def test_the_first_page_links_what_there_is_and_lists_it_for_programs() -> None:
    async def scenario(server: RunningServer) -> None:
        page = await server.http("/", Accept="text/html")
        assert page.status == 200
        assert page.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        for path in ("/dashboard", "/healthz", "/v1/models"):
            assert f'href="{path}"' in page.body.decode()
        listed = orjson.loads((await server.http("/", Accept="application/json")).body)
        methods = {each["path"]: each["methods"] for each in listed["endpoints"]}
        assert methods["/v1/responses"] == ["GET", "POST"]
        assert set(methods) == {route.path for route in server.routes}

    play(scenario)


def test_the_models_that_are_served_are_listed() -> None:
    async def scenario(server: RunningServer) -> None:
        models = orjson.loads((await server.http("/v1/models")).body)
        assert [model["id"] for model in models["data"]] == ["default", "m"]
        one = await server.http("/v1/models/m")
        assert orjson.loads(one.body) == models["data"][1]
        assert models["data"][1]["max_model_len"] == 4096
        missing = await server.http("/v1/models/gpt%2F4")
        assert missing.status == 404
        assert orjson.loads(missing.body)["error"]["code"] == "model_not_found"

    play(scenario)
