"""Searches that the server runs within a turn: one response, one turn, one sum."""

import json
import random
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import FinishReason
from sessions.durable.item_ids import read_items
from tests.support.journal_rig import JournalRig
from tests.support.keyed_turns import KEYS, connect_as, spent_by, two_keys
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, Rig, call, spelled, token_ids
from tests.unit.tools_api.test_loaded_tools import ROOM, function, later, names_bound, user

PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
SEARCH = {"type": "tool_search"}
TOOLS = [
    SEARCH,
    later("weather", description="Says how warm it is in a city."),
    later("stocks", description="Says what shares cost."),
    function("c"),
]


ENDS = ("response.completed", "response.incomplete", "response.failed")


def asks(words: str = "how warm is a city") -> str:
    return call("tool_search", json.dumps({"query": words})) + END


@pytest.fixture
def rig() -> Rig:
    return Rig(max_context_tokens=ROOM)


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def searched(rig: Rig, client: Client, *parts: str, **fields: Any) -> dict[str, Any]:
    """A turn of several parts; each is what the model writes in one."""
    client.create(**({"input": "hi", "tools": TOOLS} | fields))
    for part in parts:
        rig.reply(part)
    response: dict[str, Any] = client.response
    return response


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_turn_goes_on_behind_what_was_found(rig: Rig, client: Client) -> None:
    response = searched(rig, client, asks(), call("weather", '{"weather": 1}') + END)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    search, found, made = response["output"]
    assert search["execution"] == found["execution"] == "server"
    assert search["arguments"] == {"query": "how warm is a city"}
    assert search["call_id"] == found["call_id"]
    assert [tool["name"] for tool in found["tools"]] == ["weather"]
    assert made["name"] == "weather"
    assert response["status"] == "completed"
    assert names_bound(rig) == ["c", "tool_search", "weather"]
    for event in client.events:
        bare = dict(event)
        if isinstance(bare.get("response"), dict):
            bare["response"] = {k: v for k, v in bare["response"].items() if k != "keepwarm"}
        PUBLISHED.validate_python(bare)
    numbers = [event["sequence_number"] for event in client.events]
    assert numbers == list(range(len(numbers)))
    assert [event["type"] for event in client.events].count("response.created") == 1
    ends = [event for event in client.events if event["type"].endswith("item.done")]
    assert [event["item"] for event in ends] == response["output"]


def test_the_next_turn_reads_it_as_one_that_was_sent_whole(rig: Rig, client: Client) -> None:
    response = searched(rig, client, asks(), "warm" + END)
    follows = {"previous_response_id": response["id"], "input": [user("and now")], "tools": TOOLS}
    client.turn("ok" + END, **follows)
    chained = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    assert names_bound(rig) == ["c", "tool_search", "weather"]
    assert chained.count("Says how warm") == 1
    whole = [user("hi"), *response["output"], user("and now")]
    again = client.turn("ok" + END, input=whole, tools=TOOLS)
    assert again["previous_response_id"] == response["id"]
    fresh = Rig(max_context_tokens=ROOM)
    fresh.connect().turn("ok" + END, input=whole, tools=TOOLS)
    bare = spelled(fresh.engine.sessions[fresh.engine.last.branch_id])
    assert bare == chained.replace("<think>\n\n</think>\n\n", "", chained.count("<think>") - 1)


def test_what_it_consumed_is_the_sum_of_its_parts(rig: Rig, client: Client) -> None:
    response = searched(rig, client, asks(), "warm" + END)
    first, second = rig.engine.requests
    usage = response["usage"]
    prompts = len(first.new_tokens) + second.base_offset + len(second.new_tokens)
    assert usage["input_tokens"] == prompts
    assert usage["output_tokens"] == len(token_ids(asks())) + len(token_ids("warm" + END))
    (report,) = rig.reports
    assert report.usage.input_tokens == prompts
    account = rig.store.tenant("acme").account.spent
    assert account.output == usage["output_tokens"]
    assert rig.store.tenant("acme").session(response["keepwarm"]["session"]).ledger.turns == 1
    assert account.input_uncached + account.input_cached == prompts
    uncached = prompts - usage["input_tokens_details"]["cached_tokens"]
    new = len(first.new_tokens) + len(second.new_tokens)
    assert uncached <= new + 2 * rig.engine.block_size
    kv = response["keepwarm"]["kv"]
    assert kv["written"] == uncached
    assert sum(kv["miss"].values()) <= uncached


