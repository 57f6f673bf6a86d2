"""Items by their ids: their own, and those made of their places."""

import random
from dataclasses import replace

import pytest

from sessions.durable.item_ids import (
    ItemIndex,
    Place,
    item_at,
    item_with_id,
    listed_ids,
    own_items,
    place_of,
    read_items,
)
from sessions.durable.transcript import Entry
from tests.support.entries import entry
from tools_api.item_reading import parse_items
from tools_api.items import Item, Message

KINDS = parse_items(
    [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
        {"type": "reasoning", "summary": []},
    ]
)


def said(text: str, id_: str | None) -> Entry:
    (item,) = parse_items([{"role": "assistant", "content": text}])
    assert isinstance(item, Message)
    return replace(entry(), output_items=(replace(item, id=id_),))


@pytest.mark.parametrize("item", KINDS, ids=lambda item: item.type)
def test_an_item_without_an_id_is_found_by_the_one_it_is_listed_under(item: Item) -> None:
    place = Place("resp_0f_1", 7)
    items = [item] * 8
    id_ = listed_ids(items, "resp_0f_1")[7]
    assert place_of(id_) == place
    assert item_at(items, place, id_) is item
    assert item_at(items[:7], place, id_) is None
    others = [other for other in KINDS if other.type != item.type]
    assert all(item_at([other] * 8, place, id_) is None for other in others)


def test_an_item_with_an_id_is_listed_under_that_alone() -> None:
    item = said("a", "mine").output_items[0]
    place = Place("resp_1", 0)
    assert listed_ids([item], "resp_1") == ["mine"]
    assert item_at([item], place, "msg_0_1") is None


@pytest.mark.parametrize("seed", range(20))
def test_items_are_listed_under_ids_of_their_own_however_clients_named_them(seed: int) -> None:
    rng = random.Random(seed)
    items = [replace(rng.choice(KINDS), id=rng.choice(["a", "b", "", None])) for _ in range(30)]
    ids = listed_ids(items, "resp_1")
    assert len(set(ids)) == 30
    for number, (item, id_) in enumerate(zip(items, ids, strict=True)):
        place = place_of(id_)
        if place is None:
            assert item is item_with_id(items, id_), "the one that a reference finds"
        else:
            assert place == Place("resp_1", number)
            assert item_at(items, place, id_) is item


@pytest.mark.parametrize("id_", ["msg_12", "msg_x_1", "other_1_1", "msg_1_", "", "fc_²_1"])
def test_other_ids_say_no_place(id_: str) -> None:
    assert place_of(id_) is None


def test_what_a_model_read_begins_with_what_leads_the_chain() -> None:
    (opening,) = parse_items([{"role": "system", "content": "s"}])
    assert isinstance(opening, Message)
    first = replace(entry(answer="one"), opening=opening, input_items=KINDS[:1])
    second = replace(entry(parent=first, answer="two"), opening=opening, input_items=KINDS[2:3])
    assert read_items(second) == [opening, KINDS[0], *first.output_items, KINDS[2]]
    assert tuple(own_items(first)) == (opening, KINDS[0], *first.output_items)
    assert tuple(own_items(second)) == (KINDS[2], *second.output_items)


@pytest.mark.parametrize("seed", range(10))
def test_an_index_has_the_newest_of_the_entries_that_are_there(seed: int) -> None:
    rng, index, there = random.Random(seed), ItemIndex(), list[Entry]()
    ids = ["a", "b", "c", None]
    for number in range(200):
        if there and rng.random() < 0.5:
            gone = there.pop(rng.randrange(len(there)))
            index.remove(gone)
            index.remove(gone)
        else:
            there.append(said(str(number), rng.choice(ids)))
            index.add(there[-1])
        for id_ in ("a", "b", "c"):
            holders = [each for each in there if each.output_items[0].id == id_]
            assert index.find(id_) is (holders[-1].output_items[0] if holders else None)


def test_of_two_items_with_one_id_the_last_is_meant() -> None:
    items = (*said("a", "x").output_items, *said("b", "x").output_items)
    assert item_with_id(items, "x") is items[1]
    assert item_with_id(items, "y") is None
