"""A turn's row says the first words of what was asked and answered, and who was called."""

import random

import pytest

from sessions.pages.said import MAX_CALLS, MAX_CHARS, first_words, turn_words
from tools_api.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, TextPart


def message(role: str, text: str) -> Message:
    kind = "output_text" if role == "assistant" else "input_text"
    return Message(role=role, content=(TextPart(type=kind, text=text),))  # type: ignore[arg-type]


def call(name: str, namespace: str | None = None) -> FunctionCall:
    return FunctionCall(call_id="c", name=name, arguments="{}", namespace=namespace)


def test_the_last_question_and_the_last_answer_are_told_and_thoughts_are_not() -> None:
    given: list[Item] = [message("user", "Before"), message("user", "What\n  now?")]
    made: list[Item] = [Reasoning(content=("Hm.",)), message("assistant", "This.")]
    assert turn_words(given, made) == {
        "asked": "What now?",
        "results": 0,
        "answered": "This.",
        "calls": [],
        "more_calls": 0,
    }


def test_results_are_counted_and_calls_are_named_up_to_a_bound() -> None:
    given: list[Item] = [FunctionCallOutput(call_id="c", output="7")]
    made: list[Item] = [call(f"tool{n}", "shop" if n == 0 else None) for n in range(MAX_CALLS + 2)]
    words = turn_words(given, made)
    assert (words["asked"], words["answered"], words["results"]) == (None, None, 1)
    assert (len(words["calls"]), words["more_calls"]) == (MAX_CALLS, 2)
    assert words["calls"][0] == call("tool0", "shop").full_name != "tool0"


@pytest.mark.parametrize("seed", range(20))
def test_first_words_are_one_short_line_and_say_where_they_were_cut(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choice("ab \n\té会") for _ in range(draw.randrange(6 * MAX_CHARS)))
    told = first_words(text)
    whole = " ".join(text.split())
    assert len(told) <= MAX_CHARS
    assert "\n" not in told
    assert told == whole or (told.endswith("…") and whole.startswith(told[:-1].rstrip()))
    assert (told == whole) == (len(whole) <= MAX_CHARS and len(text) <= 4 * MAX_CHARS)
