"""The first frames of the Codex CLI, replayed against the default model.

``codex_frames.json`` was recorded by hand from Codex 0.169.0 (npm ``@openai/codex``, Apache-2.0),
``codex exec "say hello"``: its warm-up and its first turn. Long texts are shortened, ids are
neutral, and the namespace ``multi_agent_v1`` of another run stands among the tools, so that
every kind it sends is there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.architecture import ROOT
from tests.support.wire_client import WireClient

WARM_UP, TURN = json.loads((ROOT / "tests/support/codex_frames.json").read_text(encoding="utf-8"))
PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
PATCH = {"type": "custom", "name": "apply_patch"}
AGENT = {"type": "function", "name": "multi_agent_v1__close_agent"}


@pytest.fixture(scope="module")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("codex") / "server.log"


@pytest.fixture(scope="module")
def default_server(server_log: Path) -> Iterator[ChildServer]:
    options = ["--kv-cache-mib", "128", "--threads", "1", "--default-output-tokens", "48"]
    with child_server(options, log=server_log) as serving:
        yield serving


def frame(raw: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A frame's fields as ``WireClient`` sends them."""
    return {key: value for key, value in raw.items() if key != "type"} | more


async def test_the_warm_up_and_the_first_turn_are_understood(
    default_server: ChildServer, server_log: Path
) -> None:
    client = await WireClient.open(default_server.url)
    warm = await client.response(**frame(WARM_UP))
    assert (warm["status"], warm["output"]) == ("completed", [])
    await client.send(**frame(TURN, previous_response_id=warm["id"]))
    events = await client.events()
    for event in events:
        PUBLISHED.validate_python(event)
    response = events[-1]["response"]
    assert response["status"] in ("completed", "incomplete")
    assert 0 < response["usage"]["output_tokens"] <= 48, "--default-output-tokens"
    assert response["keepwarm"]["warnings"][0] == (
        "tools: left out, they cannot run here: web_search"
    )
    assert [t["type"] for t in response["tools"]] == [
        t["type"] for t in TURN["tools"] if t["type"] != "web_search"
    ]
    whole = warm["usage"]["input_tokens"] // 16 * 16
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= whole
    await client.close()
    log = server_log.read_text(encoding="utf-8")
    assert log.count("hosted tools are left out") == 1


@pytest.mark.parametrize("limit", [80, 500])
async def test_a_patch_is_a_custom_call_by_its_grammar(
    default_server: ChildServer, limit: int
) -> None:
    client = await WireClient.open(default_server.url)
    await client.send(**frame(TURN, tool_choice=PATCH, max_output_tokens=limit))
    events = await client.events()
    for event in events:
        PUBLISHED.validate_python(event)
    assert "response" in events[-1], events[-1]
    first = events[-1]["response"]
    (call,) = first["output"]
    deltas = "".join(e["delta"] for e in events if e["type"].endswith("input.delta"))
    assert (call["type"], call["name"], call["status"]) == (
        "custom_tool_call",
        "apply_patch",
        "completed",
    )
    assert deltas == call["input"]
    lines = call["input"].removesuffix("\n").split("\n")
    assert (lines[0], lines[-1]) == ("*** Begin Patch", "*** End Patch")
    assert first["tool_choice"] == PATCH
    answer = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done!"}
    more = frame(TURN, input=[answer], previous_response_id=first["id"], max_output_tokens=16)
    second = await client.response(**more)
    used = second["usage"]
    assert used["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 16
    history = [*TURN["input"], call, answer]
    again = await client.response(**frame(TURN, input=history, max_output_tokens=16))
    assert again["usage"]["input_tokens"] == used["input_tokens"], "the call as it was written"
    await client.close()


async def test_a_call_of_a_namespace_comes_back_as_it_was_sent(default_server: ChildServer) -> None:
    client = await WireClient.open(default_server.url)
    response = await client.response(
        **frame(TURN, tool_choice=AGENT, keepwarm={"sampling": {"stop": "zzz"}})
    )
    (call,) = response["output"]
    assert (call["name"], call["namespace"]) == ("close_agent", "multi_agent_v1")
    await client.close()


async def test_a_choice_of_a_hosted_tool_is_refused(default_server: ChildServer) -> None:
    client = await WireClient.open(default_server.url)
    event = await client.turn(**frame(TURN, tool_choice={"type": "web_search"}))
    assert (event["error"]["code"], event["error"]["param"]) == (
        "unsupported_parameter",
        "tool_choice.type",
    )
    await client.close()


def test_the_stock_client_reads_a_custom_call(default_server: ChildServer) -> None:
    tool: Any = {"type": "custom", "name": "note", "format": {
        "type": "grammar", "syntax": "regex", "definition": "[a-z]{3,8}"}}  # fmt: skip
    client = OpenAI(base_url=default_server.url, api_key="none")
    with client.responses.connect() as socket:
        choice: Any = {"type": "custom", "name": "note"}
        socket.response.create(model="default", input="hi", tools=[tool], tool_choice=choice)
        ends = {"response.completed", "response.incomplete", "response.failed", "error"}
        events = []
        for event in socket:
            events.append(event)
            if event.type in ends:
                break
    last: Any = events[-1]
    (call,) = last.response.output
    assert call.type == "custom_tool_call"
    assert 3 <= len(call.input) <= 8
    assert call.input.isalpha()
    assert [e.type for e in events if "custom" in e.type][-1].endswith("input.done")
