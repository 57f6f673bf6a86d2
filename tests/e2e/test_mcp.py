"""Tools of MCP servers: over stdio, over HTTP, and of one that dies in the middle of a call."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import orjson
import pytest

from keepwarm.mcp import McpServer, McpServerGone
from tests.support.architecture import ROOT
from tests.support.fake_server import FakeServer, call, message, turn
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.sync_client import Client
from tools_api.sdk.tools import Tool


def shop() -> McpServer:
    return McpServer.stdio(
        sys.executable, "-m", "tests.support.mcp_tools", "stdio",
        folder=ROOT, environment={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@contextmanager
def served_over_http() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same tools in a process of their own; its address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.support.mcp_tools", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                assert process.poll() is None
                assert time.monotonic() < deadline
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp", process
        finally:
            process.kill()


def answering(*rounds: list[dict[str, Any]]) -> FakeServer:
    left = list(enumerate(rounds))

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        number, output = left.pop(0)
        return turn(request, output, id=f"resp_{number}")

    return FakeServer(answer)


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


def test_the_time_server_works_over_stdio() -> None:
    ask = call("get_current_time", '{"timezone": "Asia/Tokyo"}')
    with (
        McpServer.stdio(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC") as mcp,
        answering([ask], [message("late")]) as server,
        Client(server.url) as client,
    ):
        assert {"get_current_time", "convert_time"} <= by_name(mcp.tools).keys()
        result = client.session(tools=mcp.tools).run("What is the time in Tokyo?")
    assert result.text == "late"
    told = orjson.loads(result.calls[0].output)
    assert told["timezone"] == "Asia/Tokyo"
    assert told["datetime"].endswith("+09:00")
    (defined,) = [t for t in server.requests[0]["tools"] if t["name"] == "get_current_time"]
    assert defined["strict"] is False
    assert defined["parameters"]["required"] == ["timezone"]


async def test_a_server_over_http_works_too_and_its_hints_count() -> None:
    calls = [call("price", '{"product": "desk"}', 1), call("refuse", '{"reason": "sold"}', 2)]
    with served_over_http() as (url, _), answering(calls, [message("ok")]) as server:
        async with McpServer.http(url) as mcp, AsyncClient(server.url) as client:
            tools = by_name(mcp.tools)
            result = await client.session(tools=mcp.tools).run("go")
    assert tools["price"].conduct.read_only
    assert tools["reserve"].conduct.idempotent
    assert not tools["refuse"].conduct.may_start_early
    assert result.calls[0].output == "desk: 24"
    assert result.calls[1].failed
    assert "refuse" in result.calls[1].output


def test_a_server_that_dies_in_a_call_fails_it_and_is_started_again_by_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "keepwarm.mcp")
    rounds = [call("die", "{}", 1)], [call("price", '{"product": "lamp"}', 2)], [message("ok")]
    with shop() as mcp, answering(*rounds) as server, Client(server.url) as client:
        result = client.session(tools=mcp.tools).run("go")
    assert result.text == "ok"
    died, alive = result.calls
    assert died.failed
    assert "McpServerGone" in died.output
    assert "ended while it had a call of die" in died.output
    told = [record.getMessage() for record in caplog.records if record.name == "keepwarm.mcp"]
    assert any("server ended in a call" in line and "tool=die" in line for line in told)
    assert any("server started again" in line for line in told)
    assert alive.output == "lamp: 24"


def test_a_server_over_http_that_dies_fails_the_call_and_the_session_goes_on() -> None:
    rounds = [call("die", "{}", 1)], [call("price", '{"product": "lamp"}', 2)], [message("ok")]
    with served_over_http() as (url, _), McpServer.http(url) as mcp:
        with answering(*rounds) as server, Client(server.url) as client:
            result = client.session(tools=mcp.tools).run("go")
    assert result.text == "ok"
    assert all(record.failed for record in result.calls)
    assert "McpServerGone" in result.calls[0].output
    assert url in result.calls[0].output


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(McpServerGone, match="MCP server no-such-program cannot be used"):
        McpServer.stdio("no-such-program").__enter__()


def test_tools_exist_only_inside_the_block() -> None:
    with pytest.raises(RuntimeError, match="is not open"):
        _ = McpServer.stdio("x").tools


def test_without_the_extra_the_message_says_what_to_install() -> None:
    program = "import sys; sys.modules['mcp'] = None; import keepwarm.mcp"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "pip install 'keepwarm[mcp]'" in ran.stderr.splitlines()[-1]
