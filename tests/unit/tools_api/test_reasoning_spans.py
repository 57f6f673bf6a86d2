"""Tokens of reasoning are those of which the parser makes reasoning, and what closes it."""

import random

import pytest

from tests.support.chat_models import FORMATS, format_of
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment
from tools_api.parsed_events import ParsedReasoning
from tools_api.reasoning_spans import reasoning_span

HARMONY = format_of(FORMATS["harmony"])
NAMES = FORMATS["harmony"]["tokens"]
CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"


def counted(tokens: list[str]) -> list[str]:
    """Those that are reasoning."""
    span, found = reasoning_span(HARMONY, thinking=True, reasons_first=False), []
    for token in tokens:
        special = token if token in NAMES else None
        if span.counts(special):
            found.append(token)
        span = span.behind(special, "" if special else token)
    return found


ANALYSIS = [CHANNEL, "ana", "lysis", MESSAGE]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([*ANALYSIS, "Hm", ".", END, START, "assistant"], ["Hm", ".", END]),
        ([*ANALYSIS, "cut"], ["cut"]),
        ([CHANNEL, "final", MESSAGE, "Hi", "<|return|>"], []),
        ([*ANALYSIS, "a", END, START, "assistant", *ANALYSIS, "b", END], ["a", END, "b", END]),
        ([*ANALYSIS, "a", CHANNEL, "final", MESSAGE, "Hi"], ["a", CHANNEL]),
        ([CHANNEL, "commentary to=functions.f", MESSAGE, "{}", "<|call|>"], []),
        ([CHANNEL, "analysis to=functions.f", MESSAGE, "{}", "<|call|>"], []),  # a call
        (["no header", MESSAGE, "x"], []),
        ([CHANNEL, "analysis", "x" * 5000, MESSAGE, "x"], []),
    ],
)
def test_of_channels_analysis_is_reasoning(tokens: list[str], expected: list[str]) -> None:
    assert counted(tokens) == expected


@pytest.mark.parametrize("seed", range(5))
def test_what_counts_is_what_the_parser_takes_for_reasoning(seed: int) -> None:
    rng = random.Random(seed)
    words = ["analysis", "final", "commentary", " to=functions.f", "assistant", "Hm", "\n", "{}"]
    for _ in range(300):
        drawn = rng.choices([*NAMES, CHANNEL, MESSAGE, *words, "analysis"], k=rng.randint(1, 20))
        parser = CallParser(HARMONY, True)
        events = parser.push(Segment(each, special=each in NAMES) for each in drawn)
        events += parser.finish()
        told = "".join(each.text for each in events if isinstance(each, ParsedReasoning))
        closers = ("<|end|>", "<|return|>", "<|call|>", START, CHANNEL)
        assert "".join(each for each in counted(drawn) if each not in closers) == told, drawn