@pytest.mark.parametrize("seed", range(5))
def test_each_key_pays_all_parts_of_its_turns_in_a_session_of_several(seed: int) -> None:
    rng, rig = random.Random(seed), Rig(max_context_tokens=ROOM, tenants=two_keys())
    first = connect_as(rig, "ci").turn("hi" + END, input="hi", tools=TOOLS)
    used = {"ci": first["usage"]["total_tokens"], "web": 0}
    running = {}
    for _ in range(40):
        if len(running) < 3:
            key = rng.choice(KEYS)
            client = connect_as(rig, key)
            client.create(input="more", previous_response_id=first["id"], tools=TOOLS)
            running[client] = (key, rig.engine.last)
        client, (key, request) = rng.choice(list(running.items()))
        rig.reply(asks() if rng.random() < 0.6 else "warm" + END, request)
        running[client] = (key, rig.engine.last)
        if client.last["type"] in ENDS:
            assert client.response["keepwarm"]["session"] == first["keepwarm"]["session"]
            used[key] += client.response["usage"]["total_tokens"]
            del running[client]
    for client, (key, request) in running.items():
        rig.reply("ok" + END, request)
        used[key] += client.response["usage"]["total_tokens"]
    assert {key: spent_by(rig, key) for key in KEYS} == used
    assert min(used.values()) > 0


def test_a_search_that_finds_nothing_goes_on_too(rig: Rig, client: Client) -> None:
    response = searched(rig, client, asks("xyzzy"), "nothing" + END)
    assert response["output"][1]["tools"] == []
    assert names_bound(rig) == ["c", "tool_search"]
    assert "No tools were found." in spelled(rig.engine.last.new_tokens.tolist())


def test_several_searches_follow_each_other(rig: Rig, client: Client) -> None:
    response = searched(rig, client, asks(), asks("shares"), asks("warm"), "done" + END)
    assert kinds(response)[:-1] == ["tool_search_call", "tool_search_output"] * 3
    found = [item["tools"] for item in response["output"] if "tools" in item]
    assert [[tool["name"] for tool in tools] for tools in found] == [["weather"], ["stocks"], []]
    assert names_bound(rig) == ["c", "stocks", "tool_search", "weather"]


@pytest.mark.parametrize(("fields", "most"), [({}, 8), ({"max_tool_calls": 2}, 2)])
def test_searches_are_bounded(rig: Rig, client: Client, fields: dict[str, Any], most: int) -> None:
    client.create(input="hi", tools=TOOLS, **fields)
    for _ in range(most):
        assert "tool_search" in names_bound(rig)
        rig.reply(asks())
    assert "tool_search" not in names_bound(rig)
    rig.reply("enough" + END)
    assert client.response["status"] == "completed"


def test_a_search_has_no_other_call_beside_it(rig: Rig, client: Client) -> None:
    client.create(input="hi", tools=[*TOOLS, function("d")], tool_choice="required")
    grammar = rig.engine.last.grammar
    assert grammar is not None
    alone = next(line for line in grammar.lark.split("\n") if line.startswith("alone:"))
    several = next(line for line in grammar.lark.split("\n") if line.startswith("call:"))
    assert alone.split(": ")[1] not in several


def test_a_choice_of_the_search_is_made_once(rig: Rig, client: Client) -> None:
    client.create(input="hi", tools=TOOLS, tool_choice={"type": "tool_search"})
    assert names_bound(rig) == ["tool_search"]
    rig.reply(asks())
    assert names_bound(rig) == ["c", "tool_search", "weather"]
    assert not rig.engine.last.grammar.binds_all  # type: ignore[union-attr]


def test_it_says_where_each_part_began_with_a_model_that_has_recurrent_layers(
    rig: Rig, client: Client
) -> None:
    rig.engine.recurrent = True
    searched(rig, client, asks(), "warm" + END)
    (report,) = rig.reports
    first, second = report.resumed
    assert (first.position, first.kind) == (0, "")
    assert (second.kind, second.tier) == ("end", "device")
    assert report.usage.cached_tokens == first.position + second.position > 0
    rig.engine.recurrent = False
    client.turn("ok" + END, input="more", tools=TOOLS)
    assert rig.reports[-1].resumed == ()


def test_its_limit_is_of_all_parts(rig: Rig, client: Client) -> None:
    client.create(input="hi", tools=TOOLS, max_output_tokens=200)
    rig.reply(asks())
    spent = len(rig.engine.requests[0].new_tokens)
    assert spent
    first, second = rig.engine.requests
    assert second.max_new_tokens < first.max_new_tokens == 200
    rig.emit("x" * second.max_new_tokens, FinishReason.LENGTH)
    assert client.response["status"] == "incomplete"
    assert client.response["usage"]["output_tokens"] == 200


