"""``examples/frameworks``: each on one server with the default model, its tool called and kept.

Each runs in the environment of its client; where that cannot be had it is skipped by name.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.environments import Environment
from tests.clients.playing import made, run
from tests.clients.steering import SAID, steered_responses
from tests.clients.table import AGENTS, CLIENTS
from tests.clients.test_coding_agents import base, binary, steer_codex
from tests.support.architecture import ROOT

FOLDER = ROOT / "examples/frameworks"
ENVIRONMENTS = {
    "langgraph_agent": "langchain-openai",
    "openai_agents": "openai-agents",
    "pydantic_ai_agent": "pydantic-ai",
    "google_adk_agent": "google-adk",
}
"""Example -> the requirements that it runs with."""


def files() -> dict[str, Path]:
    return {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}


def test_every_example_is_played_and_short() -> None:
    assert files().keys() == ENVIRONMENTS.keys() | {"codex_agent"}
    for path in files().values():
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name


def environment_of(name: str) -> Environment:
    rows = [*CLIENTS, *AGENTS]
    return made(next(row for row in rows if row.environment == ENVIRONMENTS[name]))


def got(server: ChildServer, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_example_calls_its_tool_and_its_session_keeps_what_was_said(
    name: str, server: ChildServer
) -> None:
    session = f"example-{name}"
    printed = run(environment_of(name), files()[name], server.url, session)
    answers = [line for line in printed.splitlines() if line]
    assert len(answers) == 2  # that the model reads a price aright is nobody's promise here
    head = got(server, f"/sessions/{session}")["head"]
    items = got(server, f"/responses/{head}/input_items?order=asc&limit=100")["data"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["get_price", "get_price"]
    assert [json.loads(call["arguments"])["product"] for call in calls] == ["desk", "lamp"]
    outputs = [item for item in items if item["type"] == "function_call_output"]
    assert [output["call_id"] for output in outputs] == [call["call_id"] for call in calls]
    assert "180" in str(outputs[0]["output"])


def test_codex_answers_by_way_of_the_example(server: ChildServer) -> None:
    codex = binary("@openai/codex", "codex")
    with steered_responses(base(server), steer_codex) as passed:
        python = environment_of("openai_agents")
        printed = run(python, files()["codex_agent"], f"{passed.url}/v1", str(codex))
    assert SAID in printed
    said = [e["response"] for e in passed.events if e["type"] == "response.completed"]
    calls = [item for each in said for item in each["output"] if item["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["get_goal"]
