"""Stop strings are trimmed however the text is cut."""

import random

import pytest

from sessions.turns.output_reader import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """As the engine has it: the piece that completes a stop string is the last one."""
    trimmed, said, shown = StopStrings(stops), "", ""
    for piece in pieces:
        said += piece
        if any(stop in said for stop in stops):
            return shown + trimmed.end(piece), trimmed.stop is not None
        shown += trimmed.push(piece)
    return shown + trimmed.flush(), trimmed.stop is not None


@pytest.mark.parametrize(
    ("stops", "text", "expected", "found"),
    [
        ([], "abc###", "abc###", False),
        (["###"], "abc", "abc", False),
        (["###"], "abc##", "abc##", False),
        (["###"], "abc###def", "abc", True),
        (["###"], "###", "", True),
        (["ab", "ba"], "xxbab", "xx", True),
        (["aab"], "aaab", "a", True),
        (["abcd", "bc"], "xabcdx", "xa", True),
        (["bcd", "cd"], "abcd", "a", True),
        (["END", "\n\n"], "one\ntwo\n\nEND", "one\ntwo", True),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_text_before_the_first_stop_string_comes_out_at_all_split_points(
    stops: list[str], text: str, expected: str, found: bool, seed: int
) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.randint(0, len(text)) for _ in range(4))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stops, pieces) == (expected, found)


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    trimmed = StopStrings(["###"])
    assert trimmed.push("a#b##") == "a#b"
    assert trimmed.push("c") == "##c"


def test_it_knows_which_stop_string_ended_the_text() -> None:
    trimmed = StopStrings(["END", "\n\n"])
    trimmed.push("one\n")
    assert trimmed.stop is None
    assert trimmed.end("\nEND") == ""
    assert trimmed.stop == "\n\n"


@pytest.mark.parametrize("stops", [[], ["a"], ["a", "b"]])
def test_it_says_whether_there_are_any(stops: list[str]) -> None:
    assert StopStrings(stops).any == bool(stops)
