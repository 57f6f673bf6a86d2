"""Turns that are left before their end, against a real server: it stops decoding, the session
goes on."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any
from urllib.request import urlopen

import pytest
from openai import OpenAI

from keepwarm.demo.child_server import ChildServer
from tests.support.architecture import ROOT
from tests.support.wire_client import WireClient
from tools_api.sdk.answers import TextDelta
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.sync_client import Client

_TEXT = {"type": "string", "minLength": 1000}
_SCHEMA = {"type": "object", "properties": {"a": _TEXT}, "required": ["a"]}
LONG: dict[str, Any] = {
    "max_output_tokens": 4000,
    "text": {"format": {"type": "json_schema", "name": "long", "schema": _SCHEMA}},
}
"""A turn that cannot end by itself within a second."""


def metrics(server: ChildServer) -> dict[str, float]:
    with urlopen(server.url.removesuffix("/v1") + "/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'^(keepwarm_turns_\w+(?:\{status="\w+"\})?) (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def cancelled(server: ChildServer) -> float:
    return metrics(server)['keepwarm_turns_total{status="cancelled"}']


def until(condition: Any) -> None:
    """Wait until the server has got so far."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def one_cancel(server: ChildServer) -> Iterator[None]:
    """Of the test's turns exactly one is cancelled, and none is left running."""
    before = cancelled(server)
    yield
    until(lambda: metrics(server)["keepwarm_turns_running"] == 0)
    assert cancelled(server) == before + 1


@pytest.mark.usefixtures("one_cancel")
@pytest.mark.parametrize("way", ["task.cancel", "asyncio.timeout", "aclose"])
async def test_an_asyncio_task_that_is_cancelled_ends_its_turn(
    server: ChildServer, way: str
) -> None:
    async with AsyncClient(server.url) as client:
        session = client.session(store=False)
        first = await session.respond("hello", max_output_tokens=4)
        began = asyncio.Event()

        async def listen() -> None:
            async with aclosing(session.stream_turn("go on", **LONG)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        began.set()
                        if way == "aclose":
                            return

        task = asyncio.create_task(listen())
        await began.wait()
        if way == "task.cancel":
            task.cancel()
        if way == "asyncio.timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await task
        await asyncio.gather(task, return_exceptions=True)
        assert session.head == first.id
        again = await session.respond("go on", max_output_tokens=4)
        assert again.raw["previous_response_id"] == first.id
        assert again.usage.cached_tokens > 0


@pytest.mark.usefixtures("one_cancel")
def test_a_stream_that_is_closed_ends_its_turn(server: ChildServer) -> None:
    with Client(server.url) as client:
        session = client.session(store=False)
        first = session.respond("hello", max_output_tokens=4)
        events = session.stream_turn("go on", **LONG)
        while not isinstance(next(events), TextDelta):
            pass
        events.close()
        assert session.head == first.id
        again = session.respond("go on", max_output_tokens=4)
        assert again.raw["previous_response_id"] == first.id, "the socket was kept"


PROGRAM = """
import json
import signal
import sys
from keepwarm import Client
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
with Client(sys.argv[1]) as client:
    session = client.session(store=False)
    first = session.respond("hello", max_output_tokens=4)
    try:
        for event in session.stream_turn("go on", **json.loads(sys.argv[2])):
            print("event", flush=True)
    except KeyboardInterrupt:
        again = session.respond("go on", max_output_tokens=4)
        print("again", again.raw["previous_response_id"] == first.id)
"""


@pytest.mark.usefixtures("one_cancel")
def test_ctrl_c_ends_the_turn_and_the_session_goes_on(server: ChildServer) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, json.dumps(LONG)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "event\n"
        program.send_signal(signal.SIGINT)
        rest, _ = program.communicate(timeout=60)
    assert rest.endswith("again True\n")
    assert program.returncode == 0


@pytest.mark.usefixtures("one_cancel")
async def test_a_turn_of_another_connection_is_cancelled_by_its_id(server: ChildServer) -> None:
    one, other = await WireClient.open(server.url), await WireClient.open(server.url)
    await one.send(input="hello", store=False, **LONG)
    created = await one.event()
    await other.send(type="response.cancel", response_id=created["response"]["id"])
    events = await one.events()
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert response["keepwarm"]["reason"] == "cancelled"
    more = {"input": "go on", "max_output_tokens": 4, "previous_response_id": response["id"]}
    assert (await one.response(**more))["status"] in ("completed", "incomplete")
    await one.close()
    await other.close()


@pytest.mark.usefixtures("one_cancel")
def test_the_stock_client_can_send_a_cancel(server: ChildServer) -> None:
    client = OpenAI(base_url=server.url, api_key="none")
    with client.responses.connect() as socket:
        socket.response.create(model="default", input="hello", **LONG)
        for event in socket:
            if event.type == "response.in_progress":
                cancel: Any = {"type": "response.cancel"}
                socket.send(cancel)
            if event.type in ("response.incomplete", "response.completed", "error"):
                break
        assert event.type == "response.incomplete"
        assert event.response.incomplete_details is not None
        assert event.response.incomplete_details.reason is None


def test_the_series_of_cancelled_turns_is_there_from_the_first_scrape_on(
    server: ChildServer,
) -> None:
    assert 'keepwarm_turns_total{status="cancelled"}' in metrics(server)
