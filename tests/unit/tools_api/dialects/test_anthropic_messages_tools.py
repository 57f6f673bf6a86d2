"""Deferred tools: written where a message refers to them, and callable from there on."""

import json
import random
from typing import Any

import pytest

from sessions.durable.transcript import Tail, header_tools
from tests.support.dialects import accepted, refused
from tests.support.sessions_rig import Rig, spelled
from tools_api.chat_format import TemplateOptions
from tools_api.dialects.anthropic_messages import MESSAGES, count_tokens
from tools_api.items import FunctionCallOutput, Message
from tools_api.limits import Limits
from tools_api.requests import CreateRequest, parse_create


def tool(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}}
    return {"name": name, "description": f"What {name} does.", "input_schema": schema, **more}


def later(name: str, **more: Any) -> dict[str, Any]:
    return tool(name, defer_loading=True, **more)


def refers(*names: str, id_: str = "u") -> list[dict[str, Any]]:
    """A use of a search, and the result that refers to tools."""
    content = [{"type": "tool_reference", "tool_name": name} for name in names]
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "search",
                                           "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_,
                                      "content": content}]},
    ]  # fmt: skip


def changes(kind: str, *names: str) -> dict[str, Any]:
    blocks = [{"type": kind, "tool": {"type": "tool_reference", "name": name}} for name in names]
    return {"role": "system", "content": blocks}


ASK = {"role": "user", "content": "hi"}


def body(tools: list[Any], *messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "tools": tools, "messages": [ASK, *messages], **fields}


def callable_names(request: CreateRequest) -> list[str]:
    return [each.name for each in request.tool_choice.callable(request.tools)]


def prompt(request: CreateRequest) -> str:
    """Header and items as a model reads them."""
    renderer = Rig(max_context_tokens=100_000).model.renderer
    options = TemplateOptions()
    header = renderer.header(
        instructions=request.instructions,
        opening=None,
        tools=request.tools,
        options=options,
        parent=None,
    )
    ids, _ = renderer.input(request.input, Tail.START, generate=False, options=options)
    return spelled(header.ids.tolist()) + spelled(ids.tolist())


def test_a_deferred_tool_is_neither_in_the_prompt_nor_callable() -> None:
    request = accepted(MESSAGES, body([tool("a"), later("b"), tool("c")]))
    assert callable_names(request) == ["a", "c"]
    assert [each.name for each in header_tools(request.tools)] == ["a", "c"]
    assert prompt(request) == prompt(accepted(MESSAGES, body([tool("a"), tool("c")])))


def test_a_tool_that_a_result_refers_to_is_written_there_and_callable() -> None:
    request = accepted(MESSAGES, body([tool("search"), later("b")], *refers("b")))
    assert callable_names(request) == ["search", "b"]
    output = request.input[-1]
    assert isinstance(output, FunctionCallOutput)
    assert json.loads(output.output)["function"] == {
        "name": "b",
        "description": "What b does.",
        "parameters": tool("b")["input_schema"],
    }
    assert output.output in prompt(request)


@pytest.mark.parametrize("seed", range(20))
def test_what_stood_before_stays_as_tools_are_found_one_after_the_other(seed: int) -> None:
    """Each prompt begins with the one before it, wherever the new tool stands in the list."""
    rng = random.Random(seed)
    names = [f"t{n}" for n in range(8)]
    fixed = [tool("search"), tool("zebra")]
    found: list[str] = []
    messages: list[Any] = []
    before = ""
    for number in range(20):
        for name in rng.sample(names, rng.randrange(3)):
            messages += refers(name, id_=f"u{number}{name}")
            found.append(name)
        messages.append({"role": "user", "content": f"go on {number}"})
        listed = sorted(
            [*fixed, *(later(name) for name in {*found, rng.choice(names)})],
            key=lambda each: each["name"],
        )
        request = accepted(MESSAGES, body(listed, *messages))
        assert set(callable_names(request)) == {"search", "zebra", *found}
        now = prompt(request)
        assert now.startswith(before)
        before = now
    assert all(before.count(f"What {name} does.") == 1 for name in found)


def test_a_definition_is_written_once_however_often_it_is_referred_to() -> None:
    messages = [message for n in range(1000) for message in refers("b", id_=f"u{n}")]
    large = later("b", **{"description": "x" * 10_000})
    request = accepted(MESSAGES, body([tool("search"), large], *messages))
    outputs = [item.output for item in request.input if isinstance(item, FunctionCallOutput)]
    assert sum("x" * 10_000 in output for output in outputs) == 1
    assert sum(map(len, outputs)) < 100_000


def test_a_reference_to_a_tool_of_the_header_repeats_nothing() -> None:
    request = accepted(MESSAGES, body([tool("search"), tool("b")], *refers("b")))
    assert prompt(request).count("What b does.") == 1
    assert callable_names(request) == ["search", "b"]


