"""Stop strings end free text, and nothing else."""

import random
import re

import pytest

from runtime.grammar.stop_search import StopSearch
from tests.support.chat_models import served, spelled
from tests.support.sessions_rig import TOKENIZER, token_ids
from tools_api.chat_format import Segment
from tools_api.grammar import GrammarSpec

FREE = None
AUTO = GrammarSpec(lark='start: "x"', trigger="<tool_call>")
THINKING_AUTO = GrammarSpec(lark='start: "x"', after="</think>", trigger="<tool_call>")
SCHEMA = GrammarSpec(lark='start: "x"')
THINKING_SCHEMA = GrammarSpec(lark='start: "x"', after="</think>")
TEXT_OR_CALL = GrammarSpec(lark='start: "x"', free_text=True)


def ended_behind(spec: GrammarSpec | None, text: str, *stops: str) -> str | None:
    """The text up to the token that completes a stop string; None if none does."""
    search, tokens = StopSearch(stops, TOKENIZER, spec), token_ids(text)
    bound = spec is not None and spec.after is None and spec.trigger is None
    for index, token in enumerate(tokens):
        if search.completes(token, bound=bound):
            return TOKENIZER.text_of(tokens[: index + 1])
        name = TOKENIZER.special_text(token)
        if spec is not None and name is not None:
            bound = bound or name == (spec.trigger or spec.after)
    return None


@pytest.mark.parametrize(
    ("spec", "text", "stop", "ended"),
    [
        (FREE, "one STOP two", "STOP", "one STOP"),
        (FREE, "one STO", "STOP", None),
        (FREE, "日本語", "本", "日本"),
        (FREE, "\nHi", "\n", "\n"),
        (FREE, "a<tool_call>b", "<", None),
        (FREE, "a<tool_call>b", "tool", None),
        (FREE, "a<tool_call>b", "ab", None),
        (FREE, "<think>STOP</think>\n\nSTOP", "STOP", "<think>STOP</think>\n\nSTOP"),
        (FREE, "<think>a</think>\n\nb\nc", "\n", "<think>a</think>\n\nb\n"),
        (FREE, "<think>a\nb", "\n", None),
        (AUTO, "a}b", "}", "a}"),
        (AUTO, "a<tool_call>b}c", "}", None),
        (THINKING_AUTO, "<think>}</think>\n\na}", "}", "<think>}</think>\n\na}"),
        (SCHEMA, '{"a": 1}', "}", None),
        (THINKING_SCHEMA, 'a}b</think>\n\n{"a": 1}', "}", None),
        (TEXT_OR_CALL, "Hi} there", "}", "Hi}"),
        (TEXT_OR_CALL, '{"name": "f"}', "}", None),
    ],
)
def test_a_stop_string_counts_in_free_text_alone(
    spec: GrammarSpec | None, text: str, stop: str, ended: str | None
) -> None:
    assert ended_behind(spec, text, stop) == ended


@pytest.mark.parametrize("seed", range(20))
def test_it_ends_where_the_text_first_has_one(seed: int) -> None:
    rng = random.Random(seed)
    stops = ["".join(rng.choices("ab\n", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
    text = "".join(rng.choices("aab\né", k=40))
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    wanted = text[: min(ends)] if ends else None
    assert ended_behind(FREE, text, *stops) == wanted


def test_half_a_character_is_the_replacement_character_that_the_client_sees() -> None:
    search = StopSearch(["\ufffd"], TOKENIZER, None)
    half, end = token_ids("é")[0], token_ids("<|im_end|>")[0]
    assert not search.completes(half, bound=False)
    assert search.completes(end, bound=False)


HARMONY_CHANNELS = GrammarSpec(lark='start: "x"', free_text=True)


@pytest.mark.parametrize("spec", [None, HARMONY_CHANNELS])
@pytest.mark.parametrize(
    ("text", "stop", "ended"),
    [
        ("<|channel|>final<|message|>a STOP b", "STOP", "<|channel|>final<|message|>a STOP"),
        ("<|channel|>analysis<|message|>STOP<|end|>", "STOP", None),
        ("<|channel|>final<|message|>a", "final", None),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", "{", None),
        ("<|channel|>commentary<|message|>{}", "{", "<|channel|>commentary<|message|>{"),
        (
            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>x",
            "x",
            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>x",
        ),
    ],
)
def test_in_harmony_messages_to_the_user_are_free_text(
    spec: GrammarSpec | None, text: str, stop: str, ended: str | None
) -> None:
    tokenizer = served("harmony").tokenizer
    names = "|".join(map(re.escape, tokenizer.specials))
    pieces = [piece for piece in re.split(f"({names})", text) if piece]
    segments = [Segment(piece, special=piece in tokenizer.specials) for piece in pieces]
    search, tokens = StopSearch([stop], tokenizer, spec), tokenizer.encode(segments).tolist()
    found = next((i for i, t in enumerate(tokens) if search.completes(t, bound=bool(spec))), None)
    shown = None if found is None else spelled(served("harmony"), tokens[: found + 1])
    assert shown == ended


def test_what_a_prompt_has_opened_is_reasoning() -> None:
    spec = GrammarSpec(
        lark='start: "x"', after="</think>", trigger="<tool_call>", begins_in_reasoning=True
    )
    assert ended_behind(spec, "STOP</think>\n\nSTOP", "STOP") == "STOP</think>\n\nSTOP"


def test_where_calls_begin_with_another_character_a_brace_is_text() -> None:
    spec = GrammarSpec(lark='start: "x"', free_text=True, call_start="<")
    assert ended_behind(spec, '{"a": 1}', "}") == '{"a": 1}'
    assert ended_behind(spec, "<function_calls>f(a={})", "}") is None
