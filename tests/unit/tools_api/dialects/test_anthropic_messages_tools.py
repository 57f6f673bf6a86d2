"""Deferred tools: written where a message refers to them, and callable from there on."""

import json
import random
from typing import Any

import pytest

from sessions.durable.transcript import Tail, header_tools
from tests.support.dialects import accepted, refused, stream
from tests.support.sessions_rig import END, Rig, call, spelled
from tools_api.chat_format import TemplateOptions
from tools_api.dialects.anthropic_messages import MESSAGES, count_tokens
from tools_api.items import FunctionCallOutput, Message
from tools_api.limits import Limits
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest


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


@pytest.mark.samples(6)
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


def finds(kind: str, more: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    """The blocks of a search that the server ran."""
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    content = {"type": "tool_search_tool_search_result", "tool_references": references}
    use = {"type": "server_tool_use", "id": "call_s", "name": f"tool_search_tool_{kind}"}
    return [
        use | {"input": more},
        {"type": "tool_search_tool_result", "tool_use_id": "call_s", "content": content},
    ]


def search_of(kind: str) -> dict[str, Any]:
    return {"type": f"tool_search_tool_{kind}", "name": f"tool_search_tool_{kind[:5].rstrip('_')}"}


SEARCHES = ["bm25", "regex", "bm25_20251119", "regex_20251119"]


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_of_the_servers_is_a_tool_and_finds_those_that_are_deferred(kind: str) -> None:
    request = accepted(MESSAGES, body([search_of(kind), tool("a"), later("b")]))
    assert callable_names(request) == ["tool_search", "a"]
    assert not request.warnings
    (search, *_) = request.tools
    assert list(search.parameters["properties"]) == ["pattern" if "regex" in kind else "query"]


@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("whole", [True, False], ids=["resent", "by session"])
def test_a_turn_searches_and_its_history_comes_back(kind: str, whole: bool) -> None:
    rig = Rig(max_context_tokens=100_000)
    asks = {"pattern": "b.*does"} if "regex" in kind else {"query": "what b does"}
    tools = [search_of(kind), tool("a"), later("b"), later("zzz", description="Other.")]
    fields: dict[str, Any] = {"max_tokens": 900}
    fields |= {} if whole else {"keepwarm": {"session": "s"}}
    first = MESSAGES.read(body(tools, **fields))
    client = rig.connect()
    client.create(**first.create)
    rig.reply(call("tool_search", json.dumps(asks)) + END)
    rig.reply(call("b", '{"b": 1}') + END)
    message = first.writer.whole(client.response)
    name = "tool_search_tool_regex" if "regex" in kind else "tool_search_tool_bm25"
    use, result, called = message["content"]
    assert use == {"type": "server_tool_use", "id": use["id"], "name": name, "input": asks}
    assert result == finds("x", {}, "b")[1] | {"tool_use_id": use["id"]}
    assert (called["type"], called["name"]) == ("tool_use", "b")
    assert message["stop_reason"] == "tool_use"
    streamed = [
        event for _, event in stream(MESSAGES.read(body(tools, **fields)).writer, client.events)
    ]
    starts = [e["content_block"] for e in streamed if e["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == [each["type"] for each in message["content"]]
    assert starts[1] == result
    output = {"type": "tool_result", "tool_use_id": called["id"], "content": "done"}
    answer = {"role": "user", "content": [output]}
    said = [{"role": "assistant", "content": message["content"]}, answer]
    again = MESSAGES.read(
        body(tools, *said) if whole else {**body(tools, **fields), "messages": said[1:]}
    )
    client.create(**again.create)
    assert '\\"name\\": \\"b\\"' in rig.engine.last.grammar.lark  # type: ignore[union-attr]
    rig.reply("ok" + END)
    assert client.response["previous_response_id"] is not None
    assert spelled(rig.engine.sessions[rig.engine.last.branch_id]).count("What b does.") == 1


def test_what_a_search_found_is_not_defined_again() -> None:
    blocks = [{"role": "assistant", "content": finds("bm25", {"query": "b"}, "b")}, ASK]
    tools = [search_of("bm25"), tool("search"), later("b")]
    request = accepted(MESSAGES, body(tools, *blocks, *refers("b"), ASK))
    assert prompt(request).count("What b does.") == 1


def test_a_search_that_could_not_look_found_nothing() -> None:
    use, result = finds("bm25", {"query": "b"}, "b")
    error = {"type": "tool_search_tool_result_error", "error_code": "unavailable"}
    blocks = {"role": "assistant", "content": [use, result | {"content": error}]}
    request = accepted(MESSAGES, body([search_of("bm25"), later("b")], blocks, ASK))
    assert callable_names(request) == ["tool_search"]


def test_what_a_search_found_can_be_withdrawn_and_come_back() -> None:
    tools = [search_of("bm25"), tool("a"), later("b")]
    blocks = [{"role": "assistant", "content": finds("bm25", {"query": "b"}, "b")}, ASK]
    for more, offered in (
        ([], True),
        ([changes("tool_removal", "b"), ASK], False),
        ([changes("tool_removal", "b"), ASK, changes("tool_addition", "b"), ASK], True),
    ):
        rig = Rig(max_context_tokens=100_000)
        rig.connect().create(**MESSAGES.read(body(tools, *blocks, *more)).create)
        grammar = rig.engine.last.grammar
        assert grammar is not None
        assert ('\\"name\\": \\"b\\"' in grammar.lark) is offered
        assert spelled(rig.engine.last.new_tokens.tolist()).count("What b does.") == 1


def defines(*tools: dict[str, Any]) -> dict[str, Any]:
    """Additions of tools that stand in them."""
    blocks = [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": each}}
        for each in tools
    ]
    return {"role": "system", "content": blocks}


def asked_of(rig: Rig, name: str) -> bool:
    """Whether the model may call a tool in the turn that runs."""
    grammar = rig.engine.last.grammar
    return grammar is not None and f'\\"name\\": \\"{name}\\"' in grammar.lark


@pytest.mark.parametrize("tools", [[], [tool("a"), later("b")]])
def test_a_tool_that_a_message_defines_is_written_there_and_can_be_called(tools: list[Any]) -> None:
    rig = Rig(max_context_tokens=100_000)
    client = rig.connect()
    dated = {"type": "bash_20250124", "name": "bash"}
    added = defines(tool("late") | {"cache_control": {"type": "ephemeral"}}, dated)
    first = MESSAGES.read(body(tools, added, ASK, max_tokens=900))
    client.create(**first.create)
    assert asked_of(rig, "late")
    assert asked_of(rig, "bash")
    read = spelled(rig.engine.last.new_tokens.tolist())
    assert read.count("What late does.") == 1
    assert read.rindex("What late does.") > read.index("hi"), "it is not in the header"
    rig.reply(call("late", '{"late": 1}') + END)
    (use,) = first.writer.whole(client.response)["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "late", {"late": 1})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "1"}
    said = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    client.create(**MESSAGES.read(body(tools, added, ASK, *said)).create)
    assert asked_of(rig, "late"), "a history that comes again brings it again"
    assert client.response["previous_response_id"] is not None


def test_what_a_message_defines_goes_and_comes_back_by_its_name() -> None:
    added, gone = defines(tool("late")), changes("tool_removal", "late")
    for more, offered in (
        ([gone], False),
        ([gone, changes("tool_addition", "late")], True),
        ([gone, added], True),
        ([added, added], True),
        ([gone, added, gone, gone], False),
    ):
        for messages in ([added, ASK, *more, ASK], [added, *more, ASK]):
            rig = Rig(max_context_tokens=100_000)
            rig.connect().create(**MESSAGES.read(body([tool("a")], *messages)).create)
            assert asked_of(rig, "a")
            assert asked_of(rig, "late") is offered
            assert spelled(rig.engine.last.new_tokens.tolist()).count("What late does.") == 1


def test_what_a_session_was_told_before_can_be_called_when_only_the_new_is_sent() -> None:
    rig = Rig(max_context_tokens=100_000)
    client, session = rig.connect(), {"keepwarm": {"session": "s"}}
    client.create(**MESSAGES.read(body([], defines(tool("late")), ASK, **session)).create)
    rig.reply("ok" + END)
    client.create(**MESSAGES.read(body([], **session)).create)
    assert asked_of(rig, "late")


def test_the_choice_may_name_a_tool_that_a_message_defines() -> None:
    rig, choice = Rig(max_context_tokens=100_000), {"type": "tool", "name": "late"}
    create = MESSAGES.read(body([tool("a")], defines(tool("late")), ASK, tool_choice=choice)).create
    rig.connect().create(**create)
    assert asked_of(rig, "late")
    assert not asked_of(rig, "a")


def test_one_search_is_enough() -> None:
    error = refused(MESSAGES, body([search_of("bm25"), search_of("regex"), later("b")]))
    assert "'tools[1].type'" in error["message"]


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
    (body([], changed(type="tool_definition"), ASK), "messages[1].content[0].tool.definition"),
    *(
        (body([tool("a")], defines(each), ASK), f"messages[1].content[0].tool.definition.{at}")
        for each, at in (
            ({}, "input_schema"),
            (tool(""), "name"),
            (tool("a", description="Another."), "name"),
            (tool("b", input_schema=5), "input_schema"),
            (tool("b", defer_loading=True), "defer_loading"),
            (tool("b", type="mcp_toolset"), "type"),
            (tool("b", type="web_search_20260318"), "type"),
            (search_of("bm25"), "type"),
            (tool("b", allowed_callers=["code_execution"]), "allowed_callers[0]"),
        )
    ),
    (body([], defines(tool("b"), tool("b", description="Another.")), ASK),
     "messages[1].content[1].tool.definition.name"),
    (body([], changed("tool_removal", type="tool_definition", definition=tool("b")), ASK),
     "messages[1].content[0].tool.type"),
    (body([], defines(tool("b", input_schema={"type": "array"})), ASK), "messages"),
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
