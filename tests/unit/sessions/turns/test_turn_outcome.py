"""The results of an ended turn: what of it later turns continue, and whose its calls are."""

from dataclasses import replace
from typing import Any

import pytest

from sessions.durable.transcript import Tail
from sessions.turns.turn_outcome import STEERED, entry_of, incomplete_reason, is_clients
from tests.unit.sessions.turns.test_turn_plan import a_plan
from tools_api.items import FunctionCall, Message, TextPart


@pytest.mark.parametrize(
    ("tokens", "behind", "tail"),
    [
        ([], Tail.CLOSED_OUTPUT, Tail.OPEN_OUTPUT),
        ([5, 6], Tail.CLOSED_OUTPUT, Tail.CLOSED_OUTPUT),
        ([5, 6], Tail.OPENED_CALL_OUTPUT, Tail.OPENED_CALL_OUTPUT),
        ([5], Tail.OPEN_OUTPUT, Tail.OPEN_OUTPUT),
    ],
)
def test_an_entry_has_the_output_and_how_it_ended(
    tokens: list[int], behind: Tail, tail: Tail
) -> None:
    plan = a_plan()
    entry = entry_of(plan, (), tokens, behind)
    assert (entry.tail, entry.output_ids.tolist()) == (tail, tokens)
    assert entry.num_tokens == len(plan.input_ids) + len(tokens)


def test_whole_calls_are_open_and_log_probabilities_are_the_clients_alone() -> None:
    part: Any = TextPart(type="output_text", text="a", logprobs=({"token": "a"},))
    said = (
        Message(role="assistant", content=(part,)),
        FunctionCall(call_id="whole", name="f", arguments="{}", status="completed"),
        FunctionCall(call_id="cut", name="f", arguments="{", status="incomplete"),
    )
    entry = entry_of(a_plan(), said, [1], Tail.OPEN_OUTPUT)
    assert entry.open_calls == {"whole"}
    assert entry.output_items[0] == replace(said[0], content=(replace(part, logprobs=()),))
    assert [is_clients(item) for item in said] == [False, True, False]


def test_a_cancelled_response_has_no_published_reason() -> None:
    assert incomplete_reason("cancelled", "cancelled") is None
    assert incomplete_reason("incomplete", STEERED) == "steered"
    assert incomplete_reason("incomplete", "context_full") == "max_output_tokens"
