"""Agent loops over real sockets: what is cached, what is sent, what is left behind."""

import asyncio
import itertools
import json
import random
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed

from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.wire_client import TERMINAL, WireClient

BLOCK = 16
TOOLS = [
    {
        "type": "function",
        "name": "look_up",
        "description": "Looks a product up.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}},
            "required": ["name"],
            "additionalProperties": False,
        },
    }
]
CALL = {"type": "function", "name": "look_up"}


def _result(response: dict[str, Any], size: int = 60) -> list[dict[str, Any]]:
    """Outputs for the response's calls, or a user message if it made none."""
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    if not calls:
        return [{"role": "user", "content": "x" * size}]
    return [
        {"type": "function_call_output", "call_id": c["call_id"], "output": "y" * size}
        for c in calls
    ]


def _whole_blocks(usage: dict[str, Any]) -> int:
    written = usage["input_tokens"] + usage["output_tokens"] - 1
    return int(written) // BLOCK * BLOCK


async def _loop(url: str, *, turns: int) -> tuple[list[dict[str, Any]], list[int]]:
    client = await WireClient.open(url)
    usages = []
    previous: dict[str, Any] | None = None
    for turn in range(turns):
        fields: dict[str, Any] = {
            "instructions": "Be brief.",
            "tools": TOOLS,
            "tool_choice": CALL if turn % 3 else "none",
            "max_output_tokens": 60,
            "store": False,
        }
        if previous is None:
            fields["input"] = "Which lamps are there?"
        else:
            fields |= {"previous_response_id": previous["id"], "input": _result(previous)}
        previous = await client.response(**fields)
        assert previous["status"] in ("completed", "incomplete")
        usages.append(previous["usage"])
    await client.close()
    return usages, client.sent_bytes


def test_every_turn_finds_the_whole_blocks_of_the_one_before(server: ChildServer) -> None:
    usages, _ = asyncio.run(_loop(server.url, turns=10))
    for before, after in itertools.pairwise(usages):
        assert after["input_tokens_details"]["cached_tokens"] >= _whole_blocks(before)


def test_prefill_and_bytes_grow_with_the_turns_not_with_their_square(server: ChildServer) -> None:
    usages, sent = asyncio.run(_loop(server.url, turns=20))
    computed = [u["input_tokens"] - u["input_tokens_details"]["cached_tokens"] for u in usages]
    new = [
        after["input_tokens"] - before["input_tokens"] - before["output_tokens"]
        for before, after in itertools.pairwise(usages)
    ]
    assert all(c <= n + BLOCK for c, n in zip(computed[1:], new, strict=True))
    assert usages[-1]["input_tokens"] > 1500, "the transcript did not grow"
    assert max(sent[10:]) <= max(sent[1:10]) + 4, "a turn sends more the longer the session"


async def _resend(url: str) -> list[dict[str, Any]]:
    client = await WireClient.open(url)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Which lamps are there?"}]
    usages = []
    for turn in range(5):
        response = await client.response(
            input=history,
            tools=TOOLS,
            tool_choice=CALL if turn % 2 else "none",
            max_output_tokens=60,
        )
        usages.append(response["usage"])
        history += response["output"] + _result(response)
    await client.close()
    return usages


def test_a_resent_history_is_recognised(server: ChildServer) -> None:
    usages = asyncio.run(_resend(server.url))
    for before, after in itertools.pairwise(usages):
        assert after["input_tokens_details"]["cached_tokens"] >= _whole_blocks(before)


def _metric(server: ChildServer, pattern: str) -> float:
    page = urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics").read().decode()
    found = re.findall(rf"^{pattern} (\S+)$", page, re.MULTILINE)
    assert found, pattern
    return sum(float(value) for value in found)


async def _agent(url: str, seed: int) -> tuple[int, int]:
    """A session that plays turns and now and then hangs up in the middle.
    Returns (turns that ended, turns cut off)."""
    rng = random.Random(seed)
    ended = cut = 0
    await asyncio.sleep(rng.random() * 2)
    client = await WireClient.open(url)
    previous: dict[str, Any] | None = None
    for _ in range(3):
        fields: dict[str, Any] = {
            "tools": TOOLS,
            "tool_choice": rng.choice(["none", CALL, "required"]),
            "max_output_tokens": rng.randint(55, 70),
            "input": "z" * rng.randint(1, 150) if previous is None else _result(previous),
        }
        if previous is not None:
            fields["previous_response_id"] = previous["id"]
        await client.send(**fields)
        if rng.random() < 0.2:
            for _ in range(rng.randint(0, 6)):
                event = json.loads(await client.socket.recv())
                assert event["type"] != "error", event
                if event["type"] in TERMINAL:
                    break
            client.socket.transport.abort()
            cut += 1
            break
        event = (await client.events())[-1]
        assert event["type"] in ("response.completed", "response.incomplete"), event
        previous = event["response"]
        ended += 1
    await client.close()
    return ended, cut


async def _fleet(url: str, sessions: int, seed: int) -> tuple[int, int]:
    results = await asyncio.gather(*(_agent(url, 1000 * seed + n) for n in range(sessions)))
    return sum(r[0] for r in results), sum(r[1] for r in results)


def _resident_bytes(process: psutil.Process) -> int:
    family = [process, *process.children(recursive=True)]
    return sum(p.memory_info().rss for p in family)


def test_sixty_four_sessions_come_go_and_leave_nothing_behind(tmp_path: Path) -> None:
    options = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "12", "--threads", "1"]
    with child_server(options, log=tmp_path / "server.log") as server:
        process = psutil.Process(server.process.pid)
        asyncio.run(_fleet(server.url, 64, seed=1))
        warm = _resident_bytes(process)
        ended, cut = asyncio.run(_fleet(server.url, 64, seed=2))
        assert ended > 100
        assert cut > 5
        assert _resident_bytes(process) <= 1.05 * warm
        blocks = {
            state: _metric(server, f'keepwarm_kv_blocks{{state="{state}"}}')
            for state in ("free", "evictable", "protected", "reserved")
        }
        assert blocks["protected"] == 0
        assert blocks["free"] + blocks["evictable"] > 0
        assert _metric(server, "keepwarm_turns_running") == 0
        assert _metric(server, "keepwarm_turns_waiting") == 0


async def _shut_down(server: ChildServer) -> tuple[str, int | None]:
    client = await WireClient.open(server.url)
    idle = await WireClient.open(server.url)
    await client.send(input="Hello", max_output_tokens=200)
    while "delta" not in str(await client.socket.recv()):
        pass
    server.process.send_signal(signal.SIGTERM)
    event = (await client.events())[-1]
    codes = []
    for socket in (client.socket, idle.socket):
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        codes.append(socket.close_code)
    assert codes == [1012, 1012]
    return event["type"], await asyncio.to_thread(server.process.wait, 20)


def test_at_the_end_running_turns_finish_and_sockets_close_with_1012(tmp_path: Path) -> None:
    options = ["--model", "random:qwen3-tiny", "--threads", "1"]
    with child_server(options, log=tmp_path / "server.log") as server:
        kind, status = asyncio.run(_shut_down(server))
    assert kind in ("response.completed", "response.incomplete")
    assert status == 0
