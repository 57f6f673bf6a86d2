"""The sessions core on the real engine, without sockets: what a session keeps warm."""

import json
from typing import Any

import pytest

from tests.support.engine_agent import EngineAgent, next_input
from tests.support.sessions_rig import tool

BLOCK = 16
FIND = tool("find", query={"type": "string", "maxLength": 6})


def total(response: dict[str, Any]) -> int:
    return response["usage"]["total_tokens"]


def cached(response: dict[str, Any]) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("resend", [False, True], ids=["by id", "resent history"])
def test_the_next_turn_finds_all_whole_blocks_of_the_last_one(resend: bool) -> None:
    agent = EngineAgent()
    new: list[dict[str, Any]] = [{"role": "user", "content": "Find the red shoes."}]
    history: list[dict[str, Any]] = []
    chain: dict[str, Any] = {}
    before = None
    for number in range(6):
        history += new
        response = agent.turn(
            input=history if resend else new,
            tools=[FIND],
            tool_choice="required" if number % 2 == 0 else "none",
            **chain,
        )
        if before is not None:
            assert cached(response) >= (total(before) - 1) // BLOCK * BLOCK
        if not resend:
            chain = {"previous_response_id": response["id"]}
        history += response["output"]
        new, before = next_input(response, f"answer {number}"), response


def test_a_loop_computes_and_sends_only_what_is_new() -> None:
    agent = EngineAgent()
    response = agent.turn(input="x" * 100, max_output_tokens=8)
    for _ in range(19):
        response = agent.turn(
            input="x" * 100, previous_response_id=response["id"], max_output_tokens=8
        )
        computed = response["usage"]["input_tokens_details"]["cache_write_tokens"]
        assert computed <= agent.tokens_sent[-1] + BLOCK
    assert max(agent.tokens_sent[1:]) <= agent.tokens_sent[0] + BLOCK
    assert total(response) > 2000


@pytest.mark.tail
def test_a_session_says_the_same_when_its_engine_was_replaced_in_between() -> None:
    said: list[list[str]] = []
    for restart_after in (None, 0, 2):
        agent, texts = EngineAgent(), list[str]()
        response: dict[str, Any] = {"output": []}
        for number in range(4):
            chain = {"previous_response_id": response["id"]} if number else {}
            response = agent.turn(
                input=next_input(response, f"question {number}"), tools=[FIND], **chain
            )
            texts.append(json.dumps([shown(item) for item in response["output"]]))
            if number == restart_after:
                agent.restart_engine()
        said.append(texts)
    assert said[1] == said[0]
    assert said[2] == said[0]


@pytest.mark.tail
def test_a_fork_says_what_the_trunk_says() -> None:
    agent = EngineAgent()
    first = agent.turn(input="Tell me more.")
    trunk = agent.turn(input="And then?", previous_response_id=first["id"])
    agent.turn(input="Something else.", previous_response_id=trunk["id"])
    fork = agent.turn(input="And then?", previous_response_id=first["id"])
    assert list(map(shown, fork["output"])) == list(map(shown, trunk["output"]))


@pytest.mark.tail
def test_a_changed_header_reuses_nothing_and_says_why() -> None:
    agent = EngineAgent()
    first = agent.turn(input="x" * 100, instructions="Be kind.")
    second = agent.turn(input="y", instructions="Be quick.", previous_response_id=first["id"])
    miss = second["keepwarm"]["kv"]["miss"]
    assert sum(miss.values()) == second["usage"]["input_tokens"] - cached(second)
    assert miss["header_changed"] > 100


def shown(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}
