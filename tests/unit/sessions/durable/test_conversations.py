"""Conversations as values: what is added, taken out and read, against a list; the bounded table."""

import random
from dataclasses import replace

import pytest

from sessions.durable.conversations import (
    Conversation,
    ConversationTable,
    all_items,
    identified,
    ids_of,
    item_of,
    moved,
    read_of,
    with_added,
    without_item,
)
from sessions.durable.transcript import Entry
from tests.support.clock import FakeClock
from tests.support.entries import entry
from tools_api.errors import ApiError
from tools_api.items import Message, TextPart
from tools_api.limits import Limits

SAID = entry(None, "said", item_id="msg_said")
"""A turn."""
LIMITS = Limits(max_input_items=40, max_frame_bytes=100_000)


def message(text: str, id_: str | None = None) -> Message:
    part = TextPart(type="input_text", text=text)
    return Message(role="user", content=(part,), id=id_)


def conversation(*ids: str) -> Conversation:
    return Conversation(id="c", created_s=1, items=tuple(message(id_, id_) for id_ in ids))


def ids(one: Conversation, head: Entry | None = None) -> list[str | None]:
    return [item.id for item in all_items(one, head)]


def test_a_turn_moves_it_past_what_it_read() -> None:
    before = conversation("a", "b")
    read = read_of(before)
    added = with_added(before, [message("later", "c")], LIMITS)
    after = moved(added, read, "resp_1", SAID)
    assert after is not None
    assert (after.head_id, [item.id for item in after.items]) == ("resp_1", ["c"])
    assert (before.version, added.version, after.version) == (1, 2, 3)


def test_what_was_added_meanwhile_has_no_id_of_the_turns() -> None:
    before = conversation("a")
    late = [message(text, text) for text in ("msg_behind0_7", "msg_said", "c", "msg_said")]
    added = replace(before, items=(*before.items, *late))
    after = moved(added, read_of(before), "resp_7", SAID)
    assert after is not None
    given = ["msg_behind0_7", "msg_behind1_7", "c", "msg_behind2_7"]
    assert [item.id for item in after.items] == given
    assert ids(after, SAID)[-5:] == ["msg_said", *given]
    assert [item.id for item in identified(after.items, str)] == given, "they are no places"


def test_a_turn_does_not_move_it_when_something_it_read_is_gone() -> None:
    before = conversation("a", "b")
    edited = without_item(before, None, "a", LIMITS)
    assert edited is not None
    assert moved(edited, read_of(before), "resp_1", SAID) is None
    assert moved(edited, read_of(edited), "resp_1", SAID) is not None


def test_items_of_the_chain_come_before_what_was_added() -> None:
    chain = entry(entry(None, "one"), "two")
    stands = Conversation(id="c", created_s=1, head_id="resp_7", items=(message("later", "own"),))
    listed = ids(stands, chain)
    assert listed[-1] == "own"
    assert None not in listed
    assert len(set(listed)) == len(listed) == 3
    for place, id_ in enumerate(listed[:-1]):
        assert id_ is not None
        found = without_item(stands, chain, id_, LIMITS)
        assert found is not None
        assert found.head_id is None, "what is left is another history"
        assert ids(found) == [*listed[:place], *listed[place + 1 :]]
    found = without_item(stands, chain, "own", LIMITS)
    assert found is not None
    assert (found.head_id, found.items) == ("resp_7", ())


@pytest.mark.parametrize(
    "items", [[message("x", str(n)) for n in range(41)], [message("x" * 100_001, "long")]]
)
def test_what_waits_for_a_turn_is_bounded(items: list[Message]) -> None:
    with pytest.raises(ApiError) as caught:
        with_added(conversation(), items, LIMITS)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "items")
    assert with_added(conversation(), items[:1][:0], LIMITS).items == ()


def test_items_get_ids_that_no_place_has() -> None:
    numbers = iter(range(10))
    given = [message("a"), message("b", "mine"), message("c", "msg_3_abc")]
    made = identified(given, lambda prefix: f"{prefix}_{next(numbers)}")
    assert [item.id for item in made] == ["msg_0", "mine", "msg_1"]


def test_items_get_no_id_of_another_that_is_there() -> None:
    head = entry(None, "said", item_id="msg_said")
    there = replace(conversation("waits"), head_id="resp_1")
    assert ids_of(there, head) >= {"msg_said", "waits"}
    given = [message("a", "msg_said"), message("b", "waits"), message("c", "c"), message("d", "c")]
    numbers = iter(range(10))
    taken = ids_of(there, head)
    made = identified(given, lambda prefix: f"{prefix}_{next(numbers)}", taken)
    assert [item.id for item in made] == ["msg_0", "msg_1", "c", "msg_2"]


def test_the_newest_item_of_an_id_is_found() -> None:
    items = [message("old", "a"), message("new", "a")]
    assert item_of(items, "a") is items[1]
    assert item_of(items, "b") is None


def test_a_table_keeps_what_was_used_last_within_its_bounds() -> None:
    clock = FakeClock(0.0)
    limits = Limits(max_conversations_per_tenant=3, stored_response_ttl_s=100.0)
    table = ConversationTable(limits=limits, clock=clock)
    for n in range(3):
        assert table.put(Conversation(id=str(n), created_s=0), version=None)
        clock.advance(10)
    assert table.get("0") is not None
    table.put(Conversation(id="3", created_s=0), version=None)
    assert table.get("1") is None
    assert table.get("0") is not None
    clock.advance(95)
    table.expire()
    assert table.num_bytes > 0
    clock.advance(10)
    table.expire()
    assert table.num_bytes == 0


def test_a_table_bounds_the_bytes_of_a_tenant() -> None:
    limits = Limits(max_conversation_bytes_per_tenant=5000)
    table = ConversationTable(limits=limits, clock=FakeClock(0.0))
    for n in range(10):
        large = Conversation(id=str(n), created_s=0, items=(message("x" * 2000, "a"),))
        table.put(large, version=None)
        assert table.num_bytes <= 5000
    assert table.get("9") is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_table_against_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    table = ConversationTable(limits=Limits(), clock=FakeClock(0.0))
    known: dict[str, Conversation] = {}
    for step in range(500):
        id_ = str(rng.randrange(4))
        there = known.get(id_)
        match rng.choice(("put", "stale", "delete", "move")):
            case "put":
                version = None if there is None else there.version
                made = Conversation(id=id_, created_s=step, version=(version or 0) + 1)
                assert table.put(made, version=version)
                known[id_] = made
            case "stale":
                version = 1 if there is None else there.version + 1
                assert not table.put(Conversation(id=id_, created_s=0), version=version)
            case "delete":
                assert table.delete(id_) == (there is not None)
                known.pop(id_, None)
            case "move":
                read = read_of(there or Conversation(id=id_, created_s=0))
                assert table.move(read, f"resp_{step}", SAID)
                if there is not None:
                    after = moved(there, read, f"resp_{step}", SAID)
                    assert after is not None
                    known[id_] = after
        assert {i: table.get(i) for i in map(str, range(4)) if table.get(i)} == known
    assert table.num_bytes == sum(each.size_bytes for each in known.values())
