"""64 clients at once, some of which hang up: every turn ends and nothing is left behind."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from keepwarm.demo.child_server import ChildServer, child_server

NUM_CLIENTS = 64
NUM_BLOCKS = 256
OPTIONS = ["--model", "random:qwen3-tiny", "--num-blocks", str(NUM_BLOCKS), "--threads", "1"]
"""A pool for a few sessions only, so that the others are evicted, preempted or wait."""
KEPT_OF_A_TURN = 32 << 10
"""Bytes that an ended turn may leave: its transcript, and for some minutes its events."""
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
LOOK_UP = {
    "type": "function",
    "name": "look_up",
    "parameters": {
        "type": "object",
        "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["count"],
        "additionalProperties": False,
    },
}


async def turn(client: ClientConnection, **fields: Any) -> dict[str, Any]:
    """One turn; returns its final response."""
    request = {"type": "response.create", "model": "default"} | fields
    await client.send(orjson.dumps(request).decode())
    while True:
        event = orjson.loads(await client.recv())
        assert event["type"] != "error", event
        if event["type"] in TERMINAL:
            response = event["response"]
            assert isinstance(response, dict)
            return response


async def loop_of_tool_calls(url: str, rng: random.Random, ended: list[str]) -> None:
    """An agent's session: forced calls and their outputs, and perhaps a sudden end."""
    await asyncio.sleep(rng.random())
    client = await connect(url)
    hangs_up_after = rng.choice([None, rng.uniform(0, 2)])
    if hangs_up_after is not None:
        asyncio.get_running_loop().call_later(hangs_up_after, client.transport.abort)
    try:
        words = [str(rng.random()) for _ in range(rng.randint(1, 25))]
        given: dict[str, Any] = {"input": " ".join(words)}
        for _ in range(rng.randint(2, 5)):
            choice = {"type": "function", "name": "look_up"}
            response = await turn(client, tools=[LOOK_UP], tool_choice=choice, **given)
            ended.append(response["status"])
            (call,) = [item for item in response["output"] if item["type"] == "function_call"]
            assert 0 <= orjson.loads(call["arguments"])["count"] <= 99
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "[]"}
            given = {"input": [output], "previous_response_id": response["id"]}
    except ConnectionClosed:
        if hangs_up_after is None:
            raise
    finally:
        await client.close()


async def storm(url: str, seed: int) -> list[str]:
    """All clients at once; returns how the turns that were waited for ended."""
    ended: list[str] = []
    rng = random.Random(seed)
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(loop_of_tool_calls(url, random.Random(rng.random()), ended))
    return ended


async def quiet(page: str) -> dict[str, Any]:
    """What the dashboard shows once nothing runs any more."""
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            shown = (await http.get(page)).json()
            if not shown["engine"]["running"] and not shown["server"]["connections"]:
                assert isinstance(shown, dict)
                return shown
            await asyncio.sleep(0.05)


def test_every_turn_ends_and_nothing_is_left_behind(tmp_path: Path) -> None:
    async def scenario(server: ChildServer) -> None:
        url = server.url.replace("http", "ws") + "/responses"
        page = server.url.removesuffix("/v1") + "/sessions.json"
        process = psutil.Process(server.process.pid)
        await storm(url, seed=0)
        await quiet(page)
        resident = process.memory_info().rss
        turns = 0
        for seed in (1,):
            ended = await storm(url, seed)
            turns += len(ended)
            assert set(ended) == {"completed"}
            shown = await quiet(page)
            blocks = shown["engine"]["kv_blocks"]
            assert blocks["protected"] == 0
            assert blocks["free"] < NUM_BLOCKS // 2, "the pool was never short"
            assert shown["engine"]["waiting"] == 0
            assert shown["totals"]["failed"] == 0
        assert process.memory_info().rss < resident + KEPT_OF_A_TURN * turns
        text = httpx.get(page.replace("sessions.json", "metrics")).text
        assert re.search(r"keepwarm_turns_total\{status=\"cancelled\"\} [1-9]", text)
        assert all(s["state"] != "running" for s in shown["sessions"])

    with child_server(OPTIONS, log=tmp_path / "log") as server:
        asyncio.run(scenario(server))
    assert "Traceback" not in (tmp_path / "log").read_text()
