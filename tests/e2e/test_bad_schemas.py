"""Bad tools and schemas over a real server: a typed error on that turn, and nobody else hears."""

import asyncio
import json
import re
import time
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.support.wire_client import WireClient

VERDICT_S = 4.0
"""A probe has two seconds; the rest is for a busy machine."""


def tool(parameters: Any = None, name: str = "f", *, strict: bool = True) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "strict": strict,
        "parameters": parameters or {"type": "object", "properties": {}},
    }


def of_property(schema: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "additionalProperties": False,
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = of_property(schema)
    return schema


WIDE = {f"property_{i}": {"type": "string", "description": "x" * 40} for i in range(4000)}
ENDLESS = of_property({"$ref": "#"})
HOSTILE = (
    "^((x{1,999}){1,999}){9,999}$",
    "^(.{0,60}x){0,60}$",
    "^(.*a){30}$",
    "^[ab]*a[ab]{30}$",
)
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("1,000 tools", {"tools": [tool(name=f"f{i}") for i in range(1000)]}, "invalid_value", "tools"),
    (
        "a schema beyond the bound in bytes",
        {"tools": [tool({"type": "object", "properties": WIDE})]},
        "invalid_json_schema",
        "tools[0].parameters",
    ),
    ("a deep schema", {"tools": [tool(nested(20))]}, "invalid_json_schema", "tools[0].parameters"),
    ("a schema deeper than any frame", {"tools": [tool(nested(200))]}, "invalid_json", ""),
    (
        "a schema that nothing satisfies",
        {"tools": [tool(ENDLESS)]},
        "invalid_json_schema",
        "tools[0].parameters",
    ),
    (
        "a remote reference",
        {"tools": [tool(of_property({"$ref": "https://example.com/s.json"}))]},
        "invalid_json_schema",
        "tools[0].parameters.properties.a.$ref",
    ),
    (
        "a keyword that cannot be enforced",
        {"tools": [tool(of_property({"not": {"type": "string"}}))]},
        "invalid_json_schema",
        "tools[0].parameters.properties.a.not",
    ),
    *(
        (
            f"a string of at least {size} characters",
            {"tools": [tool(of_property({"type": "string", "minLength": size}))]},
            "invalid_json_schema",
            "tools[0].parameters.properties.a.minLength",
        )
        for size in (6001, 10_000, 1_000_000)
    ),
    (
        "a schema that is none",
        {"text": {"format": {"type": "json_schema", "name": "v", "schema": {"type": "nothing"}}}},
        "invalid_json_schema",
        "text.format.schema",
    ),
]


@pytest.mark.parametrize(("what", "fields", "code", "param"), BAD, ids=[row[0] for row in BAD])
def test_a_bad_schema_is_refused_with_its_place_and_the_connection_lives(
    server: ChildServer, what: str, fields: dict[str, Any], code: str, param: str
) -> None:
    async def play() -> None:
        client = await WireClient.open(server.url)
        started = time.monotonic()
        event = await client.turn(
            input="Call it.", max_output_tokens=60, tool_choice="auto", **fields
        )
        assert time.monotonic() - started < VERDICT_S
        assert event["type"] == "error", event
        assert event["error"]["code"] == code, event
        assert (event["error"]["param"] or "").startswith(param), event
        after = await client.response(input="Hello.", max_output_tokens=4, store=False)
        assert after["usage"]["output_tokens"] > 0
        await client.close()

    asyncio.run(play())


@pytest.mark.parametrize("pattern", HOSTILE)
def test_an_exploding_expression_is_refused_or_hurts_its_own_turn_alone(
    server: ChildServer, pattern: str
) -> None:
    async def play() -> None:
        client = await WireClient.open(server.url)
        started = time.monotonic()
        event = await client.turn(
            input="Call it.",
            max_output_tokens=60,
            tools=[tool(of_property({"type": "string", "pattern": pattern}))],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert time.monotonic() - started < 3 * VERDICT_S
        if event["type"] == "error":
            assert event["error"]["param"].startswith("tools[0].parameters"), event
        elif event["type"] == "response.failed":
            reasons = ("grammar_error", "budget_too_small")
            assert event["response"]["keepwarm"]["reason"] in reasons, event
        elif event["type"] == "response.incomplete":
            (warning,) = event["response"]["keepwarm"]["warnings"]
            assert "No legal ending" in warning
        else:
            (call,) = event["response"]["output"]
            assert re.search(pattern, json.loads(call["arguments"])["a"])
        after = await client.response(input="Hello.", max_output_tokens=4, store=False)
        assert after["usage"]["output_tokens"] > 0
        await client.close()

    asyncio.run(play())


def test_a_tool_name_that_needs_escaping_comes_back_as_it_was(server: ChildServer) -> None:
    name = 'say "hi" \\ {now}'

    async def play() -> None:
        client = await WireClient.open(server.url)
        response = await client.response(
            input="Call it.",
            max_output_tokens=80,
            tools=[tool(nested(1), name), tool(nested(1), "other")],
            tool_choice={"type": "function", "name": name},
            parallel_tool_calls=False,
        )
        (call,) = response["output"]
        assert (call["name"], json.loads(call["arguments"])) == (name, {"a": None})
        await client.close()

    asyncio.run(play())


def test_another_session_talks_on_while_bad_schemas_come_in(server: ChildServer) -> None:
    async def play() -> None:
        quiet = await WireClient.open(server.url)
        talking = asyncio.create_task(
            quiet.response(
                input="Tell me a story.",
                max_output_tokens=400,
                store=False,
                keepwarm={"sampling": {"seed": 7}},
            )
        )
        clients = [await WireClient.open(server.url) for _ in BAD]
        events = await asyncio.gather(
            *(
                client.turn(input="Call it.", max_output_tokens=60, **fields)
                for client, (_, fields, _, _) in zip(clients, BAD, strict=True)
            )
        )
        assert {event["type"] for event in events} == {"error"}
        assert (await talking)["status"] in ("completed", "incomplete")
        for client in (quiet, *clients):
            await client.close()

    asyncio.run(play())