def test_a_limit_that_leaves_nothing_ends_it_with_what_was_found(rig: Rig, client: Client) -> None:
    used = len(token_ids(asks()))
    client.create(input="hi", tools=TOOLS, max_output_tokens=used)
    rig.reply(asks())
    response = client.response
    assert response["status"] == "incomplete"
    assert kinds(response) == ["tool_search_call", "tool_search_output"]
    after = client.turn(
        "ok" + END, input=[user()], previous_response_id=response["id"], tools=TOOLS
    )
    assert after["status"] == "completed"
    assert names_bound(rig) == ["c", "tool_search", "weather"]


def test_a_turns_budget_is_of_all_parts(rig: Rig, client: Client) -> None:
    budget = {"output": 150, "scope": "turn"}
    client.create(input="hi", tools=TOOLS, keepwarm={"budget": budget})
    rig.reply(asks())
    first, second = rig.engine.requests
    assert second.max_new_tokens < first.max_new_tokens <= 150


def test_a_budget_that_does_not_hold_the_next_part_fails_the_turn(client: Client, rig: Rig) -> None:
    client.create(input="hi", tools=TOOLS)
    rig.reply(asks())
    spent = len(rig.engine.requests[0].new_tokens)
    rig.reply(END)
    budget = {"input_uncached": spent, "input_cached": 0, "scope": "turn"}
    other = rig.connect("other")
    other.create(input="hi", tools=TOOLS, keepwarm={"budget": budget})
    rig.reply(asks())
    assert other.response["status"] == "failed"
    assert other.response["error"]["code"] == "rate_limit_exceeded"
    assert other.response["usage"]["input_tokens"] == spent
    assert other.turn("ok" + END, input="hi")["status"] == "completed"


@pytest.mark.parametrize("when", ["before", "behind"])
def test_it_can_be_cancelled_in_any_part(rig: Rig, client: Client, when: str) -> None:
    client.create(input="hi", tools=TOOLS)
    if when == "behind":
        rig.reply(asks())
        rig.emit("so far")
    id_ = client.events[0]["response"]["id"]
    client.send(type="response.cancel", response_id=id_)
    response = client.response
    assert response["status"] == "incomplete"
    if when == "behind":
        assert kinds(response) == ["tool_search_call", "tool_search_output", "message"]
        client.turn("ok" + END, input=[user()], previous_response_id=id_, tools=TOOLS)
        assert names_bound(rig) == ["c", "tool_search", "weather"]


def test_the_journal_has_it_as_one_turn() -> None:
    rig = JournalRig(MemoryJournal(b"f"), max_context_tokens=ROOM)
    client = rig.connect()
    first = client.turn("ok" + END, input="first", tools=TOOLS)
    response = searched(
        rig, client, asks(), "warm" + END, previous_response_id=first["id"], input=[user()]
    )
    noted = [record.usage.input_tokens for record in rig.noted.values()]
    assert not noted
    chain = rig.journal.chain("acme", response["id"])
    assert len(chain) == 2
    before = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    rig.restart()
    client = rig.connect()
    client.create(input=[user("on")], previous_response_id=response["id"], tools=TOOLS)
    assert spelled(rig.engine.prompt(rig.engine.last)).startswith(before)
    assert names_bound(rig) == ["c", "tool_search", "weather"]
    item = response["output"][0]
    rig.reply("ok" + END)
    whole = [user("first"), *first["output"], user(), {"type": "item_reference", "id": item["id"]},
             *response["output"][1:], user("on")]  # fmt: skip
    again = client.turn(END, input=whole, tools=TOOLS)
    assert again["status"] == "completed"


def test_what_was_read_is_in_its_order_and_the_same_from_the_journal() -> None:
    rig = JournalRig(MemoryJournal(b"f"), max_context_tokens=ROOM)
    client = rig.connect()
    first = searched(rig, client, asks(), asks("shares"), call("c", '{"c": 1}') + END)
    output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"],
              "output": "1"}  # fmt: skip
    follows = {"previous_response_id": first["id"], "input": [output], "tools": TOOLS}
    second = client.turn("ok" + END, **follows)

    def read() -> list[dict[str, Any]]:
        stored = rig.store.tenant("acme").responses.get(second["id"])
        assert stored is not None
        return [item.to_wire() for item in read_items(stored.entry)]

    before = read()
    assert before[1:-1] == first["output"]
    assert before[-1] == output
    rig.restart()
    rig.connect().turn("ok" + END, previous_response_id=second["id"], input="x", tools=TOOLS)
    assert read() == before


