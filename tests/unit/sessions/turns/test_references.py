"""An item that is named by its id reads like the item itself, and only to whom it belongs."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import GenerationRequest
from sessions.durable.item_ids import listed_ids, read_items
from sessions.durable.transcript import Entry
from sessions.journal.journal import Journal
from sessions.journal.sqlite import SqliteJournal
from sessions.turns.references import ReferencedItems, with_stored
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, Rig, call, tool
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.item_references import ItemReference
from tools_api.limits import Limits
from tools_api.requests import CreateRequest

TOOLS = [tool("f", x={"type": "integer"}), {"type": "custom", "name": "patch"}]
REPLIES = (
    "plain words",
    call("f", '{"x": 1}'),
    "first" + call("f", '{"x": 2}') + "\n" + call("f", '{"x": 3}'),
    call("patch", '{"input": "a text"}'),
)


def reference(id_: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": id_}


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


def answers(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client's tools say to the calls of an output."""
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item["type"]], "call_id": item["call_id"], "output": f"of {item['call_id']}"}
        for item in output
        if item["type"] in kinds
    ]


def asked(request: GenerationRequest) -> tuple[Any, ...]:
    return (request.base_branch_id, request.base_offset, request.new_tokens.tolist())


def entry_of(rig: Rig, response_id: str, tenant: str = "acme") -> Entry:
    stored = rig.store.tenant(tenant).responses.get(response_id)
    assert stored is not None
    return stored.entry


def refused(client: Client, **fields: Any) -> dict[str, Any]:
    (event,) = client.create(**fields)
    assert event["type"] == "error"
    error: dict[str, Any] = event["error"] | {"status": event["status"]}
    return error


