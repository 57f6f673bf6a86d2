"""Calls in every format, drawn: valid, whole, read alike however they are cut, nothing lost."""

import pytest

from benchmarks.drawn_calls import DrawnCalls, every_format, joined
from tests.benchmarks.test_forced_calls import SCHEMAS, tools_of
from tools_api.parsed_events import CallDone, ParsedText, TextDone

FAULTS = ("invalid", "lost_or_split", "unfinished", "cut_differently", "dropped", "failed")


@pytest.mark.parametrize("name", every_format())
@pytest.mark.parametrize("seed", [0])
def test_no_drawn_call_is_invalid_lost_or_split_and_no_spoilt_one_is_dropped(
    name: str, seed: int
) -> None:
    counts = DrawnCalls(name, seed).run(tools_of(SCHEMAS), calls=21, cuts=7, mutations=40)
    assert (counts.calls, counts.cut, counts.mutated) == (21, 7, 40)
    assert {fault: getattr(counts, fault) for fault in FAULTS} == dict.fromkeys(FAULTS, 0), (
        counts.examples
    )


def test_neighbouring_texts_are_one_and_calls_stay_apart() -> None:
    events = [
        ParsedText("a"),
        ParsedText("b"),
        TextDone(),
        CallDone("f", "{}"),
        CallDone("f", "{}"),
    ]
    assert joined(events) == [ParsedText("ab"), *events[2:]]
