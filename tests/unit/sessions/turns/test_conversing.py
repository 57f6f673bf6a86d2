"""A request in a conversation reads what was added, then its own, and goes on from the head."""

import pytest

from sessions.durable.conversations import Conversation
from sessions.durable.transcript import ROOT_DIGEST, roll
from sessions.turns.conversing import conversing, same_items
from tests.support.entries import entry
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.limits import DEFAULT_LIMITS
from tools_api.request_reading import parse_create
from tools_api.requests import CreateRequest

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}


def request(**fields: object) -> CreateRequest:
    return parse_create({"conversation": "conv_1", **fields}, None, DEFAULT_LIMITS)


def numbered(prefix: str) -> str:
    return f"{prefix}_new"


def test_what_was_added_comes_first_and_each_has_an_id() -> None:
    added = parse_items([{"role": "user", "content": "one", "id": "msg_1"}], "items")
    there = Conversation(id="conv_1", created_s=0, head_id="resp_9", items=added, edits=4)
    found = conversing(request(input="two"), there, None, numbered, 100)
    assert found.request.previous_response_id == "resp_9"
    assert [item.id for item in found.request.input] == ["msg_1", "msg_new"]
    assert found.read is not None
    assert (found.read.id, found.read.edits, found.read.added) == ("conv_1", 4, 1)
    assert found.digests is not None
    digest = ROOT_DIGEST
    for item, known in zip(found.request.input, found.digests[1:], strict=True):
        digest = roll(digest, item)
        assert digest == known


def test_what_comes_under_the_id_of_an_item_of_the_chain_gets_another() -> None:
    head = entry(None, "one", item_id="msg_1")
    there = Conversation(id="conv_1", created_s=0, head_id="resp_9")
    sent = [{"role": "user", "content": text, "id": text} for text in ("msg_1", "msg_2")]
    found = conversing(request(input=sent), there, head, numbered, 100)
    assert [item.id for item in found.request.input] == ["msg_new", "msg_2"]


def test_outputs_are_put_behind_calls_that_were_added() -> None:
    message = {"role": "user", "content": "go", "id": "msg_1"}
    there = Conversation(id="conv_1", created_s=0, items=parse_items([message, CALL], "items"))
    found = conversing(request(input=[OUTPUT]), there, None, numbered, 100)
    assert [item.type for item in found.request.input][1:] == [
        *("function_call", "function_call_output")
    ]
    again = Conversation(
        id="conv_1", created_s=0, items=parse_items([message, CALL, OUTPUT], "items")
    )
    found = conversing(request(input=[OUTPUT]), again, None, numbered, 100)
    assert found.request.warnings[-1].startswith("input: 1 of its calls")
    other = [OUTPUT | {"output": "another"}]
    with pytest.raises(ApiError) as caught:
        conversing(request(input=other), again, None, numbered, 100)
    assert caught.value.param == "input[0].call_id"


def test_a_history_is_the_same_with_the_same_ids_alone() -> None:
    chain = entry(None, "one", item_id="msg_1")
    items = [*chain.input_items, *chain.output_items]
    opening = [] if chain.opening is None else [chain.opening]
    assert same_items(chain, [*opening, *items])
    assert not same_items(chain, [*opening, *items[:-1]])
    assert not same_items(entry(None, "one", item_id="msg_2"), [*opening, *items])
