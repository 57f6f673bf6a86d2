"""Numbers of many digits through a real server: asked for, written, echoed and sent back."""

import asyncio
from decimal import Decimal
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import ChildServer
from tests.support.exact_schemas import satisfies
from tests.support.wire_client import WireClient
from tools_api.exact_json import dumps, loads, written

SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "enum": [7205759403792793601, 7205759403792793603]},
    {"const": 36893488147419103233},
    {"const": Decimal("31415926535.89793238462643383279")},
    {"type": "integer", "minimum": -(2**63), "maximum": -(2**63) + 3},
    {"type": "integer", "exclusiveMinimum": 2**64, "maximum": 2**64 + 2},
    {"type": "number", "minimum": 0.30000000000000004, "maximum": 0.30000000000000010},
    {"type": "array", "items": {"const": {"id": 2**53 + 1}}, "minItems": 2, "maxItems": 2},
    {"anyOf": [{"const": 2**60 + 1}, {"const": [2**60 + 3]}]},
]


def tool(schema: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "additionalProperties": False,
    }
    return {"type": "function", "name": "act", "strict": True, "parameters": parameters}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: written(schema)[:60])
def test_a_call_and_an_answer_hold_to_the_last_digit_and_are_sent_back(
    server: ChildServer, schema: Any
) -> None:
    async def play() -> None:
        client = await WireClient.open(server.url)
        fields = {"tools": [tool(schema)], "tool_choice": "required", "parallel_tool_calls": False}
        first = await client.response(input="go", max_output_tokens=300, **fields)
        assert first["status"] == "completed"
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        assert satisfies(tool(schema)["parameters"], call["arguments"]), call
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
        format_ = {"type": "json_schema", "name": "x", "strict": True}
        second = await client.response(
            previous_response_id=first["id"],
            input=[output],
            max_output_tokens=300,
            text={"format": format_ | {"schema": tool(schema)["parameters"]}},
        )
        (message,) = [item for item in second["output"] if item["type"] == "message"]
        assert satisfies(tool(schema)["parameters"], message["content"][0]["text"])
        await client.close()

    asyncio.run(play())


def test_what_a_request_says_is_echoed_digit_by_digit(server: ChildServer) -> None:
    defaults = [2**64 + 1, Decimal("0.12345678901234567890"), 123456789.12345679]
    body = {"model": "default", "input": "go", "max_output_tokens": 16}
    told = body | {"tools": [tool({"type": "number", "default": defaults})], "tool_choice": "none"}
    answer = httpx.post(
        f"{server.url}/responses",
        content=dumps(told),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    echoed = loads(answer.content)["tools"][0]["parameters"]["properties"]["v"]["default"]
    assert echoed == defaults


def test_a_block_of_a_message_has_its_input_to_the_last_digit(server: ChildServer) -> None:
    value = 36893488147419103233
    told = {
        "model": "default",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "act", "input_schema": tool({"const": value})["parameters"]}],
        "tool_choice": {"type": "any"},
    }
    answer = httpx.post(
        f"{server.url}/messages",
        content=dumps(told),
        headers={"Content-Type": "application/json", "anthropic-version": "2023-06-01"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert loads(answer.content)["content"][0]["input"] == {"v": value}
