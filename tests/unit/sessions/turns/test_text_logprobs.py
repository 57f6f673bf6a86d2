"""Log-probabilities of tokens and pieces of text that are cut in different places."""

import random

import pytest

from sessions.turns.text_logprobs import TextLogprobs


def trail(*texts: str) -> TextLogprobs:
    """A token for each text, whose event says which it is."""
    found = TextLogprobs()
    for number, text in enumerate(texts):
        found.add({"token": str(number)}, text)
    return found


def taken(found: TextLogprobs, text: str) -> str:
    return "".join(str(event["token"]) for event in found.logprobs_of(text))


@pytest.mark.parametrize(
    ("texts", "pieces"),
    [
        (("a", "b"), [("ab", "01")]),
        (("a", "b"), [("a", "0"), ("b", "1")]),
        (("\n", "\n", "a"), [("a", "2")]),  # swallowed
        (("", "\n", "", "", "é"), [("é", "234")]),  # a character of three tokens
        (("", "", "", "\ufffd", "\ufffdv"), [("\ufffd", "0123"), ("\ufffdv", "4")]),
        (("a<", "b"), [("a", "0"), ("<b", "1")]),  # of a token a part is held back
        (("ab", "cd"), [("a", "0"), ("b", ""), ("cd", "1")]),
        (("a", "b", "c"), [("ab", "01"), ("", ""), ("c", "2")]),
        (("a", "b"), [("?", "0"), ("b", "1")]),  # what nobody said: as many as it is long
    ],
)
def test_a_piece_takes_the_tokens_that_it_was_made_of(
    texts: tuple[str, ...], pieces: list[tuple[str, str]]
) -> None:
    found = trail(*texts)
    assert [(text, taken(found, text)) for text, _ in pieces] == pieces


def test_what_is_unfinished_is_completed_by_the_end() -> None:
    found = trail("a", "", "")
    assert taken(found, "a") == "0"
    found.complete("\ufffd")
    assert taken(found, "\ufffd") == "12"
    found.complete("nothing is there")
    assert taken(found, "nothing") == ""


def test_what_was_no_text_is_forgotten() -> None:
    found = trail("a", "b")
    found.clear()
    found.add({"token": "2"}, "b")
    assert taken(found, "b") == "2"


def test_tokens_of_which_nothing_is_known_keep_their_place() -> None:
    found = TextLogprobs()
    for number, text in enumerate("aba"):
        found.add({"token": str(number)} if number else None, text)
    assert taken(found, "a") == ""
    assert taken(found, "ba") == "12"


@pytest.mark.parametrize("seed", range(20))
def test_cut_anywhere_each_token_goes_to_one_piece_in_order(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["".join(rng.choices("ab\n", k=rng.randint(0, 3))) for _ in range(30)] + ["c"]
    found, whole = trail(*texts), "".join(texts)
    shown: list[str] = []
    while whole:
        size = rng.randint(1, 4)
        shown += [str(event["token"]) for event in found.logprobs_of(whole[:size])]
        whole = whole[size:]
    assert shown == [str(number) for number in range(len(texts))]
