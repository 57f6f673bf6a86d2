"""Items that share a room are cut in the middle until they fit it."""

from typing import Any

import pytest

from sessions.turns.shortening import Room, Shortening, Sizes
from tests.support.sessions_rig import Rig
from tools_api.chat_format import TemplateOptions
from tools_api.item_reading import parse_items

ROOM = Room(max_tokens=5000, longest_token_bytes=1, reply_tokens=0)


def said(length: int) -> dict[str, Any]:
    return {"role": "user", "content": "x" * length}


def result(length: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": "x" * length}


def call(length: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": "1" * length}


def shortening(*items: dict[str, Any]) -> Shortening:
    return Shortening(
        parse_items(list(items)), Sizes(Rig().model.renderer, TemplateOptions(), ROOM)
    )


@pytest.mark.parametrize(
    ("items", "room", "cut"),
    [
        ([said(100), result(100)], 300, []),
        ([said(100), result(900)], 500, [1]),
        ([result(900), said(700), result(100)], 900, [0, 1]),
        ([said(900), said(900)], 100, [0, 1]),
        ([call(900), said(900)], 1500, [1]),
        ([said(1_000_000)], 400, [0]),
    ],
)
def test_the_longest_are_cut_and_calls_never(
    items: list[dict[str, Any]], room: int, cut: list[int]
) -> None:
    all_of_them = range(len(items))
    text = shortening(*items)
    before = list(text.items)
    text.fit(all_of_them, room)
    assert [i for i in all_of_them if text.items[i] is not before[i]] == cut
    assert len(text.sentences(all_of_them)) == len(cut)
    if room > 100:
        assert room // 2 < text.size(all_of_them) <= room or not cut


def test_items_that_were_cut_for_one_room_are_cut_from_the_whole_text_for_another() -> None:
    text, once = shortening(said(900)), shortening(said(900))
    text.fit([0], 600)
    text.fit([0], 300)
    once.fit([0], 300)
    assert text.items == once.items
    (sentence,) = text.sentences([0])
    assert sentence.startswith("truncation: a message of 900 characters was cut in the middle to ")


def test_what_would_not_get_shorter_stays() -> None:
    text = shortening(result(8), result(5))
    before = list(text.items)
    text.fit([0, 1], 0)
    assert text.items == before
    assert text.sentences([0, 1]) == ()


@pytest.mark.parametrize(("lengths", "hopeless"), [([5000], False), ([3000, 2001], True)])
def test_what_cannot_fit_is_known_before_it_is_tokenised(
    lengths: list[int], hopeless: bool
) -> None:
    assert ROOM.is_hopeless(parse_items([said(length) for length in lengths])) == hopeless
