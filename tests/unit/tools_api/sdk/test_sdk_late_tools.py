"""Tools that come and go: defined once where they come, and left out of the choice."""

from typing import Any

import pytest

from keepwarm import Tool, tool
from keepwarm.testing import AskedTurn, ScriptedServer, call
from tools_api.sdk.late_tools import items_for, name_of, restricted


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(name="pay")
def pay_otherwise(euros: int) -> str:
    """Pay otherwise."""
    return f"{euros} euros"


RAW = {"type": "function", "name": "raw", "parameters": {"type": "object", "properties": {}}}


def brought_by(request: dict[str, Any]) -> list[str]:
    """Names of tools that a request's input defines."""
    if isinstance(request["input"], str):
        return []
    items = [item for item in request["input"] if item.get("type") == "additional_tools"]
    return [entry["name"] for item in items for entry in item["tools"]]


def names_of(request: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in request.get("tools", ())]


def test_a_tool_that_is_added_is_defined_once_and_runs() -> None:
    answers = ["hello", call("pay", amount=3), "done", "more"]
    server = ScriptedServer(answers)
    with server.client() as client:
        session = client.session(tools=[look])
        session.run("hi")
        session.add_tools([pay])
        session.add_tools([pay])
        result = session.run("pay")
        assert [record.output for record in result.calls] == ["paid 3"]
        session.run("again")
    assert [brought_by(request) for request in server.requests] == [[], ["pay"], [], []]
    assert all(names_of(request) == ["look"] for request in server.requests)


def test_a_tool_may_add_tools_for_the_turn_behind_it() -> None:
    server = ScriptedServer([call("find"), call("pay", amount=1), "done"])
    with server.client() as client:

        @tool
        def find() -> str:
            session.add_tools([pay])
            return "found pay"

        session = client.session(tools=[find])
        result = session.run("go")
    assert [record.output for record in result.calls] == ["found pay", "paid 1"]
    assert [brought_by(request) for request in server.requests] == [[], ["pay"], []]


def test_the_newest_definition_counts_and_a_tool_of_the_beginning_stays() -> None:
    server = ScriptedServer(lambda asked: "x")
    with server.client() as client:
        session = client.session(tools=[look])
        session.run("go")
        session.add_tools([pay])
        session.run("go")
        session.add_tools([pay_otherwise])
        session.run("go")
        with pytest.raises(ValueError, match="another tool 'look' from its beginning"):
            session.add_tools([{**look.to_wire(), "description": "Else."}])
        session.add_tools([look])
    assert [brought_by(request) for request in server.requests] == [[], ["pay"], ["pay"]]


def test_a_rewind_and_a_fork_know_what_was_defined_behind_them() -> None:
    server = ScriptedServer(lambda asked: "x")
    with server.client() as client:
        session = client.session(tools=[look])
        session.run("one")
        session.add_tools([pay])
        before = session.fork()
        session.run("two")
        after = session.fork()
        after.run("three")
        before.run("three")
        session.rewind()
        session.run("four")
    assert [brought_by(request) for request in server.requests] == [
        *([], ["pay"]),
        *([], ["pay"]),
        ["pay"],
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, {"mode": "auto", "tools": [{"type": "function", "name": "look"}]}),
        ("required", {"mode": "required", "tools": [{"type": "function", "name": "look"}]}),
        ("none", "none"),
        ({"type": "function", "name": "look"}, {"type": "function", "name": "look"}),
    ],
)
def test_a_tool_that_is_removed_is_left_out_of_the_choice(choice: Any, sent: Any) -> None:
    server = ScriptedServer(lambda asked: "x")
    with server.client() as client:
        session = client.session(tools=[look, pay])
        session.respond("go")
        session.remove_tools(["pay"])
        session.respond("go", **({} if choice is None else {"tool_choice": choice}))
        session.add_tools([pay])
        session.respond("go")
    first, second, third = server.requests
    assert names_of(first) == names_of(second) == names_of(third) == ["look", "pay"]
    if isinstance(sent, dict) and "mode" in sent:
        sent = {"type": "allowed_tools", **sent}
    assert second["tool_choice"] == sent
    assert "tool_choice" not in third
    assert brought_by(third) == []


def test_what_cannot_be_removed_or_chosen_is_said_at_once() -> None:
    server = ScriptedServer(lambda asked: "x")
    with server.client() as client:
        session = client.session(tools=[look])
        with pytest.raises(ValueError, match="no tool 'lok'; it has look"):
            session.remove_tools(["lok"])
        session.add_tools([pay])
        session.remove_tools("pay")  # nobody has read of it
        session.run("go")
        session.remove_tools(["look"])
        with pytest.raises(ValueError, match="names 'look', which was removed"):
            session.respond("go", tool_choice={"type": "function", "name": "look"})
        session.respond("go")
        with pytest.raises(TypeError, match="put @tool"):
            session.add_tools([print])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="not a list"):
            session.add_tools(pay)  # type: ignore[arg-type]
    assert [brought_by(request) for request in server.requests] == [[], []]
    assert server.requests[-1]["tool_choice"] == "none"


def test_a_tool_is_chosen_and_removed_as_itself() -> None:
    server = ScriptedServer([call("pay", amount=1), "done", "more"])
    with server.client() as client:
        session = client.session(tools=[look, pay])
        assert session.run("go", tool_choice=pay).text == "done"
        session.remove_tools([pay])
        session.respond("go", tool_choice=look)
    chosen = [request.get("tool_choice") for request in server.requests]
    assert chosen == [
        {"type": "function", "name": "pay"},
        "auto",
        {"type": "function", "name": "look"},
    ]
    assert repr(look) == "<tool look>"


def test_a_call_that_is_open_is_answered_though_its_tool_was_removed() -> None:
    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    def answers(asked: AskedTurn) -> Any:
        return call("send") if asked.number == 1 else str(asked.items[-1].to_wire()["output"])

    with ScriptedServer(answers).client() as client:
        session = client.session(tools=[send, look])
        (waiting,) = session.run("go").waiting
        session.remove_tools(["send"])
        session.approve(waiting.call_id)
        assert session.run().text == "sent"


def test_definitions_alone_are_left_to_the_caller() -> None:
    with ScriptedServer([call("raw"), "x"]).client() as client:
        session = client.session()
        session.add_tools([RAW])
        assert [c.name for c in session.run("go").waiting] == ["raw"]  # type: ignore[union-attr]


async def test_await_may_stand_before_them() -> None:
    async with ScriptedServer(lambda asked: "x").async_client() as client:
        session = client.session(tools=[look])
        await session.add_tools([pay])
        await session.remove_tools(["look"])
        assert (await session.run("go")).text == "x"


@pytest.mark.parametrize(
    ("given", "name"), [(pay, "pay"), (RAW, "raw"), ({"type": "shell"}, "shell")]
)
def test_a_tool_is_known_by_its_name_or_its_type(given: Tool | dict[str, Any], name: str) -> None:
    assert name_of(given) == name
    assert items_for({name: given}, []) != []
    assert items_for({name: given}, items_for({name: given}, [])) == []


def test_a_namespace_is_removed_as_a_whole() -> None:
    space = {"type": "namespace", "name": "crm", "tools": [RAW, {"name": "other"}]}
    kept = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}
    assert restricted(None, [space, {"type": "shell"}], frozenset({"crm"})) == kept
    some = restricted("auto", [space, {"type": "shell"}], frozenset({"shell"}))
    assert [entry["name"] for entry in some["tools"]] == ["raw", "other"]
    assert {entry["namespace"] for entry in some["tools"]} == {"crm"}