def test_text_and_references_of_one_result_stand_in_their_order() -> None:
    content = [
        {"type": "text", "text": "found:"},
        {"type": "tool_reference", "tool_name": "b", "cache_control": {"type": "ephemeral"}},
    ]
    use, result = refers()
    result["content"][0]["content"] = content
    request = accepted(MESSAGES, body([tool("search"), later("b")], use, result))
    output = request.input[-1]
    assert isinstance(output, FunctionCallOutput)
    said, definition = output.output.split("\n")
    assert said == "found:"
    assert json.loads(definition)["function"]["name"] == "b"


def test_tools_come_and_go_by_the_systems_word() -> None:
    tools = [tool("a"), later("b")]
    added = body(tools, changes("tool_addition", "b"), ASK)
    request = accepted(MESSAGES, added)
    assert callable_names(request) == ["a", "b"]
    message = request.input[1]
    assert isinstance(message, Message)
    assert json.loads(message.text)["function"]["name"] == "b"
    gone = body(tools, changes("tool_addition", "b"), changes("tool_removal", "a", "b"), ASK)
    request = accepted(MESSAGES, gone)
    assert callable_names(request) == []
    assert [each.name for each in header_tools(request.tools)] == ["a"], "its KV stays"
    again = body(tools, changes("tool_removal", "a"), ASK, changes("tool_addition", "a"), ASK)
    request = accepted(MESSAGES, again)
    assert callable_names(request) == ["a"]
    assert prompt(request).count("What a does.") == 1


def test_where_a_session_is_continued_by_its_name_deferred_tools_may_be_called() -> None:
    """What referred to them may stand before these messages."""
    request = accepted(MESSAGES, body([tool("a"), later("b")], keepwarm={"session": "s"}))
    assert callable_names(request) == ["a", "b"]
    assert [each.name for each in header_tools(request.tools)] == ["a"]


@pytest.mark.parametrize("kind", ["bm25", "regex", "bm25_20251119", "regex_20251119"])
def test_who_wants_the_server_to_search_is_shown_all_tools(kind: str) -> None:
    search = {"type": f"tool_search_tool_{kind}", "name": "tool_search"}
    request = accepted(MESSAGES, body([search, tool("a"), later("b")]))
    assert callable_names(request) == ["a", "b"]
    assert len(header_tools(request.tools)) == 2
    warnings = " ".join(request.warnings)
    assert "tool_search" in warnings


def test_deferred_tools_are_not_counted() -> None:
    counted = count_tokens(body([tool("a"), later("b")]) | {"max_tokens": None})
    request = parse_create(counted, None, Limits())
    assert [each.name for each in header_tools(request.tools)] == ["a"]


def test_a_tool_choice_may_name_a_deferred_tool_once_it_is_referred_to() -> None:
    tools, choice = [tool("search"), later("b")], {"type": "tool", "name": "b"}
    assert callable_names(accepted(MESSAGES, body(tools, *refers("b"), tool_choice=choice))) == [
        "b"
    ]
    message = refused(MESSAGES, body(tools, tool_choice=choice))["message"]
    assert "'tool_choice'" in message
    assert "no message offers it" in message


def changed(kind: str = "tool_addition", **what: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": what}]}


BAD: list[tuple[dict[str, Any], str]] = [
    (body([later("b")], *refers("x")), "messages[2].content[0].content[0].tool_name"),
    (body([later("b")], *refers("")), "messages[2].content[0].content[0].tool_name"),
    (body([tool("a", defer_loading="yes")]), "tools[0].defer_loading"),
    (body([later("b")], tool_choice={"type": "any"}), "tool_choice"),
    (body([later("b", input_schema={"type": "array"})]), "tools[0].input_schema"),
    (body([later("b"), later("b")]), "tools[1].name"),
    (body([], changes("tool_removal", "a"), ASK), "messages[1].content[0].tool.name"),
    (body([], changed(type="mcp_tool_reference"), ASK), "messages[1].content[0].tool.type"),
    (body([], changed(type="tool_definition"), ASK), "messages[1].content[0].tool.type"),
    (body([], changed(), ASK), "messages[1].content[0].tool.type"),
    (body([], changed(type="tool_reference", name=5), ASK), "messages[1].content[0].tool.name"),
    (
        body([], {"role": "user", "content": [{"type": "tool_reference", "tool_name": "a"}]}),
        "messages[1].content[0].type",
    ),
    (body([], {"role": "user", "content": changes("tool_addition", "a")["content"]}),
     "messages[1].content[0].type"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "param"), BAD)
def test_what_refers_to_no_tool_is_refused_by_its_path(raw: dict[str, Any], param: str) -> None:
    assert f"'{param}'" in refused(MESSAGES, raw)["message"]
