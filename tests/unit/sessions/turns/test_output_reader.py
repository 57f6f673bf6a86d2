"""Tokens to pieces: identity, attribution, trimming."""

import random
from collections.abc import Sequence

import pytest

from runtime.messages import TokenLogprob
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import Piece
from tests.support.sessions_rig import END, TOKENIZER, Rig, call, token_ids
from tools_api.parsed_events import (
    CallDone,
    ParsedReasoning,
    ParsedText,
)

THOUGHT = "<think>\nhm, 日本\n</think>\n\n"


def reader(
    *, thinking: bool = False, stops: Sequence[str] = (), reasons_first: bool = False
) -> OutputReader:
    return OutputReader(
        tokenizer=TOKENIZER,
        chat_format=Rig().model.chat_format,
        thinking=thinking,
        calls=True,
        stops=stops,
        reasons_first=reasons_first,
    )


def read(
    output: OutputReader, text: str, cuts: Sequence[int] = (), logprobs: bool = False
) -> list[Piece]:
    tokens, pieces = token_ids(text), list[Piece]()
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        part = tokens[start:end]
        known = tuple(TokenLogprob(token=t, logprob=-1.0) for t in part) if logprobs else ()
        pieces += output.read(part, known)
    return pieces + output.finish()


def text_of(pieces: list[Piece], kind: type[ParsedText] | type[ParsedReasoning]) -> str:
    return "".join(p.parsed.text for p in pieces if isinstance(p.parsed, kind))


@pytest.mark.parametrize("seed", range(10))
def test_steps_may_cut_the_output_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    text = THOUGHT + "Grüße 😀\n" + call("f", '{"a": "é"}') + END
    output = reader(thinking=True)
    cuts = sorted(rng.randint(0, len(token_ids(text))) for _ in range(5))
    pieces = read(output, text, cuts)
    assert text_of(pieces, ParsedReasoning) == "hm, 日本"
    assert text_of(pieces, ParsedText) == "Grüße 😀"
    assert [p.parsed for p in pieces if isinstance(p.parsed, CallDone)] == [
        CallDone("f", '{"a": "é"}')
    ]
    assert output.tokens == token_ids(text)
    assert output.num_reasoning == len(token_ids("\nhm, 日本\n</think>"))


def test_without_thinking_no_token_is_reasoning() -> None:
    output = reader()
    read(output, "plain text" + END)
    assert output.num_reasoning == 0


def test_thinking_that_is_cut_counts_to_its_end() -> None:
    output = reader(thinking=True)
    read(output, "<think>\nhm")
    assert output.num_reasoning == 3


@pytest.mark.parametrize("seed", range(5))
def test_log_probabilities_go_to_the_text_and_only_to_the_text(seed: int) -> None:
    rng = random.Random(seed)
    text = THOUGHT + "Grüße" + call("f") + END
    cuts = sorted(rng.randint(0, len(token_ids(text))) for _ in range(4))
    pieces = read(reader(thinking=True), text, cuts, logprobs=True)
    shown = [p.logprobs for p in pieces if isinstance(p.parsed, ParsedText)]
    tokens = bytes(entry["bytes"][0] for entries in shown for entry in entries)
    assert tokens.decode() == "Grüße"
    assert not any(p.logprobs for p in pieces if not isinstance(p.parsed, ParsedText))


