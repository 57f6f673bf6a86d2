"""Cursors hold for the question that they were sealed for, and unchanged."""

import random

import pytest

from sessions.pages.usage_cursor import CursorSeal
from tools_api.errors import ApiError

QUESTION = ["usage", 1, 2, "1d", "key", "acme"]
PLACE = [24, "ü\n"]


def test_a_cursor_says_its_place_at_every_holder_of_the_secret() -> None:
    cursor = CursorSeal(b"s" * 16).sealed(QUESTION, PLACE)
    assert CursorSeal(b"s" * 16).opened(QUESTION, cursor) == PLACE


@pytest.mark.parametrize("seed", range(20))
def test_a_cursor_that_was_changed_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    seal = CursorSeal(b"s" * 16)
    cursor = seal.sealed(QUESTION, PLACE)
    at = rng.randrange(len(cursor) - 1)  # the last letter has bits that say nothing
    letters = "ABCabc019-_".replace(cursor[at], "")
    changed = cursor[:at] + rng.choice(letters) + cursor[at + 1 :]
    for wrong in (changed, cursor[:at], cursor + "AAAA", "", "ü", "=", "A"):
        with pytest.raises(ApiError, match="changed") as refused:
            seal.opened(QUESTION, wrong)
        assert refused.value.param == "cursor"


def test_anothers_cursor_is_refused() -> None:
    cursor = CursorSeal(b"s" * 16).sealed(QUESTION, PLACE)
    for question in ([*QUESTION[:-1], "other"], ["list", *QUESTION[1:]]):
        with pytest.raises(ApiError):
            CursorSeal(b"s" * 16).opened(question, cursor)
    with pytest.raises(ApiError):
        CursorSeal(b"t" * 16).opened(QUESTION, cursor)
