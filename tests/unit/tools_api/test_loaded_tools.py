"""Tools that come later: where they are written, when they can be called, and what that costs."""

import random
import re
from typing import Any

import pytest

from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, Rig, call, spelled
from tools_api.item_reading import parse_items
from tools_api.limits import DEFAULT_LIMITS, Limits
from tools_api.loaded_tools import with_loaded
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest

SEARCH = {"type": "tool_search", "execution": "client"}
ROOM = 1_000_000


def function(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    return {"type": "function", "name": name, "description": f"Does {name}.",
            "parameters": schema, "strict": True, **more}  # fmt: skip


def later(name: str, **more: Any) -> dict[str, Any]:
    return function(name, defer_loading=True, **more)


def adds(*names: str) -> dict[str, Any]:
    return {
        "type": "additional_tools",
        "role": "developer",
        "tools": [function(name) for name in names],
    }


def finds(call_id: str, *names: str) -> dict[str, Any]:
    return {
        "type": "tool_search_output",
        "call_id": call_id,
        "tools": [function(name) for name in names],
    }


def user(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text}


def names_bound(rig: Rig) -> list[str]:
    """The tools that the grammar of the newest request lets the model call."""
    grammar = rig.engine.last.grammar
    if grammar is None:
        return []
    return sorted(set(re.findall(r'\\"name\\": \\"(\w+)\\"', grammar.lark)))


@pytest.fixture
def rig() -> Rig:
    return Rig(max_context_tokens=ROOM)


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def searched(client: Client, *names: str, tools: list[Any], **fields: Any) -> dict[str, Any]:
    """A turn that searches, and the turn that reads what was found."""
    turn = client.turn(call("tool_search", '{"query": "x"}') + END, tools=tools, **fields)
    (item,) = turn["output"]
    assert item["type"] == "tool_search_call"
    follows = {"previous_response_id": turn["id"], "input": [finds(item["call_id"], *names)]}
    return client.turn("ok" + END, tools=tools, **follows)


TOOLS = [SEARCH, later("a"), later("b"), function("c")]


def test_deferred_tools_are_neither_in_the_prompt_nor_callable(rig: Rig, client: Client) -> None:
    client.turn("ok" + END, input="hi", tools=TOOLS)
    first = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    assert names_bound(rig) == ["c", "tool_search"]
    client.turn("ok" + END, input="hi", tools=[SEARCH, function("c")])
    assert spelled(rig.engine.sessions[rig.engine.last.branch_id]) == first


def test_what_a_search_finds_can_be_called_from_there_on(rig: Rig, client: Client) -> None:
    found = searched(client, "a", "new", tools=TOOLS, input="hi")
    assert names_bound(rig) == ["a", "c", "new", "tool_search"]
    read = spelled(rig.engine.last.new_tokens.tolist())
    assert '"name": "new"' in read
    assert "Does a." in read
    assert [tool.get("name") for tool in found["tools"]] == [None, "a", "b", "c"]
    after = client.turn(
        call("new", '{"new": 1}') + END,
        input=[user()],
        previous_response_id=found["id"],
        tools=TOOLS,
    )
    assert names_bound(rig) == ["a", "c", "new", "tool_search"]
    assert after["output"][0]["name"] == "new"


def test_added_tools_can_be_called_in_the_same_turn(rig: Rig, client: Client) -> None:
    turn = client.turn(call("a", '{"a": 1}') + END, input=[user(), adds("a")])
    assert names_bound(rig) == ["a"]
    assert turn["tools"] == []
    (item,) = turn["output"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "1"}
    client.turn(END, input=[output, adds("b")], previous_response_id=turn["id"])
    assert names_bound(rig) == ["a", "b"]


def test_a_fork_knows_what_was_loaded_before_it(rig: Rig, client: Client) -> None:
    first = client.turn(END, input=[user(), adds("a")])
    client.turn(END, input=[user(), adds("b")], previous_response_id=first["id"])
    assert names_bound(rig) == ["a", "b"]
    client.turn(END, input=[user("other")], previous_response_id=first["id"])
    assert names_bound(rig) == ["a"]


def test_a_history_that_is_resent_knows_it_too(rig: Rig, client: Client) -> None:
    whole = [user(), adds("a")]
    turn = client.turn("ok" + END, input=whole)
    again = client.turn("ok" + END, input=[*whole, *turn["output"], user("on")])
    assert again["previous_response_id"] == turn["id"]
    assert names_bound(rig) == ["a"]


def test_after_a_restart_it_is_known() -> None:
    rig = JournalRig(MemoryJournal(b"f"), max_context_tokens=ROOM)
    found = searched(rig.connect(), "a", tools=TOOLS, input="hi")
    rig.restart()
    rig.connect().turn(END, input=[user()], previous_response_id=found["id"], tools=TOOLS)
    assert names_bound(rig) == ["a", "c", "tool_search"]


def test_after_a_compaction_it_is_known_and_shown(rig: Rig, client: Client) -> None:
    found = searched(client, "a", "new", tools=TOOLS, input="hi")
    for number in range(6):
        fields = {"input": [user(f"{number} " + "x" * 400)], "previous_response_id": found["id"]}
        found = client.turn("y" * 400 + END, tools=TOOLS, **fields)
    client.create(
        input=[user("on")],
        previous_response_id=found["id"],
        tools=TOOLS,
        context_management=[{"type": "compaction", "compact_threshold": 3000}],
    )
    rig.reply("a summary" + END)
    read = spelled(rig.engine.prompt(rig.engine.last))
    assert "a summary" in read
    assert read.count("Does new.") == read.count("Does a.") == 1
    assert names_bound(rig) == ["a", "c", "new", "tool_search"]
    rig.reply("ok" + END)
    (compaction,) = [i for i in client.response["output"] if i["type"] == "compaction"]
    for fields in (
        {"input": [user("more")], "previous_response_id": client.response["id"]},
        {"input": [compaction, user("more")]},
    ):
        client.turn(END, tools=TOOLS, **fields)
        assert names_bound(rig) == ["a", "c", "new", "tool_search"]


def test_a_truncated_context_offers_what_it_still_shows() -> None:
    rig = Rig(max_context_tokens=6000)
    client = rig.connect()
    turn = client.turn("ok" + END, input=[user("task")])
    turn = client.turn(END, input=[user(), adds("a")], previous_response_id=turn["id"])
    for number in range(12):
        fields = {"input": [user(f"{number} " + "x" * 700)], "previous_response_id": turn["id"]}
        client.create(truncation="auto", max_output_tokens=600, **fields)
        shown = "Does a." in spelled(rig.engine.prompt(rig.engine.last))
        assert names_bound(rig) == (["a"] if shown else [])
        rig.reply("y" * 300 + END)
        turn = client.response
    assert not shown


def test_loading_leaves_what_stands_before_as_it_was(rig: Rig, client: Client) -> None:
    """Two hundred deferred tools: the bars of docs/protocol.md."""
    deferred = [later(f"t{n}", description=f"Tool {n}. " + "about it " * 40) for n in range(200)]
    tools = [SEARCH, *deferred]
    client.turn("ok" + END, input="hi", tools=[SEARCH])
    alone = len(rig.engine.sessions[rig.engine.last.branch_id])
    turn = client.turn(call("tool_search", '{"query": "x"}') + END, input="hi", tools=tools)
    assert turn["usage"]["input_tokens"] == alone - len("ok") - 1
    (item,) = turn["output"]
    five = [deferred[n] | {"defer_loading": False} for n in (3, 50, 51, 120, 199)]
    output = {"type": "tool_search_output", "call_id": item["call_id"], "tools": five}
    after = client.turn(END, input=[output], previous_response_id=turn["id"], tools=tools)
    assert names_bound(rig) == sorted(["tool_search", *(tool["name"] for tool in five)])
    uncached = (
        after["usage"]["input_tokens"] - after["usage"]["input_tokens_details"]["cached_tokens"]
    )
    new = len(rig.engine.last.new_tokens)
    assert uncached <= new + 2 * rig.engine.block_size
    fresh = Rig(max_context_tokens=ROOM)
    fresh.connect().turn(END, input=[user("hi"), item, output], tools=tools)
    text = spelled(fresh.engine.sessions[fresh.engine.last.branch_id])
    assert all(text.count(tool["description"]) == 1 for tool in five)


def test_a_choice_may_name_what_was_loaded(rig: Rig, client: Client) -> None:
    choice = {"type": "function", "name": "a"}
    found = client.turn(END, input=[user(), adds("a")])
    turn = client.turn(
        call("a", '{"a": 1}') + END,
        input=[user()],
        previous_response_id=found["id"],
        tool_choice=choice,
    )
    assert names_bound(rig) == ["a"]
    assert turn["tool_choice"] == choice
    client.turn(END, input=[user(), adds("b")], tool_choice="required")
    assert names_bound(rig) == ["b"]
    for unknown in ({"input": [user()], "previous_response_id": found["id"]}, {"input": "x"}):
        (event,) = client.create(tool_choice={"type": "function", "name": "x"}, **unknown)
        assert event["error"]["param"] == "tool_choice"
    (event,) = client.create(
        tool_choice={"type": "function", "name": "a"}, input="x", tools=[SEARCH, later("a")]
    )
    assert "may not be called" in event["error"]["message"]


def test_a_tool_of_the_header_stays_as_the_header_has_it(rig: Rig, client: Client) -> None:
    other = function("a", parameters={"type": "object", "properties": {}})
    item = {"type": "additional_tools", "role": "developer", "tools": [other]}
    client.turn(END, input=[user(), item], tools=[function("a")])
    grammar = rig.engine.last.grammar
    assert grammar is not None
    assert '"a":{"type":"integer"' in grammar.lark.replace(" ", "")


def test_the_newest_definition_of_a_tool_counts(rig: Rig, client: Client) -> None:
    turn = client.turn(END, input=[user(), adds("a")])
    newer = function("a", parameters={"type": "object", "properties": {"zeta": {"const": 1}}})
    item = {"type": "additional_tools", "role": "developer", "tools": [newer]}
    client.turn(END, input=[user(), item], previous_response_id=turn["id"])
    grammar = rig.engine.last.grammar
    assert grammar is not None
    assert "zeta" in grammar.lark
    assert "integer" not in grammar.lark


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": [user()], "tools": [later(f"t{n}") for n in range(10_000)]}, "tools"),
    ({"input": [user()], "tools": [function(f"t{n}") for n in range(129)]}, "tools"),
    ({"input": [user(), adds(*(f"t{n}" for n in range(129)))]}, "input[1].tools"),
    ({"input": [user(), adds("a", "a")]}, "input[1].tools[1].name"),
    ({"input": [user(), adds("a") | {"role": "user"}]}, "input[1].role"),
    ({"input": [user(), finds("call_none", "a")]}, None),
    ({"input": [user(), adds(*(f"t{n}" for n in range(100))), adds(*(f"u{n}" for n in range(29)))]},
     "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_is_refused_by_its_path(
    client: Client, fields: dict[str, Any], param: str | None
) -> None:
    (event,) = client.create(**fields)
    assert event["type"] == "error"
    if param is not None:
        assert event["error"]["param"] == param
    assert client.turn("ok" + END, input="hi")["status"] == "completed", "the connection is usable"


def test_a_thousand_deferred_tools_are_bounded(rig: Rig, client: Client) -> None:
    client.turn(END, input="hi", tools=[SEARCH, *(later(f"t{n}") for n in range(1000))])
    assert names_bound(rig) == ["tool_search"]
    assert len(rig.engine.last.new_tokens) < 2000


def test_without_a_search_it_is_said_that_they_wait(client: Client) -> None:
    turn = client.turn(END, input="hi", tools=[later("a")])
    (warning,) = turn["keepwarm"]["warnings"]
    assert "deferred" in warning
    assert not client.turn(END, input="hi", tools=TOOLS)["keepwarm"]["warnings"]


def test_random_histories_offer_what_a_model_has_read() -> None:
    """Chains, forks and whole histories against a list of what was said."""
    rng = random.Random(7)
    rig = Rig(max_context_tokens=ROOM)
    client = rig.connect()
    said: dict[str, list[dict[str, Any]]] = {}
    names = [f"t{n}" for n in range(6)]
    for number in range(60):
        new: list[dict[str, Any]] = [user(f"turn {number}")]
        if rng.random() < 0.4:
            new.append(adds(*rng.sample(names, rng.randint(1, 2))))
        base = rng.choice([None, *list(said)[-4:]])
        before = [] if base is None else said[base]
        resent = base is None or rng.random() < 0.5
        fields = {"input": before + new} if resent else {"input": new, "previous_response_id": base}
        turn = client.turn(f"answer {number}" + END, tools=[later("t0"), function("z")], **fields)
        said[turn["id"]] = [*before, *new, *turn["output"]]
        brought = {tool["name"] for item in before + new for tool in item.get("tools", ())}
        assert names_bound(rig) == sorted({"z", *brought})
        text = spelled(rig.engine.sessions[rig.engine.last.branch_id])
        assert all(f"Does {name}." in text for name in brought)


def read(tools: list[Any], *items: Any, **fields: Any) -> CreateRequest:
    raw = {"tools": tools, "input": list(items), **fields}
    return parse_create(raw, None, DEFAULT_LIMITS)


@pytest.mark.parametrize("again", [0, 1, 2])
def test_loading_twice_is_loading_once(again: int) -> None:
    items = [user(), adds("a", "b"), adds("b")]
    request = read([later("a"), function("c")], *items)
    loaded = with_loaded(request, parse_items(items), Limits())
    for _ in range(again):
        loaded = with_loaded(loaded, parse_items(items), Limits())
    offered = [tool.name for tool in loaded.tool_choice.callable(loaded.tools)]
    assert offered == ["a", "c", "b"]
    assert [tool.name for tool in loaded.tools if tool.in_header] == ["c"]
    assert [tool.by_item for tool in loaded.tools] == [False, False, True]


def updates(**settings: Any) -> dict[str, Any]:
    return {"type": "configuration_update", **settings}


ENUM = {"type": "object", "properties": {"a": {"enum": ["zeta"]}}, "required": ["a"],
        "additionalProperties": False}  # fmt: skip
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": ENUM, "strict": True}}
ZETA = '{"a": "zeta"}' + END
PLAIN = {"format": {"type": "text"}}


def in_force(client: Client) -> tuple[str | None, str]:
    response = client.response
    return response["reasoning"]["effort"], response["text"]["format"]["type"]


def test_a_configuration_is_in_force_until_the_next_one(rig: Rig, client: Client) -> None:
    first = client.turn("ok" + END, input=[user(), updates(reasoning={"effort": "high"})])
    assert in_force(client) == ("high", "text")
    second = client.turn(
        ZETA,
        input=[user(), updates(text=FORMAT)],
        previous_response_id=first["id"],
    )
    assert in_force(client) == ("high", "json_schema")
    assert "zeta" in rig.engine.last.grammar.lark  # type: ignore[union-attr]
    client.turn(ZETA, input=[user()], previous_response_id=second["id"])
    assert in_force(client) == ("high", "json_schema")
    client.turn(
        "ok" + END,
        input=[user(), updates(reasoning={"effort": None}, text=PLAIN)],
        previous_response_id=second["id"],
    )
    assert in_force(client) == (None, "text")
    client.turn("ok" + END, input=[user()], previous_response_id=first["id"])
    assert in_force(client) == ("high", "text"), "a fork from before knows nothing of it"


def test_no_model_reads_of_a_configuration(rig: Rig, client: Client) -> None:
    client.turn("ok" + END, input=[user(), updates(text=PLAIN), user("on")])
    with_it = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    client.turn("ok" + END, input=[user(), user("on")])
    assert spelled(rig.engine.sessions[rig.engine.last.branch_id]) == with_it


def test_a_configuration_outlasts_a_restart_and_a_compaction() -> None:
    rig = JournalRig(MemoryJournal(b"f"), max_context_tokens=ROOM)
    client = rig.connect()
    turn = client.turn(ZETA, input=[user(), updates(text=FORMAT), adds("a")])
    for number in range(6):
        fields = {"input": [user(f"{number} " + "x" * 400)], "previous_response_id": turn["id"]}
        turn = client.turn(ZETA, **fields)
    rig.restart()
    client = rig.connect()
    client.create(
        input=[user("on")],
        previous_response_id=turn["id"],
        context_management=[{"type": "compaction", "compact_threshold": 1500}],
    )
    rig.reply("a summary" + END)
    rig.reply(ZETA)
    assert in_force(client) == (None, "json_schema")
    (compaction,) = [i for i in client.response["output"] if i["type"] == "compaction"]
    cut = client.response["id"]
    assert names_bound(rig) == ["a"]
    client.turn(ZETA, input=[compaction, user()])
    assert in_force(client) == (None, "json_schema")
    rig.restart()
    client = rig.connect()
    client.turn(ZETA, input=[user()], previous_response_id=cut)
    assert in_force(client) == (None, "json_schema")
    assert names_bound(rig) == ["a"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (updates(reasoning={"effort": "moon"}), "input[1].reasoning.effort"),
        (updates(reasoning=[]), "input[1].reasoning"),
        (updates(text={"format": {"type": "moon"}}), "input[1].text.format.type"),
        (
            updates(text={"format": {"type": "json_schema", "name": "x"}}),
            "input[1].text.format.schema",
        ),
        (updates(text=1), "input[1].text"),
    ],
)
def test_a_faulty_configuration_is_refused_by_its_path(
    client: Client, item: dict[str, Any], param: str
) -> None:
    (event,) = client.create(input=[user(), item])
    assert event["error"]["param"] == param
