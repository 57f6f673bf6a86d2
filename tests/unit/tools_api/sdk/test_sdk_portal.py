"""The loop of a synchronous client: whoever waits for it is served, and nobody waits for ever."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from keepwarm import Client, Hooks, Session, TextDelta, tool
from keepwarm.testing import ScriptedServer, call, hold
from tools_api.sdk.answers import LoopResult
from tools_api.sdk.portal import Portal


async def nothing() -> None:
    pass


def loops() -> set[threading.Thread]:
    """The threads of clients."""
    return {each for each in threading.enumerate() if each.name == "keepwarm client"}


@pytest.mark.parametrize(
    "asked",
    [
        lambda client, child: child.run("x"),
        lambda client, child: next(child.stream("x")),
        lambda client, child: child.respond("x"),
        lambda client, child: child.steer("x"),
        lambda client, child: child.pending(),
        lambda client, child: client.close(),
    ],
)
def test_an_async_tool_that_would_wait_for_its_own_loop_is_told_so(
    asked: Callable[[Client, Session], object],
) -> None:
    server = ScriptedServer([call("ask"), "done"])
    with server.client() as client:
        child = client.session()

        @tool
        async def ask() -> str:
            """Ask."""
            return str(asked(client, child))

        result = client.session(tools=[ask]).run("go")
    assert result.text == "done"
    assert "cannot wait for itself: make it a plain function" in result.calls[0].output


def test_a_plain_tool_and_a_plain_hook_may_wait_for_the_loop() -> None:
    server = ScriptedServer(lambda turn: [call("ask")] if turn.tools and turn.number == 1 else "ok")
    with server.client() as client:

        @tool
        def ask() -> str:
            """Ask."""
            return client.session().run("x").text

        def before(items: object) -> None:
            client.session().run("y")

        session = client.session(tools=[ask], hooks=Hooks(before_turn=before))
        assert session.run("go").calls[0].output == "ok"


def test_a_stream_may_be_collected_as_garbage_in_the_loop_itself() -> None:
    server = ScriptedServer([hold("one two"), "next"])
    with server.client() as client:
        stream = client.session().stream("go")
        assert next(stream) == TextDelta(text="one")
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle

        async def collect(items: object) -> None:
            gc.collect()

        again = client.session(hooks=Hooks(before_turn=collect))
        assert again.run("again").text == "next"


@pytest.mark.parametrize("way", ["run", "stream", "between"])
def test_a_client_that_is_closed_leaves_what_another_thread_plays(way: str) -> None:
    """As its words say: the turn opens a socket of its own, and comes to its end."""
    server, begun, found = ScriptedServer([hold("one two")]), threading.Event(), []
    closed = threading.Event()

    def before(items: object) -> None:
        begun.set()

    def play(client: Client) -> None:
        session = client.session(hooks=Hooks(before_turn=before))
        if way == "run":
            found.append(session.run("go"))
            return
        for event in session.stream("go"):
            found.append(event)
            if way == "between" and len(found) == 1:
                closed.wait(30)

    with server.client() as client:
        thread = threading.Thread(target=play, args=(client,))
        thread.start()
        assert begun.wait(30)
        while not server.requests or (way == "between" and not found):
            time.sleep(0.001)
    closed.set()
    server.go_on()
    thread.join(30)
    assert isinstance(found[-1], LoopResult)
    assert found[-1].text == "one two"


def test_a_client_that_nobody_waits_for_has_no_thread_once_it_is_closed() -> None:
    before = loops()
    with ScriptedServer(["one"]).client() as client:
        client.session().run("go")
        assert len(loops() - before) == 1
    assert not loops() - before


async def test_what_waits_for_another_loop_asks_for_itself() -> None:
    """Two tools of one session that were made by ``as_tool`` come one after the other."""
    server = ScriptedServer(
        lambda turn: "ok" if turn.number > 1 or not turn.tools else [call("sub", input="a")] * 2
    )
    client = server.client()
    sub = client.session()
    async with server.async_client() as other:
        session = other.session(tools=[sub.as_tool("sub", "Ask.")])
        result = await session.run("go")
    assert [record.output for record in result.calls] == ["ok", "ok"]
    assert sub.stats.turns == 2
    client.close()


FORKED = """
import os
from tests.support.fake_server import FakeServer, message, turn
from keepwarm import Client
with FakeServer(lambda request: turn(request, [message("ok")])) as server, Client(server.url) as c:
    session = c.session()
    assert session.run("one").text == "ok"
    if (process := os.fork()) == 0:
        assert session.run("two").text == c.session().run("three").text == "ok"
        c.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    assert session.run("two").text == "ok"
    print(len(server.requests))
"""


def test_a_client_goes_on_in_both_processes_of_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "4\n", done.stderr


def test_an_async_client_goes_on_in_both_processes_of_a_fork() -> None:
    program = """
import asyncio, os
from tests.support.fake_server import FakeServer, message, turn
from keepwarm import AsyncClient
async def play(text):
    assert (await session.run(text)).text == "ok"
async def both():
    await play("one")
    if (process := os.fork()) == 0:
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(play("two"))
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    await play("two")
    await client.close()
with FakeServer(lambda request: turn(request, [message("ok")])) as server:
    client = AsyncClient(server.url)
    session = client.session()
    asyncio.run(both())
    print(len(server.requests))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "3\n", done.stderr


def test_a_portal_says_what_cannot_be() -> None:
    portal = Portal()

    async def itself() -> None:
        portal.call(nothing())

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        portal.call(itself())
    portal.close()