def test_what_a_part_may_consume_is_noted_with_what_the_others_have() -> None:
    rig = JournalRig(MemoryJournal(b"f"), max_context_tokens=ROOM)
    client = rig.connect()
    client.create(input="hi", tools=TOOLS)
    (held,) = [record.usage for record in rig.noted.values()]
    rig.reply(asks())
    (later_held,) = [record.usage for record in rig.noted.values()]
    first, second = rig.engine.requests
    prompts = len(first.new_tokens) + second.base_offset + len(second.new_tokens)
    assert held.input_tokens == len(first.new_tokens)
    assert later_held.input_tokens == prompts
    assert later_held.output_tokens > held.output_tokens
    rig.reply("ok" + END)
    assert not rig.noted


def test_branches_of_parts_are_given_back(rig: Rig, client: Client) -> None:
    for _ in range(3):
        searched(rig, client, asks(), asks("shares"), "done" + END, store=False)
    other = rig.connect()
    searched(rig, other, asks(), "done" + END)
    places = rig.store.branches.places
    assert len(places) == 4
    assert not rig.store.branches.running_ids


def test_a_schema_that_cannot_be_bound_fails_the_turn_that_finds_it(
    rig: Rig, client: Client
) -> None:
    client.create(input="hi", tools=TOOLS)
    rig.checks_pass = False
    rig.reply(asks())
    rig.verdict(GrammarRefused("it has no end"))
    response = client.response
    assert response["status"] == "failed"
    assert response["error"]["code"] == "invalid_prompt"
    assert "it has no end" in response["error"]["message"]
    assert response["usage"]["output_tokens"] == len(token_ids(asks()))
    rig.checks_pass = True
    assert client.turn("ok" + END, input="hi")["status"] == "completed"


def test_a_client_that_leaves_between_two_parts_leaves_nothing_open(rig: Rig) -> None:
    client = rig.connect()
    client.create(input="hi", tools=TOOLS)
    rig.checks_pass = False
    rig.reply(asks())
    client.disconnect()
    (report,) = rig.reports
    assert report.status == "cancelled"
    assert report.usage.output_tokens == len(token_ids(asks()))
    assert not rig.store.branches.running_ids
    assert not rig.store.branches.places


@pytest.mark.parametrize("when", ["in the search", "between", "behind it"])
@pytest.mark.parametrize("how", ["item", "now"])
def test_it_can_be_steered_in_any_part(rig: Rig, client: Client, when: str, how: str) -> None:
    created = client.create(input="hi", tools=TOOLS, keepwarm={"steer": how})[0]
    id_ = created["response"]["id"]
    opener = "<tool_call>"
    if when == "in the search":
        rig.emit(opener)
        client.send(type="response.steer", previous_response_id=id_, input="faster")
        rig.reply(asks().removeprefix(opener))
    elif when == "between":
        rig.checks_pass = False
        rig.reply(asks())
        client.send(type="response.steer", previous_response_id=id_, input="faster")
        rig.checks_pass = True
        rig.verdict(None)
    else:
        rig.reply(asks())
        client.send(type="response.steer", previous_response_id=id_, input="faster")
    ended = [event["response"] for event in client.events if event["type"] in ENDS]
    assert kinds(ended[0])[:2] == ["tool_search_call", "tool_search_output"]
    assert rig.engine.last.request_id in rig.engine.open, "its successor hears it"
    assert "faster" in spelled(rig.engine.last.new_tokens.tolist())
    assert names_bound(rig) == ["c", "tool_search", "weather"]
    rig.reply("ok" + END)
    assert client.response["previous_response_id"] == id_
    assert not rig.store.branches.running_ids


def test_tools_that_are_too_many_for_the_context_end_the_turn() -> None:
    rig = Rig(max_context_tokens=1500)
    client = rig.connect()
    large = later("weather", description="warm " * 400)
    client.create(input="hi", tools=[SEARCH, large])
    rig.reply(asks("warm"))
    response = client.response
    assert response["status"] in ("failed", "incomplete")
    assert kinds(response) == ["tool_search_call", "tool_search_output"]
    assert client.turn("ok" + END, input="hi")["status"] == "completed"


@pytest.mark.parametrize("seed", range(5))
def test_searches_are_the_same_each_time(seed: int) -> None:
    outputs = []
    for _ in range(2):
        rig = Rig(max_context_tokens=ROOM)
        response = searched(rig, rig.connect(), asks("warm shares"), f"{seed}" + END)
        outputs.append(response["output"][1]["tools"])
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 2
