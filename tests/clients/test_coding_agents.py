"""Codex and Claude Code as they are published, over three turns of their user with tools in them.

They are pointed at the server as ``docs/clients.md`` says. What the default model says is chosen
by ``steering``; instructions, tools, deferred tools, histories and events are the agents' own.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer
from tests.clients.documented import ADDRESS, block_of
from tests.clients.environments import NotToBeHad, large_binary
from tests.clients.playing import kept
from tests.clients.steering import ANSWER, SAID, Body, Passed, steered_messages, steered_responses

LEFT_OUT = os.environ.get("KEEPWARM_ALL_CLIENTS") == "0"
USER = ("Is anything planned?", "And now?", "Once more, please.")


def binary(package: str, name: str) -> Path:
    """Its program; where it cannot be had its test is skipped."""
    if LEFT_OUT:
        pytest.skip(f"`{package}` (npm): KEEPWARM_ALL_CLIENTS=0 leaves it out")
    try:
        return large_binary(package, name)
    except NotToBeHad as reason:
        pytest.skip(f"`{package}` (npm): {reason}")


def played(command: list[Any], folder: Path, environment: dict[str, str]) -> str:
    """Run an agent to its end; what it printed."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=kept() | {"HOME": str(home)} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def base(server: ChildServer) -> str:
    return server.url.removesuffix("/v1")


# Codex


def steer_codex(number: int, create: Body) -> Body:
    """A tool, then the answer, in every turn of the user."""
    create = create | {"max_output_tokens": 200}
    if number % 2 == 0:
        return create | {"tool_choice": {"type": "function", "name": "get_goal"}}
    format_ = {"type": "json_schema", "name": "answer", "strict": True, "schema": ANSWER}
    return create | {"tool_choice": "none", "text": {"format": format_}}


def completed(passed: Passed) -> list[Body]:
    return [e["response"] for e in passed.events if e["type"] == "response.completed"]


def test_codex_plays_three_turns_of_its_user(server: ChildServer, tmp_path: Path) -> None:
    codex = binary("@openai/codex", "codex")
    with steered_responses(base(server), steer_codex) as passed:
        settings = tmp_path / "codex"
        settings.mkdir()
        config = block_of("Codex", "toml").replace(ADDRESS, passed.url)
        (settings / "config.toml").write_text(config, encoding="utf-8")
        said = ""
        for number, question in enumerate(USER):
            command = [codex, "exec", *(["resume", "--last"] if number else [])]
            command += ["--skip-git-repo-check", "--json", question]
            said += played(command, tmp_path, {"CODEX_HOME": str(settings)})
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [e["type"] for e in events].count("turn.completed") == len(USER)
    answers = [
        e["item"]["text"] for e in events if e.get("item", {}).get("type") == "agent_message"
    ]
    assert [SAID in answer for answer in answers] == [True] * len(USER)
    assert not [e for e in passed.events if e["type"] in {"error", "response.failed"}]
    results = [
        i for r in passed.requests for i in r["input"] if i["type"] == "function_call_output"
    ]
    assert results
    first, *later = completed(passed)
    assert first["usage"]["input_tokens"] > 10_000, "its warm-up"
    assert len(later) == 2 * len(USER) + len(USER) - 1, "each process warms up first"
    for response in later:
        usage = response["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        assert cached > 0.8 * usage["input_tokens"]


# Claude Code


def steer_claude_code(number: int, body: Body) -> Body:
    """A tool is looked for and called; in later turns it is called at once."""
    for tool in body["tools"]:
        if tool["name"] == "ToolSearch":
            tool["input_schema"]["properties"]["query"]["enum"] = ["select:CronList"]
    calls = {0: "ToolSearch", 1: "CronList", 3: "CronList", 5: "CronList"}
    body = body | {"max_tokens": 200}
    if number in calls:
        return body | {"tool_choice": {"type": "tool", "name": calls[number]}}
    answer = {"format": {"type": "json_schema", "schema": ANSWER}}
    return body | {"tool_choice": {"type": "none"}, "output_config": answer}


def test_claude_code_plays_three_turns_of_its_user_with_deferred_tools(
    server: ChildServer, tmp_path: Path
) -> None:
    claude = binary("@anthropic-ai/claude-code", "claude")
    said = []
    with steered_messages(base(server), steer_claude_code) as passed:
        lines = block_of("Claude Code", "sh").replace(ADDRESS, passed.url).splitlines()
        exported = (line.removeprefix("export ") for line in lines if line.startswith("export "))
        environment = dict(line.split("=", 1) for line in exported)
        for number, question in enumerate(USER):
            command = [claude, "-p", question, *(["--continue"] if number else [])]
            command += ["--output-format", "json", "--allowedTools", "CronList"]
            printed = played(command, tmp_path, environment)
            said.append(json.loads(printed.splitlines()[-1]))
    assert passed.statuses == [200] * 7
    assert [each["is_error"] for each in said] == [False] * len(USER)
    assert [SAID in each["result"] for each in said] == [True] * len(USER)
    deferred = [[t["name"] for t in r["tools"] if t.get("defer_loading")] for r in passed.requests]
    assert "CronList" not in deferred[0]
    assert deferred[0], "something is deferred"
    assert all("CronList" in names for names in deferred[1:])
    blocks = [e["content_block"] for e in passed.events if e["type"] == "content_block_start"]
    used = [block["name"] for block in blocks if block["type"] == "tool_use"]
    assert used == ["ToolSearch", "CronList", "CronList", "CronList"]
    usages = [e["usage"] for e in passed.events if e["type"] == "message_delta"]
    for usage in usages[1:]:
        read, new = usage["cache_read_input_tokens"], usage["input_tokens"]
        assert read > 20_000
        assert read > 0.9 * (read + new), "a tool that was loaded late leaves the prefix alone"
