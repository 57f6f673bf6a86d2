"""Turns that call built-in tools: their items, their events, and histories that have them."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
TOOLS: list[dict[str, Any]] = [
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    tool("f"),
]
SHELL = {"commands": ["ls -l", 'echo "é"'], "timeout_ms": 5000}
LOCAL = {"command": ["ls", "-l"], "env": {"A": "b"}}
PATCH = {"operation": {"type": "create_file", "path": "a.py", "diff": "+x = 1"}}
OUTPUTS: dict[str, dict[str, Any]] = {
    "shell": {
        "type": "shell_call_output",
        "output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "local_shell": {"type": "local_shell_call_output", "output": "a.py"},
    "apply_patch": {"type": "apply_patch_call_output", "status": "completed", "output": "a.py"},
}


@pytest.fixture
def rig() -> Rig:
    return Rig(max_context_tokens=100_000)


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def written(name: str, arguments: dict[str, Any]) -> str:
    return call(name, json.dumps(arguments, ensure_ascii=False)) + END


def events_of(client: Client) -> list[dict[str, Any]]:
    for event in client.events:
        bare = dict(event)
        if isinstance(bare.get("response"), dict):
            bare["response"] = {k: v for k, v in bare["response"].items() if k != "keepwarm"}
        PUBLISHED.validate_python(bare)
    return client.events


def test_a_shell_call_tells_its_commands_as_they_are_written(rig: Rig, client: Client) -> None:
    client.create(input="list", tools=TOOLS)
    text = written("shell", SHELL)
    begin, end = text.index("\n"), text.rindex("\n")
    pieces = [text[at : at + 7] for at in range(begin, end - 7, 7)]
    for piece in (text[:begin], *pieces):
        rig.emit(piece)
    rig.reply(text[begin + 7 * len(pieces) :])
    told = [event for event in events_of(client) if "shell_call_command" in event["type"]]
    done = [event["command"] for event in told if event["type"].endswith("done")]
    assert done == SHELL["commands"]
    for index, command in enumerate(done):
        own = [event for event in told if event["command_index"] == index]
        assert own[0]["type"].endswith("added")
        assert "".join(event.get("delta", "") for event in own) == command
    (item,) = client.response["output"]
    assert item["action"] == SHELL
    assert item["id"].startswith("sh_")
    added = next(event for event in client.events if event["type"].endswith("item.added"))
    assert added["item"] == item | {"action": {"commands": []}, "status": "in_progress"}
    assert len([event for event in told if event["type"].endswith("delta")]) > len(done)


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [("shell", SHELL, "action"), ("local_shell", LOCAL, "action"), ("apply_patch", PATCH, None)],
)
def test_a_call_is_answered_and_the_model_goes_on(
    rig: Rig, client: Client, name: str, arguments: dict[str, Any], field: str | None
) -> None:
    turn = client.turn(written(name, arguments), input="go", tools=TOOLS)
    (item,) = turn["output"]
    assert item["type"] == f"{name}_call"
    assert item["status"] == "completed"
    inner = item if field is None else item[field]
    assert inner.items() >= arguments.items()
    output = OUTPUTS[name] | {"call_id": item["call_id"]}
    after = client.turn("done" + END, input=[output], previous_response_id=turn["id"], tools=TOOLS)
    assert after["status"] == "completed"
    read = spelled(rig.engine.last.new_tokens.tolist())
    assert "a.py" in read
    events_of(client)
    whole = [{"role": "user", "content": "go"}, item, output, *after["output"], _user("on")]
    again = client.turn("ok" + END, input=whole, tools=TOOLS)
    assert again["previous_response_id"] == after["id"], "a history that is resent is found"


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_history_from_elsewhere_reads_like_one_of_functions(rig: Rig, client: Client) -> None:
    item = {"type": "shell_call", "call_id": "c", "action": SHELL}
    client.turn(END, input=[_user("go"), item, OUTPUTS["shell"] | {"call_id": "c"}])
    ours = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    as_function = {"type": "function_call", "call_id": "c", "name": "shell"}
    as_function["arguments"] = json.dumps(SHELL, ensure_ascii=False)
    output = {"type": "function_call_output", "call_id": "c", "output": "a.py\nexit code: 0"}
    client.turn(END, input=[_user("go"), as_function, output])
    assert spelled(rig.engine.sessions[rig.engine.last.branch_id]) == ours


@pytest.mark.parametrize("name", ["shell", "local_shell", "apply_patch"])
def test_a_call_that_is_cut_short_ends_incomplete(client: Client, name: str) -> None:
    arguments = {"shell": SHELL, "local_shell": LOCAL, "apply_patch": PATCH}[name]
    text = call(name, json.dumps(arguments))
    for end in range(text.index('arguments": ') + 13, len(text) - 12, 5):
        turn = client.turn(text[:end], input="go", tools=TOOLS, max_output_tokens=4000)
        (item,) = turn["output"]
        assert item["type"] == f"{name}_call"
        assert item["status"] == ("in_progress" if name == "apply_patch" else "incomplete")
        if name == "shell":
            told = [e["command"] for e in client.events if e["type"].endswith("command.done")]
            assert item["action"]["commands"] == told[len(told) - len(item["action"]["commands"]) :]
        after = client.turn(END, input=[_user("on")], previous_response_id=turn["id"], tools=TOOLS)
        assert after["status"] == "completed"
    events_of(client)


def test_calls_of_built_in_tools_and_functions_may_come_together(client: Client) -> None:
    reply = call("shell", json.dumps(SHELL)) + "\n" + call("f") + "\n"
    reply += call("apply_patch", json.dumps(PATCH)) + END
    turn = client.turn(reply, input="go", tools=TOOLS)
    kinds = [item["type"] for item in turn["output"]]
    assert kinds == ["shell_call", "function_call", "apply_patch_call"]
    by_kind = {item["type"]: item["call_id"] for item in turn["output"]}
    outputs = [
        {"type": "function_call_output", "call_id": by_kind["function_call"], "output": "1"},
        OUTPUTS["apply_patch"] | {"call_id": by_kind["apply_patch_call"]},
        OUTPUTS["shell"] | {"call_id": by_kind["shell_call"]},
    ]
    after = client.turn(END, input=outputs, previous_response_id=turn["id"], tools=TOOLS)
    assert after["status"] == "completed"
    events_of(client)


def test_an_item_of_a_built_in_tool_can_be_referred_to(client: Client) -> None:
    turn = client.turn(written("shell", SHELL), input="go", tools=TOOLS)
    (item,) = turn["output"]
    output = OUTPUTS["shell"] | {"call_id": item["call_id"]}
    whole = [_user("go"), {"type": "item_reference", "id": item["id"]}, output]
    after = client.turn(END, input=whole, tools=TOOLS)
    assert after["previous_response_id"] == turn["id"]


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_a_choice_binds_the_turn_to_it(rig: Rig, client: Client, kind: str) -> None:
    client.create(input="go", tools=TOOLS, tool_choice={"type": kind})
    grammar = rig.engine.last.grammar
    assert grammar is not None
    assert grammar.binds_all
    assert f'\\"name\\": \\"{kind}\\"' in grammar.lark
    assert '\\"name\\": \\"f\\"' not in grammar.lark


def test_an_output_without_its_call_is_refused(client: Client) -> None:
    output = OUTPUTS["shell"] | {"call_id": "call_none"}
    (event,) = client.create(input=[_user("go"), output], tools=TOOLS)
    assert event["type"] == "error"
    assert "call_none" in event["error"]["message"]
