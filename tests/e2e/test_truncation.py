"""Tool loops of a served model in a window of 2,048 tokens: what is read, what is told, what is
cached, over each API, and over a restart of the server."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import child_server

OPTIONS = ["--max-context-tokens", "2048", "--kv-cache-mib", "64", "--threads", "1"]
TASK = "What is the price of desk?"
RULES = "You sell furniture."
PARAMETERS = {
    "type": "object",
    "properties": {"product": {"type": "string", "enum": ["lamp", "desk", "chair"]}},
    "required": ["product"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_price", "description": "Get a price.", "parameters": PARAMETERS}

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    size: int
    cached: int
    keepwarm: Wire


@contextlib.contextmanager
def served(folder: Path) -> Iterator[httpx.Client]:
    options = [*OPTIONS, "--journal", str(folder / "journal")]
    with (
        child_server(options, log=folder / "server.log") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("truncation")) as opened:
        yield opened


def asked(client: httpx.Client, path: str, body: Wire) -> Wire:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: Wire = answer.json()
    return found


def price(number: int) -> str:
    return json.dumps({"price": 100 + number, "stock": [number] * 12})


def response_turn(client: httpx.Client, **fields: Any) -> tuple[Wire, Turn]:
    body = {
        "model": "default",
        "temperature": 0,
        "instructions": RULES,
        "tools": [{"type": "function", "strict": True, **FUNCTION}],
        "tool_choice": "required",
        "truncation": "auto",
    }
    response = asked(client, "responses", body | fields)
    assert response["status"] == "completed"
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return response, Turn(size=usage["input_tokens"], cached=cached, keepwarm=response["keepwarm"])


def outputs(response: Wire, number: int) -> list[Wire]:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert calls
    return [
        {"type": "function_call_output", "call_id": each["call_id"], "output": price(number)}
        for each in calls
    ]


def read_by(client: httpx.Client, response_id: str) -> list[Wire]:
    """All that the model read, the oldest first."""
    read: list[Wire] = []
    page: Wire = {"has_more": True}
    while page["has_more"]:
        after = {"after": page["last_id"]} if read else {}
        answer = client.get(
            f"responses/{response_id}/input_items",
            params={"limit": "100", "order": "asc", **after},
        )
        page = answer.json()
        read += page["data"]
    return read


def held_to_the_bars(turns: list[Turn]) -> list[int]:
    """Cuts are few and told, and the turns between them find the cache warm."""
    cuts = [n for n in range(1, len(turns)) if turns[n].size < turns[n - 1].size]
    told = [n for n, turn in enumerate(turns) if turn.keepwarm["warnings"]]
    assert told == cuts
    assert 1 <= len(cuts) <= len(turns) * 30 // 200
    for number in cuts:
        (warning,) = turns[number].keepwarm["warnings"]
        assert warning.startswith("truncation: left out ")
        assert "truncated" in turns[number].keepwarm["kv"]["miss"]
    others = [turn for n, turn in enumerate(turns) if n and n not in cuts]
    assert sum(turn.cached for turn in others) >= 0.9 * sum(turn.size for turn in others)
    return cuts


def test_a_loop_of_200_turns_is_served_whole(client: httpx.Client) -> None:
    turns = list[Turn]()
    fields: Wire = {"input": [{"role": "user", "content": TASK}]}
    for number in range(200):
        response, turn = response_turn(client, **fields)
        turns.append(turn)
        read = read_by(client, response["id"])
        assert read[0]["content"][0]["text"] == TASK
        calls = [item["call_id"] for item in read if item["type"] == "function_call"]
        results = [item["call_id"] for item in read if item["type"] == "function_call_output"]
        assert calls == results
        fields = {"input": outputs(response, number), "previous_response_id": response["id"]}
    held_to_the_bars(turns)


def test_a_history_that_is_resent_over_responses_is_too(client: httpx.Client) -> None:
    turns = list[Turn]()
    said: list[Wire] = [{"role": "user", "content": TASK + " Say it."}]
    for number in range(60):
        response, turn = response_turn(client, input=said)
        turns.append(turn)
        said = [*said, *response["output"], *outputs(response, number)]
    cuts = held_to_the_bars(turns)
    assert turns[cuts[-1]].keepwarm["kv"]["miss"]["truncated"] > 0


def test_a_history_of_chat_completions_is_too(client: httpx.Client) -> None:
    turns = list[Turn]()
    messages: list[Wire] = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": TASK + " In crowns."},
    ]
    for number in range(60):
        body = {
            "model": "default",
            "temperature": 0,
            "messages": messages,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            "truncation": "auto",
        }
        completion = asked(client, "chat/completions", body)
        usage = completion["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        turns.append(
            Turn(size=usage["prompt_tokens"], cached=cached, keepwarm=completion["keepwarm"])
        )
        answer = completion["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": price(number)}
            for each in answer["tool_calls"]
        ]
        messages = [*messages, answer, *results]
    held_to_the_bars(turns)


def test_a_history_of_messages_is_too(client: httpx.Client) -> None:
    turns = list[Turn]()
    messages: list[Wire] = [{"role": "user", "content": TASK + " In dollars."}]
    tool = {"name": "get_price", "description": "Get a price.", "input_schema": PARAMETERS}
    for number in range(60):
        body = {
            "model": "default",
            "temperature": 0,
            "max_tokens": 200,
            "system": RULES,
            "messages": messages,
            "tools": [tool],
            "tool_choice": {"type": "any"},
            "truncation": "auto",
        }
        answer = asked(client, "messages", body)
        usage = answer["usage"]
        cached = usage["cache_read_input_tokens"]
        turns.append(
            Turn(size=usage["input_tokens"] + cached, cached=cached, keepwarm=answer["keepwarm"])
        )
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": price(number)}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        messages = [*messages, {"role": "assistant", "content": answer["content"]}]
        messages.append({"role": "user", "content": results})
    held_to_the_bars(turns)


def test_a_server_that_starts_again_goes_on_behind_the_cut(tmp_path: Path) -> None:
    fields: Wire = {"input": [{"role": "user", "content": TASK}]}
    turns, number = list[Turn](), 0
    for _ in range(2):
        with served(tmp_path) as client:
            for _ in range(35):
                response, turn = response_turn(client, **fields)
                turns.append(turn)
                assert read_by(client, response["id"])[0]["content"][0]["text"] == TASK
                new = outputs(response, number)
                fields = {"input": new, "previous_response_id": response["id"]}
                number += 1
    cuts = [n for n in range(1, 70) if turns[n].size < turns[n - 1].size]
    assert [n for n in range(70) if turns[n].keepwarm["warnings"]] == cuts
    assert [n for n in cuts if n < 35], "one before the restart"
    assert [n for n in cuts if n > 35], "and one behind it"
    assert "so far" in turns[cuts[-1]].keepwarm["warnings"][0]
