"""Servers that are lost, restart, are overloaded, or know nothing of our extension."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.http11 import Response

from keepwarm.scripted.socket import ScriptedSocket
from keepwarm.testing import ScriptedServer, hold
from tests.support.fake_server import Close, FakeServer, message, refusal, turn
from tools_api.errors import ApiError, rate_limited
from tools_api.sdk.answers import StreamEvent, TextDelta, TurnRestarted
from tools_api.sdk.backoff import Retries
from tools_api.sdk.chain import Chain
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.connection import Connection, Endpoint
from tools_api.sdk.failures import ConnectionLost
from tools_api.sdk.lanes import NUM_LANES
from tools_api.sdk.sync_client import Client
from tools_api.sdk.turn import Turn

Step = Callable[[dict[str, Any]], list[dict[str, Any] | Close]]


class Waits:
    """Instead of sleeping: how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def scripted(*steps: Step) -> FakeServer:
    left = list(steps)

    def answer(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return left.pop(0)(request)

    return FakeServer(answer)


def whole(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
    return [*turn(request, [message("Hello")])]


def cut_after(count: int) -> Step:
    return lambda request: [*turn(request, [message("Hello")])[:count], Close(None)]


def overloaded(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
    return [refusal(request, "server_is_overloaded", 503)]


async def played(
    server: FakeServer, retries: Retries | None = None, **options: Any
) -> tuple[list[StreamEvent], list[float]]:
    """The events of one turn, and the waits that it took."""
    waits = Waits()
    connection = Connection(
        Endpoint(server.url), retries or Retries(), sleep=waits, draw=random.Random(0)
    )
    turn_ = Turn(Chain(defaults={}), "hi", options, traits=connection.traits)
    try:
        return [event async for event in connection.play(turn_)], waits.seconds
    finally:
        await connection.close()


def text(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("count", range(9))
async def test_a_turn_cut_anywhere_is_told_once_by_a_server_that_keeps_it(count: int) -> None:
    with scripted(cut_after(count), whole) as server:
        events, waits = await played(server)
    assert text(events) == "Hello"
    assert not any(isinstance(event, TurnRestarted) for event in events)
    assert waits == []
    first, second = server.requests
    assert first["keepwarm"]["request_id"] == second["keepwarm"]["request_id"]


async def test_a_server_that_stays_away_is_sought_with_growing_waits_and_then_given_up() -> None:
    with scripted(*[cut_after(3)] * 6) as server:
        with pytest.raises(ConnectionLost) as caught:
            await played(server, Retries(tries=5))
    assert caught.value.started
    assert len(server.requests) == 6


async def test_an_overloaded_server_is_asked_again_later() -> None:
    with scripted(overloaded, overloaded, whole) as server:
        events, waits = await played(server)
    assert text(events) == "Hello"
    assert len(waits) == 2
    assert waits[0] < waits[1]
    assert server.num_connections == 1


async def test_a_server_says_how_long_to_wait() -> None:
    """In the very form in which ours says it."""

    def busy(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [rate_limited("10 turns a minute", retry_after_s=3.5).event(request["stream_id"])]

    with scripted(busy, whole) as server:
        _, waits = await played(server)
    assert waits == [3.5]


async def test_a_server_without_request_ids_is_not_sent_any_and_still_survives_a_cut() -> None:
    """An older one of ours, or one that does not know the extension at all."""

    def old(then: Step) -> Step:
        def answer(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
            if "keepwarm" in request:
                event = refusal(request, "unknown_parameter")
                event["error"]["param"] = "keepwarm"
                return [event]
            return then(request)

        return answer

    def afresh(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [*turn(request, [message("Hello again")], id="resp_2")]

    with scripted(old(whole), old(cut_after(4)), old(afresh)) as server:
        events, _ = await played(server)
    again = [number for number, event in enumerate(events) if isinstance(event, TurnRestarted)]
    assert len(again) == 1, "what was streamed before is void, and the caller is told"
    assert text(events[again[0] :]) == "Hello again"
    assert len(server.requests) == 3


async def test_a_server_that_was_never_there_is_named_at_once() -> None:
    with FakeServer(whole) as server:
        url = server.url
    connection = Connection(Endpoint(url), Retries(), sleep=Waits())
    with pytest.raises(ConnectionLost, match="cannot connect to ws://127"):
        async for _ in connection.play(Turn(Chain(defaults={}), "hi", {})):
            pass


class AwayAtFirst(ScriptedServer):
    """Over HTTP it answers; its first sockets find nobody, as while it restarts."""

    left = 3

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> ScriptedSocket:
        self.left -= 1
        if self.left >= 0:
            raise InvalidMessage("did not receive a valid HTTP response")
        return await super().open(url, headers, open_timeout_s=open_timeout_s)


@pytest.mark.parametrize("known", [True, False])
async def test_a_server_that_was_met_over_http_is_sought_for_its_first_socket(known: bool) -> None:
    server = AwayAtFirst(["hello"])
    async with server.async_client(retries=Retries(first_wait_s=0.001)) as client:
        session = client.session(name="s")
        if known:
            assert await session.pending() == ()
            assert (await session.run("go")).text == "hello"
        else:
            with pytest.raises(ConnectionLost, match="does a server"):
                await session.run("go")


async def test_a_server_that_restarts_between_turns_is_found_again() -> None:
    """The second server knows nothing of the first's chain and is sent the whole history."""
    forgot = lambda request: [refusal(request, "previous_response_not_found")]  # noqa: E731
    with scripted(whole, lambda request: [Close(1012)], forgot, whole) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("one")
            await session.respond("two")
    assert [item.get("content") for item in server.requests[-1]["input"]][::2] == ["one", "two"]


def test_a_wrong_key_is_said_in_words() -> None:
    refused = Endpoint("http://h/v1")
    with FakeServer(whole) as server, Client(server.url.replace("/v1", "/x")) as client:
        with pytest.raises(ApiError, match="HTTP 404"):
            client.session().respond("a")
    assert refused.headers == {}


async def test_a_client_that_closes_cancels_the_turn_that_it_left() -> None:
    """The frame leaves before the socket does: a turn that goes on without a listener would."""

    def endless(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [*turn(request, [message("on and on")])[:4]]

    with scripted(endless) as server:
        async with AsyncClient(server.url) as client:
            stream = client.session().stream("a")
            await anext(stream)
            await stream.aclose()
        assert server.closed_by_client.wait(60)
    assert len(server.cancels) == 1


@pytest.mark.parametrize("seed", range(5))
def test_waits_double_up_to_a_bound_and_differ_between_clients(seed: int) -> None:
    retries, draw = Retries(first_wait_s=0.1, longest_wait_s=1.0), random.Random(seed)
    waits = [retries.wait_s(number, draw) for number in range(100)]
    for number, wait in enumerate(waits):
        bound = min(0.1 * 2 ** min(number, 10), 1.0)
        assert bound / 2 <= wait <= bound
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize("wrong", [{"tries": -1}, {"first_wait_s": 9}, {"first_wait_s": -1}])
def test_retries_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no tries or waits"):
        Retries(**wrong)


# Refusals at the door


def refusal_of(base_url: str, status: int, body: bytes = b"", label: str = "base_url") -> str:
    """What a program is told whose handshake was answered so."""
    answer = InvalidStatus(Response(status, "", Headers(), body))
    error = Endpoint(base_url, label=label).refused(answer, final=True)
    assert isinstance(error, ApiError)
    assert error.status == status
    assert "\n" not in str(error)
    return str(error)


OURS = b'{"error": {"message": "There is\\nnothing.", "code": null}}'
FOREIGN = [b"", b"<html>no</html>", b"[]", b'{"error": 1}', b'{"error": {}}', b"\xff"]


def test_an_address_without_its_path_is_told_with_the_one_to_try() -> None:
    told = refusal_of("http://h:1", 404, OURS)
    assert told.endswith("404: There is nothing. base_url is http://h:1; try http://h:1/v1")
    told = refusal_of("https://h/api/", 404, label="KEEPWARM_URL")
    assert told.endswith("KEEPWARM_URL is https://h/api; try https://h/v1")


@pytest.mark.parametrize("body", FOREIGN)
def test_what_is_no_server_of_ours_is_told_as_such(body: bytes) -> None:
    told = refusal_of("http://h:1/v1", 404, body)
    assert told.endswith(
        "HTTP 404: no keepwarm server answers there; base_url is http://HOST:PORT/v1"
    )
    assert refusal_of("http://h:1/v1", 502, body).endswith("HTTP 502")


def test_what_a_server_says_of_its_refusal_is_told() -> None:
    assert refusal_of("http://h:1/v1", 403, OURS).endswith("HTTP 403: There is nothing.")
    assert refusal_of("http://h:1/v1", 503, OURS).endswith("HTTP 503: There is nothing.")
    assert "api_key, or the variable KEEPWARM_API_KEY" in refusal_of("http://h:1/v1", 401, OURS)
    long = b'{"error": {"message": "%s"}}' % (b"x" * 9000)
    assert len(refusal_of("http://h:1/v1", 403, long)) < 600


def test_where_nobody_listens_the_program_is_asked_for_the_server_and_its_address() -> None:
    with pytest.raises(ConnectionLost, match=r"does a server .'keepwarm serve'. run") as lost:
        Client("http://127.0.0.1:1/v1", retries=Retries(tries=0)).session().respond("x")
    assert str(lost.value).startswith("cannot connect to ws://127.0.0.1:1/v1/responses: ")
    again = Endpoint("http://h/v1").refused(TimeoutError(), final=False)
    assert str(again) == "cannot connect to ws://h/v1/responses: TimeoutError"


@pytest.mark.parametrize("base_url", ["http://", "http:///v1", "http://h:x/v1", "http://h:99999"])
def test_an_address_without_host_or_with_a_port_that_is_none_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match=r"base_url '.*' is not of the form http://HOST:PORT/v1"):
        Endpoint(base_url)


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="a line break at its end") as told:
        Endpoint("http://h/v1", api_key="a-secret\n")
    assert "a-secret" not in str(told.value)


async def test_turns_that_cannot_be_written_down_leave_their_lanes_to_others() -> None:
    def unknown(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [refusal(request, "response_not_found", 404)]

    with FakeServer(lambda request: turn(request, [message("fine")]), unknown) as server:
        async with AsyncClient(server.url) as client, asyncio.timeout(10):
            session = client.session()
            for _ in range(NUM_LANES + 1):
                with pytest.raises(TypeError, match="JSON"):
                    await session.respond("hi", metadata={"of": object()})
            assert (await session.respond("hi")).text == "fine"


class Gated(ScriptedServer):
    """Whoever opens a socket waits for ``there``."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.there, self.tries = asyncio.Event(), 0

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> ScriptedSocket:
        self.tries += 1
        await self.there.wait()
        return await super().open(url, headers, open_timeout_s=open_timeout_s)


@pytest.mark.parametrize("sent", [False, True], ids=["before it is sent", "then lost"])
@pytest.mark.parametrize("method", ["respond", "run"])
async def test_a_turn_that_is_cancelled_without_a_socket_is_cancelled_on_the_next(
    sent: bool, method: str
) -> None:
    server = Gated([hold("One two"), "fine"])
    async with server.async_client() as client, asyncio.timeout(20):
        session = client.session()
        playing = asyncio.create_task(getattr(session, method)("go"))
        if sent:
            server.there.set()
            while not server.requests:
                await asyncio.sleep(0.001)
            server.there.clear()
            server.cut()
        while server.tries < 1 + sent:
            await asyncio.sleep(0.001)
        session.cancel()
        server.there.set()
        ended = await playing
        status = "cancelled" if method == "run" else "incomplete"
        assert (ended.status, ended.text) == (status, "One two")
        assert (await session.respond("more")).text == "fine"


@pytest.mark.parametrize(
    "key", ["\N{EURO SIGN}-secret", "a-s\N{LATIN SMALL LETTER E WITH ACUTE}cret"]
)
def test_a_key_that_no_header_carries_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=r"characters that no key has$") as told:
        Endpoint("http://h/v1", api_key=key)
    assert "cret" not in str(told.value)
