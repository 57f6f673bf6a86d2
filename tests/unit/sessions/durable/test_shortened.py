"""Texts that are cut in the middle, and knowing them again."""

import random

import pytest

from sessions.durable.shortened import is_shortened, shortened


@pytest.mark.parametrize(
    ("keep", "short"),
    [
        (0, "\n[... 10 characters left out ...]\n"),
        (1, "0\n[... 9 characters left out ...]\n"),
        (4, "01\n[... 6 characters left out ...]\n89"),
        (5, "012\n[... 5 characters left out ...]\n89"),
    ],
)
def test_both_ends_stay_and_a_note_counts_what_is_missing(keep: int, short: str) -> None:
    assert shortened("0123456789", keep) == short
    assert is_shortened(short, "0123456789")


@pytest.mark.parametrize("seed", range(20))
def test_a_text_that_is_cut_twice_is_cut_once(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab \n[.]😀") for _ in range(rng.randint(50, 300)))
    first = rng.randrange(2, len(text))
    second = rng.randrange(0, first)
    once, twice = shortened(text, second), shortened(shortened(text, first), second)
    assert twice == once
    assert is_shortened(twice, text)


@pytest.mark.parametrize(
    ("short", "text"),
    [
        ("01\n[... 6 characters left out ...]\n89", "0123456788"),
        ("01\n[... 6 characters left out ...]\n89", "01234567889"),
        ("01\n[... 6 characters left out ...]\n89", "1123456789"),
        ("0123456789", "0123456789"),
        ("01\n[... " + "9" * 5000 + " characters left out ...]\n89", "0123456789"),
    ],
)
def test_what_is_not_left_of_a_text_is_not_taken_for_it(short: str, text: str) -> None:
    assert not is_shortened(short, text)