@pytest.mark.parametrize("held", [b"\xe7", b"\xe7\xbf", b"\xf0\x9f\x98"])
def test_bytes_held_back_to_the_end_keep_their_log_probabilities(held: bytes) -> None:
    """The marker that ends the turn shows them as a replacement character and is no text itself."""
    tokens = [*token_ids("a"), *held, *token_ids(END)]
    known = [TokenLogprob(token=token, logprob=-1.0) for token in tokens]
    output = reader()
    pieces = [*output.read(tokens, known), *output.finish()]
    assert text_of(pieces, ParsedText).startswith("a\ufffd")
    shown = [entry["bytes"] for piece in pieces for entry in piece.logprobs]
    assert shown == [[97], *([byte] for byte in held)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stops", [(), ("ab", "\ufffda")])
def test_any_bytes_keep_the_log_probabilities_of_their_tokens(
    seed: int, stops: tuple[str, ...]
) -> None:
    """The first byte of four lost its own where three were no character and the fourth began one:
    in one turn of two thousand of random bytes."""
    rng = random.Random(seed)
    some = [b"\xf0", b"\xf2", b"\xb0", b"\x9f", b"\xe7", b"\x98", b"a", b"b", b" ", b"\n"]
    for _ in range(50):
        tokens = [byte for _ in range(rng.randint(1, 9)) for byte in rng.choice(some)]
        known = [TokenLogprob(token=token, logprob=-1.0) for token in tokens]
        output = reader(stops=stops)
        pieces = [*output.read(tokens, known), *output.finish()]
        shown = [byte for p in pieces for entry in p.logprobs for byte in entry["bytes"]]
        text = bytes(shown).decode("utf-8", "replace")
        assert text_of(pieces, ParsedText) in (text, text[:-1] if stops else text)
        if not stops:
            assert shown == tokens


def test_forced_tokens_without_a_probability_are_passed_over() -> None:
    output = reader()
    a, b = token_ids("ab")
    (piece,) = output.read([a, b], (TokenLogprob(token=b, logprob=-1.0),))[1:]
    assert [entry["token"] for entry in piece.logprobs] == ["b"]


@pytest.mark.parametrize(
    ("text", "stopped", "shown"),
    [
        ("one STOP", True, "one "),
        ("one STO" + END, False, "one STO"),
        ("one ST", False, "one ST"),
        ("STOP", True, ""),
        (THOUGHT + "STOP", True, ""),
        (
            "what is not free may say STOP and go on",
            False,
            "what is not free may say STOP and go on",
        ),
    ],
)
@pytest.mark.parametrize("width", [1, 3, 100])
def test_stop_strings_are_trimmed_from_the_text_not_from_the_tokens(
    text: str, stopped: bool, shown: str, width: int
) -> None:
    output = reader(thinking=True, stops=["STOP"])
    tokens, pieces = token_ids(text), list[Piece]()
    for start in range(0, len(tokens), width):
        last = start + width >= len(tokens)
        pieces += output.read(tokens[start : start + width], stopped=stopped and last)
    pieces += output.finish()
    assert text_of(pieces, ParsedText) == shown
    assert output.tokens == tokens
    assert output.stop == ("STOP" if stopped else None)


def test_all_before_the_end_of_reasoning_is_reasoning_where_a_grammar_waits_for_it() -> None:
    for text, count in (("hm</think>\n\n{}", 3), ("<think>\nhm</think>\n\n{}", 4)):
        output = reader(thinking=True, reasons_first=True)
        pieces = read(output, text)
        assert text_of(pieces, ParsedReasoning) == "hm"
        assert text_of(pieces, ParsedText) == "{}"
        assert output.num_reasoning == count


@pytest.mark.parametrize("text", ["<think>a b</think>\n\nc d", "<think>a<think>b</think>c"])
@pytest.mark.parametrize("reasons_first", [False, True])
@pytest.mark.parametrize("most", range(9))
def test_a_bound_of_reasoning_counts_what_is_counted(
    text: str, reasons_first: bool, most: int
) -> None:
    tokens = token_ids(text)
    allowed = reader(thinking=True, reasons_first=reasons_first).before_reasoning(tokens, most)
    counts = []
    output = reader(thinking=True, reasons_first=reasons_first)
    for token in tokens:
        output.read([token])
        counts.append(output.num_reasoning)
    assert allowed == sum(count <= most for count in counts)


def test_half_a_character_at_the_end_shows_as_the_replacement_character() -> None:
    output = reader()
    pieces = output.read(token_ids("é")[:1]) + output.finish()
    assert text_of(pieces, ParsedText) == "\ufffd"