@pytest.fixture(params=["none", "memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "none":
        yield Rig()
        return
    journal: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield JournalRig(journal, prices=None)
    journal.close()


@pytest.fixture(params=["memory", "sqlite"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalRig]:
    journal: Journal = MemoryJournal(b"f")
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    yield JournalRig(journal, prices=None)
    journal.close()


# The same to the engine


@pytest.mark.samples(2)
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_history_by_its_ids_is_to_the_engine_the_history_itself(seed: int, store: bool) -> None:
    """A hundred turns of one connection, each said twice: in full, and by any ids."""
    rng = random.Random(seed)
    limits = replace(Limits(), max_stored_responses_per_connection=16)
    rigs = [Rig(limits=limits, max_context_tokens=100_000) for _ in range(2)]
    full, short = (each.connect() for each in rigs)
    history: list[dict[str, Any]] = [user("begin")]
    known: dict[int, str] = {}
    for _ in range(100):
        named = [
            reference(known[place]) if place in known and rng.random() < 0.7 else item
            for place, item in enumerate(history)
        ]
        reply = rng.choice(REPLIES) + END
        fields: dict[str, Any] = {"tools": TOOLS, "store": store, "max_output_tokens": 512}
        response = full.turn(reply, input=history, **fields)
        other = short.turn(reply, input=named, **fields)
        assert asked(rigs[0].engine.last) == asked(rigs[1].engine.last)
        assert other["usage"] == response["usage"]
        assert other["output"] == response["output"]
        if rng.random() < 0.1:  # an answer that is asked for again, from an earlier point
            keep = rng.randrange(len(history))
            known = {place: id_ for place, id_ in known.items() if place < keep}
            history = [item for item in history[:keep] if "call_id" not in item]
            known = {}
            history.append(user("again"))
            continue
        for item in response["output"]:
            known[len(history)] = item["id"]
            history.append(item)
        history += answers(response["output"]) or [user("go on")]


def test_an_item_of_another_connection_is_found_and_its_kv_too(rig: Rig) -> None:
    first = rig.connect().turn("hello" + END, input="a")
    client = rig.connect()
    client.turn(input=[user("a"), reference(first["output"][0]["id"]), user("b")])
    assert client.response["previous_response_id"] == first["id"]


def test_a_type_that_is_null_or_absent_names_an_item_too(rig: Rig) -> None:
    client = rig.connect()
    first = client.turn("hello" + END, input="a")
    id_ = first["output"][0]["id"]
    for named in ({"id": id_}, {"id": id_, "type": None}):
        client.turn(input=[user("a"), named, user("b")])
        assert client.response["previous_response_id"] == first["id"]


@pytest.mark.parametrize("restarted", [False, True])
def test_every_item_that_is_listed_can_be_named(lasting: JournalRig, restarted: bool) -> None:
    """With the id it was sent with, its own, or one of its place."""
    client = lasting.connect()
    given = [
        {"role": "system", "content": "be brief", "type": "message"},
        user("with an id", type="message", id="mine"),
        {"type": "reasoning", "id": "rs_mine", "summary": [], "encrypted_content": "sealed"},
        user("without"),
    ]
    first = client.turn(call("f", '{"x": 1}') + END, input=given, tools=TOOLS)
    (called,) = first["output"]
    more = [{"type": "function_call_output", "call_id": called["call_id"], "output": "2"}]
    second = client.turn(previous_response_id=first["id"], input=more, tools=TOOLS)
    items = read_items(entry_of(lasting, second["id"]))
    ids = listed_ids(items, second["id"])
    assert ids[1:3] == ["mine", "rs_mine"]
    assert ids[4] == called["id"]
    if restarted:
        lasting.restart()
        client = lasting.connect()
    whole = client.turn(input=[*map(reference, ids), user("go on")], tools=TOOLS)
    again = read_items(entry_of(lasting, whole["id"]))
    assert [item.to_wire() for item in again[: len(items)]] == [item.to_wire() for item in items]
    for id_ in (ids[0], ids[1], ids[3]):
        assert client.turn(input=[reference(id_), user("go on")])["status"] == "completed"


# Whose it is


def test_an_unknown_item_is_refused_by_the_field_that_names_it(rig: Rig) -> None:
    client = rig.connect()
    error = refused(client, input=[user("a"), reference("msg_none"), user("b")])
    assert (error["code"], error["param"]) == ("item_not_found", "input[1].id")
    assert (error["status"], error["type"]) == (404, "invalid_request_error")
    assert "'msg_none'" in error["message"]
    assert "send the item itself" in error["message"]
    assert client.turn(input="b")["status"] == "completed"


@pytest.mark.parametrize("restarted", [False, True])
def test_an_item_of_another_tenant_is_as_unknown_as_none(
    lasting: JournalRig, restarted: bool
) -> None:
    first = lasting.connect("acme").turn("hello" + END, input=[user("a")])
    (listed,) = listed_ids(read_items(entry_of(lasting, first["id"])), first["id"])
    if restarted:
        lasting.restart()
    other = lasting.connect("umbrella")
    for id_ in (first["output"][0]["id"], listed):
        error = refused(other, input=[reference(id_), user("b")])
        assert error["code"] == "item_not_found"
        own = lasting.connect("acme")
        assert own.turn(input=[reference(id_), user("b")])["status"] == "completed"


def test_a_private_item_is_its_connections_alone_and_what_it_is_put_into_is_too(rig: Rig) -> None:
    client = rig.connect()
    first = client.turn("secret" + END, input="a", store=False)
    named = reference(first["output"][0]["id"])
    assert refused(rig.connect(), input=[named, user("b")])["code"] == "item_not_found"
    second = client.turn("more" + END, input=[user("else"), named, user("b")])
    assert second["store"] is False
    assert rig.store.tenant("acme").responses.get(second["id"]) is None
    client.disconnect()
    assert refused(rig.connect(), input=[named, user("b")])["code"] == "item_not_found"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_responses_items_are_unknown(lasting: JournalRig, restarted: bool) -> None:
    client = lasting.connect()
    first = client.turn("hello" + END, input=[user("a", type="message", id="mine")])
    second = client.turn("and" + END, input="b", previous_response_id=first["id"])
    lasting.journal.hide("acme", first["id"])
    lasting.store.tenant("acme").delete_response(first["id"])
    if restarted:
        lasting.restart()
        client = lasting.connect()
    for id_ in ("mine", first["output"][0]["id"]):
        assert refused(client, input=[reference(id_), user("b")])["code"] == "item_not_found"
    named = reference(second["output"][0]["id"])
    assert client.turn(input=[named, user("b")])["status"] == "completed", "its child goes on"


def test_the_newest_item_of_an_id_is_meant(rig: Rig) -> None:
    client = rig.connect()
    for text in ("old", "new"):
        last = client.turn(input=[user(text, type="message", id="same")])
    whole = client.turn(input=[reference("same"), user("b")])
    assert "new" in str(read_items(entry_of(rig, whole["id"])))
    rig.store.tenant("acme").delete_response(last["id"])
    rig.store.tenant("acme").delete_response(whole["id"])
    if not isinstance(rig, JournalRig):
        other = client.turn(input=[reference("same"), user("b")])
        assert "old" in str(read_items(entry_of(rig, other["id"])))


# Bad input


@pytest.mark.parametrize(
    ("entry", "param", "code"),
    [
        ({"type": "item_reference"}, "input[0].id", "missing_required_parameter"),
        ({"type": "item_reference", "id": 5}, "input[0].id", "invalid_type"),
        ({"type": "item_reference", "id": ""}, "input[0].id", "invalid_value"),
        ({"type": "item_reference", "id": "x" * 513}, "input[0].id", "invalid_value"),
        ({"type": "item_reference", "id": "a\0b"}, "input[0].id", "invalid_value"),
        ({"id": "x", "content": "y"}, "input[0].type", "missing_required_parameter"),
        ({"type": None}, "input[0].type", "missing_required_parameter"),
    ],
)
def test_a_reference_that_is_none_is_refused(entry: Any, param: str, code: str) -> None:
    error = refused(Rig().connect(), input=[entry])
    assert (error["param"], error["code"]) == (param, code)


def test_items_that_are_named_a_thousand_times_are_not_multiplied_without_bound() -> None:
    rig = Rig(max_context_tokens=100_000_000)
    client = rig.connect()
    client.turn(input=[user("x" * 200_000, type="message", id="large")])
    error = refused(client, input=[reference("large")] * 1000)
    assert error["code"] == "invalid_value"
    assert error["param"].startswith("input[")
    assert "take more than" in error["message"]
    assert client.turn(input="b")["status"] == "completed"


def test_what_the_journal_brings_is_held_to_the_same_bound(lasting: JournalRig) -> None:
    client = lasting.connect()
    limits = Limits(max_frame_bytes=5000)
    for n in range(4):
        client.turn(input=[user("x" * 2000, type="message", id=f"large{n}")])
    lasting.options["limits"] = limits
    lasting.restart()
    error = refused(lasting.connect(), input=[reference(f"large{n}") for n in range(4)])
    assert error["code"] == "invalid_value"
    assert lasting.connect().turn(input=[reference("large0")])["status"] == "completed"


def test_places_in_what_too_many_responses_read_are_refused() -> None:
    rig = Rig(limits=Limits(max_listed_responses=2))
    error = refused(rig.connect(), input=[reference(f"msg_0_{n}") for n in range(3)])
    assert (error["code"], error["param"]) == ("invalid_value", "input[2].id")


def test_parts_of_what_is_named_count() -> None:
    (item,) = parse_items([{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 3}])
    request = CreateRequest(references=tuple(ItemReference(place=n, id="i") for n in range(3)))
    found = ReferencedItems(items={"i": item})
    with pytest.raises(ApiError, match="content parts"):
        with_stored(request, found, {}, Limits(max_input_parts=8))
    whole, _ = with_stored(request, found, {}, Limits(max_input_parts=9))
    assert whole.input == (item,) * 3


def test_a_long_history_is_read_beside_the_event_loop() -> None:
    rig = Rig(limits=Limits(max_inline_bytes=1000))
    client = rig.connect()
    client.turn(input=[user("x" * 500, type="message", id="long")])
    rig.plans_at_once = False
    assert client.create(input=[reference("long")] * 2) == []
    assert len(rig.plannings) == 1
    rig.plan_next()
    assert client.types()[-1] != "created", "now its prompt is"
    rig.plan_next()
    assert client.types()[-1] == "created"


def test_a_client_that_left_while_its_items_were_fetched_is_forgotten(lasting: JournalRig) -> None:
    first = lasting.connect().turn("hello" + END, input="a")
    lasting.restart()
    client = lasting.connect()
    asked = {"type": "response.create", "input": [reference(first["output"][0]["id"])]}
    effects = client.connection.receive(json.dumps(asked))
    (lookup,) = effects.questions
    recalled = lasting.recollection.read(lasting.store.tenant("acme"), lookup.asked)
    client.connection.close()
    assert client.connection.answer(lookup.id, recalled).requests == ()
    assert client.connection.num_active == 0
