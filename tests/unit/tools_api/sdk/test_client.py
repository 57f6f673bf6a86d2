"""The client against a fake server on a real socket: lanes, lost connections, history."""

import asyncio
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from tests.support.fake_server import Answer, Close, FakeServer, message, refusal, turn
from tools_api.errors import ApiError
from tools_api.sdk.answers import TextDelta
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.connection import Endpoint
from tools_api.sdk.failures import ConnectionLost
from tools_api.sdk.lanes import NUM_LANES
from tools_api.sdk.sync_client import Client

ONCE = Retries(tries=0)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two requests differ in nothing but lane and the id that each call has of its own."""
    own: dict[str, Any] = {"keepwarm": None, "stream_id": None}
    return {**one, **own} == {**other, **own}


class Echo:
    """Answers the n-th request with ``echo n`` and the id ``resp_n``."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        self.count += 1
        return turn(request, [message(f"echo {self.count}")], id=f"resp_{self.count}")


class InTurn:
    """Gives the n-th request to the n-th answer."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def __call__(self, request: dict[str, Any]) -> Iterable[dict[str, Any] | Close]:
        return self._answers.pop(0)(request)


class Script:
    """Answers the n-th request with the n-th answer: events, or a code that refuses."""

    def __init__(self, *answers: str | Close) -> None:
        self._answers = list(answers)

    def __call__(self, request: dict[str, Any]) -> Iterator[dict[str, Any] | Close]:
        answer = self._answers.pop(0)
        if isinstance(answer, Close):
            yield answer
        elif answer.startswith("resp"):
            yield from turn(request, [message(answer)], id=answer)
        else:
            yield refusal(request, answer)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h:1/v1", "ws://h:1/v1/responses"),
        ("https://h/v1/", "wss://h/v1/responses"),
        ("ws://h:1/v1", "ws://h:1/v1/responses"),
    ],
)
def test_the_path_of_stock_clients_is_appended(base_url: str, url: str) -> None:
    assert Endpoint(base_url).url == url


@pytest.mark.parametrize("base_url", ["127.0.0.1:8000", "ftp://h/v1", ""])
def test_a_url_without_a_known_scheme_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="does not start with"):
        Endpoint(base_url)


def test_two_turns_share_a_socket_and_the_second_sends_only_what_is_new() -> None:
    with FakeServer(Echo()) as server, Client(server.url, api_key="secret") as client:
        session = client.session(model="m")
        assert session.respond("one").text == "echo 1"
        assert session.respond("two").text == "echo 2"
    assert server.num_connections == 1
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "previous_response_id" not in server.requests[0]
    assert server.requests[1]["previous_response_id"] == "resp_1"
    assert len(server.requests[1]["input"]) == 1


def test_a_stream_yields_text_as_it_comes() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        *deltas, response = client.session().stream_turn("x")
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "echo 1"
    assert getattr(response, "text", "") == "echo 1"


def test_warming_up_generates_nothing_and_moves_the_session() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        assert request["generate"] is False
        assert request["input"] == []
        return turn(request, [])

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session()
        session.warm(instructions="be kind")
        assert session.head == "resp_1"


def test_a_fork_continues_the_same_response() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        fork = session.fork()
        session.respond("b")
        fork.respond("c")
    assert [request.get("previous_response_id") for request in server.requests] == [
        None,
        "resp_1",
        "resp_1",
    ]


def endless(request: dict[str, Any]) -> list[dict[str, Any]]:
    """A turn that has begun and goes on."""
    return turn(request, [message("on and on")])[:4]


def test_closing_a_stream_early_cancels_the_turn_and_leaves_socket_and_session() -> None:
    with FakeServer(InTurn(Echo(), endless, Echo())) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        stream = session.stream_turn("b")
        next(stream)
        stream.close()
        assert session.head == "resp_1"
        session.respond("b")
    assert [cancel["response_id"] for cancel in server.cancels] == ["resp_1"]
    assert server.num_connections == 1
    assert same(server.requests[2], server.requests[1])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts something in the background has it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_turn_cancels_it() -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupted(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from endless(request)
        signal.pthread_kill(main, signal.SIGINT)

    with FakeServer(InTurn(interrupted, Echo())) as server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(KeyboardInterrupt):
            session.respond("a")
        assert session.head is None
        assert session.respond("a").text == "echo 1"
    assert (len(server.cancels), server.num_connections) == (1, 1)


def test_a_server_that_does_not_answer_a_cancel_holds_up_no_other_turn() -> None:
    fake = FakeServer(InTurn(endless, Echo()), on_cancel=lambda request: [])
    with fake as server, Client(server.url) as client:
        stream = client.session().stream_turn("a")
        next(stream)
        stream.close()
        assert client.session().respond("b").text == "echo 1"
    assert server.num_connections == 1


def test_a_cancel_that_came_too_late_is_no_answer_to_the_next_turn() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [refusal(request, "response_not_found", 404), *turn(request, [message("x")])]

    with FakeServer(answer) as server, Client(server.url) as client:
        assert client.session().respond("a").text == "x"


def test_a_second_turn_inside_an_open_stream_is_refused_not_a_deadlock() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session()
        stream = session.stream_turn("a")
        next(stream)
        with pytest.raises(RuntimeError, match="still open"):
            session.respond("b")
        assert client.session().respond("b").text == "echo 2", "other sessions are free"
        stream.close()
        session.respond("b")


def test_threads_take_turns() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(client.session().respond("x").text))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(texts) == ["echo 1", "echo 2", "echo 3", "echo 4"]


def test_an_idle_socket_that_the_server_closed_is_reopened() -> None:
    script = Script("resp_1", Close(1012), "resp_2")
    with FakeServer(script) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        assert session.respond("b").id == "resp_2"
    assert server.num_connections == 2


@pytest.mark.parametrize("code", [None, 1011, 1012])
def test_without_retries_a_lost_connection_raises_and_the_same_call_works_again(
    code: int | None,
) -> None:
    script = Script("resp_1", Close(code), "resp_2")
    with FakeServer(script) as server, Client(server.url, retries=ONCE) as client:
        session = client.session()
        session.respond("a")
        with pytest.raises(ConnectionLost) as caught:
            session.respond("b")
        assert not caught.value.started
        assert session.respond("b").id == "resp_2"
    assert same(server.requests[2], server.requests[1])
    assert server.requests[1]["previous_response_id"] == "resp_1"


def test_a_connection_lost_after_the_start_says_so() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [*turn(request, [message("x")])[:3], Close(1012)]

    with FakeServer(answer) as server, Client(server.url, retries=ONCE) as client:
        with pytest.raises(ConnectionLost) as caught:
            client.session().respond("a")
    assert caught.value.started
    assert len(server.requests) == 1


def test_a_server_that_forgot_the_chain_gets_the_history_once() -> None:
    script = Script("resp_1", "previous_response_not_found", "resp_2", "resp_3")
    with FakeServer(script) as server, Client(server.url) as client:
        session = client.session()
        for text in "abc":
            session.respond(text)
    whole = server.requests[2]
    assert [item.get("content") for item in whole["input"]][::2] == ["a", "b"]
    assert "previous_response_id" not in whole
    assert server.requests[3]["previous_response_id"] == "resp_2"


def test_a_connection_that_is_too_old_is_replaced() -> None:
    script = Script("resp_1", "websocket_connection_limit_reached", "resp_2")
    with FakeServer(script) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        assert session.respond("b").id == "resp_2"
    assert server.num_connections == 2


def test_a_refusal_raises_and_the_connection_lives() -> None:
    script = Script("invalid_value", "resp_1")
    with FakeServer(script) as server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(ApiError):
            session.respond("a")
        session.respond("a")
    assert server.num_connections == 1


def test_a_silent_server_is_given_up() -> None:
    with (
        FakeServer(lambda request: []) as server,
        Client(server.url, event_timeout_s=0.05) as client,
        pytest.raises(ConnectionLost, match=r"no event for 0\.05 s"),
    ):
        client.session().respond("x")


def test_a_server_that_is_not_there_is_named() -> None:
    with FakeServer(Echo()) as server:
        url = server.url
    with pytest.raises(ConnectionLost, match="cannot connect to ws://127"):
        Client(url, open_timeout_s=1).session().respond("x")


async def test_turns_of_many_sessions_run_at_once_over_one_socket() -> None:
    held: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        held.append(request)
        if len(held) < 8:
            return []
        turns = [
            turn(one, [message(one["input"][0]["content"])], id=f"resp_{n}")
            for n, one in enumerate(held)
        ]
        return [event for events in zip(*turns, strict=True) for event in events]

    with FakeServer(answer) as server:
        async with AsyncClient(server.url) as client:
            words = [f"word {n}" for n in range(8)]
            answers = await asyncio.gather(*(client.session().respond(word) for word in words))
    assert [response.text for response in answers] == words
    assert len({request["stream_id"] for request in server.requests}) == 8
    assert server.num_connections == 1


async def test_more_turns_than_lanes_wait_and_lane_names_are_used_again() -> None:
    with FakeServer(Echo()) as server:
        async with AsyncClient(server.url) as client:
            turns = (client.session().respond("x") for _ in range(3 * NUM_LANES))
            answers = await asyncio.gather(*turns)
    assert len({response.id for response in answers}) == 3 * NUM_LANES
    assert len({request["stream_id"] for request in server.requests}) <= NUM_LANES


async def test_an_abandoned_turn_gives_its_lane_back_when_it_ends() -> None:
    held: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        events = turn(request, [message("x")])
        if not held:
            held.extend(events[3:])
            return events[:3]
        rest = held.copy()
        return rest + events

    with FakeServer(answer, on_cancel=lambda request: []) as server:
        async with AsyncClient(server.url) as client:
            async with aclosing(client.session().stream_turn("a")) as stream:
                await anext(stream)
            first = await client.session().respond("b")
            second = await client.session().respond("c")
    assert (first.text, second.text) == ("x", "x")
    assert [request["stream_id"] for request in server.requests] == ["lane-0", "lane-1", "lane-0"]


async def test_a_lost_connection_fails_all_turns_and_the_client_goes_on() -> None:
    script = Script("resp_1", Close(None), "resp_2")
    with FakeServer(script) as server:
        async with AsyncClient(server.url, retries=ONCE) as client:
            session = client.session()
            await session.respond("a")
            with pytest.raises(ConnectionLost):
                await session.respond("b")
            assert (await session.respond("b")).id == "resp_2"
    assert server.requests[2]["previous_response_id"] == "resp_1"


@pytest.mark.parametrize("answer", [Close(1012), "websocket_connection_limit_reached"])
async def test_an_ended_connection_is_replaced_without_an_error(answer: str | Close) -> None:
    script = Script("resp_1", answer, "resp_2")
    with FakeServer(script) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("a")
            assert (await session.respond("b")).id == "resp_2"
    assert server.num_connections == 2


async def test_an_error_that_names_no_lane_reaches_the_turn_that_has_not_started() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [refusal({}, "invalid_json")]

    with FakeServer(answer) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ApiError):
                await client.session().respond("a")


async def test_a_silent_server_is_given_up_asynchronously() -> None:
    with FakeServer(lambda request: []) as server:
        async with AsyncClient(server.url, event_timeout_s=0.05) as client:
            with pytest.raises(ConnectionLost, match="no event"):
                await client.session().respond("x")


async def test_a_refused_handshake_says_the_status() -> None:
    with FakeServer(Echo()) as server:
        wrong = server.url.replace("/v1", "/wrong")
        async with AsyncClient(wrong) as client:
            with pytest.raises(ApiError) as caught:
                await client.session().respond("x")
    assert caught.value.status == 404


@pytest.mark.parametrize("way", ["task.cancel", "asyncio.timeout"])
async def test_a_cancelled_task_ends_its_turn_and_leaves_socket_and_session(way: str) -> None:
    with FakeServer(InTurn(Echo(), endless, Echo())) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("a")
            if way == "task.cancel":
                task = asyncio.create_task(session.respond("b"))
                while len(server.requests) < 2:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await session.respond("b")
            assert session.head == "resp_1"
            assert (await session.respond("b")).text == "echo 1"
    assert len(server.cancels) == 1
    assert server.cancels[0]["stream_id"] == server.requests[1]["stream_id"]
    assert server.num_connections == 1


async def test_a_task_cancelled_before_its_turn_began_leaves_nothing_behind() -> None:
    def gone(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [refusal(request, "request_cancelled")]

    with FakeServer(InTurn(lambda request: [], Echo()), on_cancel=gone) as server:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.session().respond("a"))
            while not server.requests:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.session().respond("b")).text == "echo 1"
    assert "response_id" not in server.cancels[0]


def test_a_client_is_printed_with_its_address_and_without_its_key() -> None:
    assert repr(Client("ws://h:1/v1/", api_key="secret")) == "<Client of http://h:1/v1>"
    assert repr(AsyncClient("https://h/v1")) == "<AsyncClient of https://h/v1>"
