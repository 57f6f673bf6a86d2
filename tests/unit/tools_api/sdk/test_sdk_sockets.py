"""One socket for each root session, which names it; children and forks use their root's."""

import asyncio
import gc
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.fake_server import Close, FakeServer, message, turn
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.connection import Endpoint
from tools_api.sdk.failures import ConnectionLost
from tools_api.sdk.sync_client import Client


def answered(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
    return [*turn(request, [message("Hello")])]


def sessions_of(server: FakeServer) -> list[str]:
    return [parse_qs(urlsplit(path).query).get("session", [""])[0] for path in server.paths]


async def test_each_root_has_a_socket_that_names_it_and_its_children_and_forks_use_it() -> None:
    with FakeServer(answered) as server:
        async with AsyncClient(server.url, sockets="session") as client:
            one, two = client.session(name="a b&c=1"), client.session(name="ä")
            await one.respond("hi")
            await two.respond("hi")
            await one.child().respond("hi")
            await one.fork(name="other").respond("hi")
            await client.session(name="a b&c=1").respond("hi")
        assert sessions_of(server) == ["a b&c=1", "ä"]


async def test_unnamed_sessions_have_keys_of_their_own_that_they_keep() -> None:
    def cut(request: dict[str, Any]) -> list[dict[str, Any] | Close]:
        return [Close(1012)] if len(server.requests) == 1 else answered(request)

    with FakeServer(cut) as server:
        async with AsyncClient(server.url, sockets="session") as client:
            await client.session().respond("hi")  # its socket is cut once
            await client.session().respond("hi")
        first, again, other = sessions_of(server)
        assert first == again != other
        assert all(each.startswith("unnamed-") for each in (first, other))
        assert all("keepwarm" not in each or "session" not in each["keepwarm"]
                   for each in server.requests)  # the server is told of no name  # fmt: skip


async def test_by_default_all_sessions_share_a_socket_without_a_name() -> None:
    with FakeServer(answered) as server:
        async with AsyncClient(server.url) as client:
            await client.session(name="a").respond("hi")
            await client.session(name="b").respond("hi")
        assert server.paths == ["/v1/responses"]


async def test_a_base_url_may_have_a_query_and_the_session_takes_its_place_in_it() -> None:
    with FakeServer(answered) as server:
        url = f"{server.url}/?team=x%20y&session=old"
        async with AsyncClient(url) as client:
            await client.session(name="a").respond("hi")
        async with AsyncClient(url, sockets="session") as client:
            await client.session(name="a").respond("hi")
        assert server.paths == [
            "/v1/responses?team=x%20y&session=old",
            "/v1/responses?team=x%20y&session=a",
        ]


async def test_a_socket_whose_sessions_are_gone_is_closed_and_others_are_not() -> None:
    with FakeServer(answered) as server:
        async with AsyncClient(server.url, sockets="session") as client:
            kept, gone = client.session(name="kept"), client.session(name="gone")
            await kept.respond("hi")
            await gone.respond("hi")
            child = gone.child()
            del gone
            gc.collect()
            await asyncio.sleep(0)
            assert not server.closed_by_client.is_set()
            del child
            gc.collect()
            assert await asyncio.to_thread(server.closed_by_client.wait, 10)
            await kept.respond("hi")
            await client.session(name="gone").respond("hi")
        assert sessions_of(server) == ["kept", "gone", "gone"]


def test_the_synchronous_client_does_the_same() -> None:
    with FakeServer(answered) as server, Client(server.url, sockets="session") as client:
        client.session(name="a").respond("hi")
        client.session(name="b").respond("hi")
        assert sessions_of(server) == ["a", "b"]


async def test_a_server_that_one_socket_has_met_the_others_do_not_take_for_nobody() -> None:
    with FakeServer(answered) as server:
        client = AsyncClient(server.url, sockets="session", retries=Retries(tries=0))
        await client.session(name="a").respond("hi")
        await client.close()
    with pytest.raises(ConnectionLost) as lost:
        await client.session(name="b").respond("hi")
    assert not lost.value.final
    await client.close()


def test_another_word_than_the_two_is_refused() -> None:
    with pytest.raises(ValueError, match="'turn' is neither 'client' nor 'session'"):
        AsyncClient("http://127.0.0.1:1/v1", sockets="turn")  # type: ignore[arg-type]


def test_a_page_of_a_transcript_is_asked_for_with_the_query_too() -> None:
    endpoint = Endpoint("http://h:1/v1?a=b").of_session("x/y")
    assert endpoint.url == "ws://h:1/v1/responses?a=b&session=x%2Fy"
    assert endpoint.http_url("/responses/1?limit=2") == (
        "http://h:1/v1/responses/1?limit=2&a=b&session=x%2Fy"
    )
    assert endpoint.http_url("/responses/1") == "http://h:1/v1/responses/1?a=b&session=x%2Fy"
    assert Endpoint("http://h:1/v1").http_url("/sessions/s") == "http://h:1/v1/sessions/s"


def test_a_client_that_is_closed_leaves_no_socket_of_a_session_that_was_dropped_before() -> None:
    """Or the loop ends with it open, which is a ResourceWarning."""

    async def scenario(url: str) -> None:
        async with AsyncClient(url, sockets="session") as client:
            for number in range(3):
                await client.session(name=f"s{number}").respond("hi")
            gc.collect()

    with FakeServer(answered) as server:
        asyncio.run(scenario(server.url))
        gc.collect()


def test_a_client_may_outlive_its_event_loop() -> None:
    with FakeServer(lambda request: turn(request, [message("hi")])) as server:
        client = AsyncClient(server.url)
        session = client.session()

        async def crowd() -> int:  # who waits for a socket to open is bound to this loop
            found = await asyncio.gather(*(client.session().respond("x") for _ in range(5)))
            return len(found)

        for _ in range(3):
            assert asyncio.run(session.respond("x")).text == "hi"
            assert asyncio.run(crowd()) == 5
        asyncio.run(client.close())
        assert server.num_connections == 6


async def test_two_loops_at_once_are_told_to_have_a_client_each() -> None:
    with FakeServer(lambda request: turn(request, [message("hi")])) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("x")
            with pytest.raises(RuntimeError, match="make one for each loop, or use Client"):
                await asyncio.to_thread(lambda: asyncio.run(client.session().respond("x")))
            assert (await session.respond("x")).text == "hi"


async def test_whoever_cancels_all_tasks_may_use_the_client_again() -> None:
    with FakeServer(lambda request: turn(request, [message("hi")])) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("x")
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert others
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            assert (await session.respond("x")).text == "hi"
    assert server.num_connections == 2
