"""Codex and Claude Code as they are published, when their window is full: they compact and go on.

They are configured as ``keepwarm clients`` prints it, with the served window. What the default
model says is chosen by ``steering``; when to compact, how, and what is kept is the agents' own.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepwarm.commands.clients import CONFIGURED, ServedWindow, served
from keepwarm.demo.child_server import ChildServer
from tests.clients.steering import ANSWER, SAID, Body, steered_messages, steered_responses
from tests.clients.table import CODEX_PROVIDERS
from tests.clients.test_coding_agents import base, binary, completed, played

TASK = "Count for me, please."
LINES = "seq 1 1500"
"""A command whose output takes 4,900 tokens."""
ASKS_CODEX = "CONTEXT CHECKPOINT COMPACTION"
ASKS_CLAUDE = "Respond with TEXT ONLY"
GOES_ON_CLAUDE = "This session is being continued from a previous conversation"
"""What the agents write where they ask for a summary, and where they go on with one."""


def configured(server: ChildServer, name: str, url: str) -> tuple[str, ServedWindow]:
    """What ``keepwarm clients`` prints for an agent that is pointed at ``url``, and the window."""
    found = served(server.url, None)
    return CONFIGURED[name](replace(found, base_url=f"{url}/v1")), found


# Codex


def one_command(create: Body) -> Body:
    """Whatever is run is ``LINES``."""
    for tool in create.get("tools", []):
        if tool.get("name") == "exec_command":
            cmd = {"type": "string", "enum": [LINES]}
            tool["parameters"] = {"type": "object", "properties": {"cmd": cmd},
                                  "required": ["cmd"], "additionalProperties": False}  # fmt: skip
    return create


def steer_codex(_: int, create: Body) -> Body:
    """A command at each question, then the answer; a compaction is left as it is."""
    last = create["input"][-1]
    if last["type"] == "compaction_trigger":
        return create
    create = create | {"max_output_tokens": 300}
    if TASK in json.dumps(last):
        return create | {"tool_choice": {"type": "function", "name": "exec_command"}}
    format_ = {"type": "json_schema", "name": "answer", "strict": True, "schema": ANSWER}
    return create | {"tool_choice": "none", "text": {"format": format_}}


@pytest.mark.parametrize("provider", CODEX_PROVIDERS)
def test_codex_compacts_where_its_window_is_full_and_goes_on(
    provider: str, server: ChildServer, tmp_path: Path
) -> None:
    codex = binary("@openai/codex", "codex")
    with steered_responses(base(server), steer_codex, one_command) as passed:
        config, window = configured(server, "codex", passed.url)
        settings = tmp_path / "codex"
        settings.mkdir()
        named = config.replace('name = "Keepwarm"', f'name = "{provider}"')
        (settings / "config.toml").write_text(named, encoding="utf-8")
        said = ""
        for number in range(4):
            command = [codex, "exec", *(["resume", "--last"] if number else [])]
            command += ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
            said += played([*command, "--json", TASK], tmp_path, {"CODEX_HOME": str(settings)})
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [e["type"] for e in events].count("turn.completed") == 4
    answers = [e["item"]["text"] for e in events
               if e.get("item", {}).get("type") == "agent_message"]  # fmt: skip
    assert [SAID in answer for answer in answers] == [True] * 4
    assert not [e for e in passed.events if e["type"] in {"error", "response.failed"}]
    triggers = [r for r in passed.requests if r["input"][-1]["type"] == "compaction_trigger"]
    asked = [r for r in passed.requests if ASKS_CODEX in json.dumps(r["input"][-1])]
    assert bool(triggers) is (provider == "OpenAI")
    assert bool(asked) is (provider != "OpenAI")
    responses = completed(passed)
    longest = max(response["usage"]["input_tokens"] for response in responses)
    assert longest > window.threshold
    calls = [r for r in responses if r["output"] and r["output"][0]["type"] == "function_call"]
    assert len(calls) == 4
    begun = [call["usage"]["input_tokens"] for call in calls]
    assert max(begun) < window.threshold, "each question finds room"
    cuts = [r for r in responses if r["output"] and r["output"][0]["type"] == "compaction"]
    assert len(cuts) == len(triggers)
    for cut in cuts:
        assert [item["type"] for item in cut["output"]] == ["compaction"]
        context = cut["keepwarm"]["context"]
        assert context["computed"] < 2_000, "the summary is a turn on the warm chain"
        assert context["after"] < context["before"] - 4_000
    compacting = [e for e in passed.events if e["type"] == "response.compaction.compacting"]
    assert len(compacting) == len(triggers)


# Claude Code


def steer_claude_code(_: int, body: Body) -> Body:
    """The same answer to everything, a question for a summary among it."""
    answer = {"format": {"type": "json_schema", "schema": ANSWER}}
    return body | {"max_tokens": 200, "tool_choice": {"type": "none"}, "output_config": answer}


def read_by(body: Body) -> str:
    return json.dumps(body["messages"])


def test_claude_code_compacts_where_its_window_is_full_and_goes_on(
    server: ChildServer, tmp_path: Path
) -> None:
    claude = binary("@anthropic-ai/claude-code", "claude")
    said: list[Any] = []
    with steered_messages(base(server), steer_claude_code) as passed:
        lines, _ = configured(server, "claude-code", passed.url)
        exported = (line.removeprefix("export ") for line in lines.splitlines())
        environment = dict(line.split("=", 1) for line in exported if "=" in line)
        environment["ANTHROPIC_AUTH_TOKEN"] = "none"
        for number in range(3):
            question = f"{TASK} " + " ".join(f"{number}:{n}" for n in range(500))
            command = [claude, "-p", question, *(["--continue"] if number else [])]
            printed = played([*command, "--output-format", "json"], tmp_path, environment)
            said.append(json.loads(printed.splitlines()[-1]))
    assert [each["is_error"] for each in said] == [False] * 3
    assert [SAID in each["result"] for each in said] == [True] * 3
    assert set(passed.statuses) == {200}, "it knows its window, and asks for no more"
    usages = [event["usage"] for event in passed.events if event["type"] == "message_delta"]
    asked = [number for number, each in enumerate(passed.requests) if ASKS_CLAUDE in read_by(each)]
    assert asked
    for number in asked:
        read, new = usages[number]["cache_read_input_tokens"], usages[number]["input_tokens"]
        assert read > 0.8 * (read + new), "a summary is asked for behind what is cached"
    behind = next(n for n in range(asked[0], len(usages)) if n not in asked)
    assert GOES_ON_CLAUDE in read_by(passed.requests[behind])
    assert tokens_of(usages[behind]) < tokens_of(usages[asked[0]]) - 2_000, "it has become shorter"


def tokens_of(usage: Body) -> int:
    """Of a prompt."""
    return int(usage["input_tokens"]) + int(usage["cache_read_input_tokens"])
