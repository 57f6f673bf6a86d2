"""A transcript is read page by page, and what the server says against it is told."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.fake_server import message
from tools_api.errors import ApiError
from tools_api.items import Item
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.failures import ConnectionLost
from tools_api.sdk.sync_client import Client

ITEMS = [
    {"type": "message", "id": f"in_{n}", "role": "user", "content": f"word {n}"} for n in range(250)
]
Answer = Callable[[str, dict[str, str]], tuple[int, bytes]]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server that answers a path and its query; with it what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked.extend((self.path, self.headers.get("Authorization", "")))
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, body = answer(parts.path, query)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def paged(path: str, query: dict[str, str]) -> tuple[int, bytes]:
    if not path.endswith("/input_items"):
        assert path == "/v1/responses/resp%2F1"
        return 200, json.dumps({"output": [message("the answer")]}).encode()
    assert query["order"] == "asc"
    ids = [item["id"] for item in ITEMS]
    first = ids.index(query["after"]) + 1 if "after" in query else 0
    page = ITEMS[first : first + int(query["limit"])]
    more = first + len(page) < len(ITEMS)
    told = {"data": page, "last_id": page[-1]["id"], "has_more": more}
    return 200, json.dumps(told).encode()


def named(path: str, query: dict[str, str]) -> tuple[int, bytes]:
    """Knows one session by name."""
    if not path.startswith("/v1/sessions/"):
        return paged(path, query)
    if path == "/v1/sessions/a%2Fb":
        return 200, b'{"object": "session", "name": "a/b", "head": "resp/1", "turns": 3}'
    return 404, b'{"error": {"message": "no such session", "code": "session_not_found"}}'


def read(
    url: str, *, is_async: bool, at_most: int | None = None, tries: int = 0, **whose: str
) -> list[Item]:
    options: dict[str, Any] = {
        "api_key": "secret",
        "retries": Retries(tries=tries, first_wait_s=0.001),
    }
    whose = whose or {"head": "resp/1"}

    async def story() -> list[Item]:
        async with AsyncClient(url, **options) as client:
            return [item async for item in client.session(**whose).items()]  # type: ignore[arg-type]

    if is_async:
        return asyncio.run(story())
    with Client(url, **options) as client:
        return list(islice(client.session(**whose).items(), at_most))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [True, False])
def test_all_pages_are_read_and_the_answer_comes_last(is_async: bool) -> None:
    with serving(paged) as (url, asked):
        items = read(url, is_async=is_async)
    said = [getattr(item, "text", None) for item in items]
    assert said == [*(f"word {n}" for n in range(250)), "the answer"]
    assert len(asked) == 2 * 4
    assert set(asked[1::2]) == {"Bearer secret"}


def test_a_page_is_fetched_when_its_first_item_is_asked_for() -> None:
    with serving(paged) as (url, asked):
        assert len(read(url, is_async=False, at_most=100)) == 100
        assert len(asked[::2]) == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_a_session_that_is_only_named_is_read_from_where_it_stands(is_async: bool) -> None:
    with serving(named) as (url, asked):
        assert len(read(url, is_async=is_async, name="a/b")) == len(ITEMS) + 1
        assert asked[0] == "/v1/sessions/a%2Fb"
        with pytest.raises(ValueError, match="no response of a session 'other' yet"):
            read(url, is_async=is_async, name="other")


def test_a_page_is_asked_for_again_while_the_server_is_away() -> None:
    away = iter([False, True, False, True, True])

    def answer(path: str, query: dict[str, str]) -> tuple[int, bytes]:
        return (503, b"{}") if next(away, False) else paged(path, query)

    with serving(answer) as (url, asked):
        assert len(read(url, is_async=True, tries=2)) == len(ITEMS) + 1
    assert len(asked[::2]) == 4 + 3


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"error": {"message": "no response has it", "code": "x"}}', "no response has it"),
        (500, b"<html>", "answered with HTTP 500"),
        (401, b'{"error": 3}', "answered with HTTP 401"),
    ],
)
def test_a_refusal_says_what_the_server_said(status: int, body: bytes, said: str) -> None:
    with serving(lambda *_: (status, body)) as (url, _):
        with pytest.raises(ApiError, match=said) as caught:
            read(url, is_async=False)
    assert caught.value.status == status


def test_a_server_that_is_not_there_is_lost_and_a_session_without_a_turn_has_nothing() -> None:
    with serving(paged) as (url, _):
        pass
    with pytest.raises(ConnectionLost, match="cannot read http"):
        read(url, is_async=True)
    with Client(url) as client, pytest.raises(ValueError, match="no response here yet"):
        next(client.session().items())
