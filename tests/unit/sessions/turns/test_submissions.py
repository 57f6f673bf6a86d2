"""What may be said to a response that runs: messages of the user, within bounds."""

from typing import Any

import pytest

from sessions.turns.submissions import (
    Submission,
    messages_of,
    required_input,
    steering_items,
)
from tools_api.errors import ApiError
from tools_api.events import SteerRequest
from tools_api.item_reading import parse_items
from tools_api.items import Message
from tools_api.limits import Limits

LIMITS = Limits(max_steer_bytes=1000, max_input_items=3)


def items(text: Any, num_bytes: int = 100) -> tuple[Any, ...]:
    asked = SteerRequest(previous_response_id="resp_1", input=text)
    return steering_items(asked, num_bytes, LIMITS)


def test_a_text_is_one_message_of_the_user() -> None:
    (message,) = items("faster")
    assert isinstance(message, Message)
    assert (message.role, message.text) == ("user", "faster")


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([None], "input[0]"),
        ([{"role": "user", "content": "a"}] * 4, "input"),
        (
            [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}],
            "input[1].role",
        ),
        ([{"type": "reasoning", "summary": []}], "input[0].type"),
        ([{"role": "user", "content": "a", "phase": "x"}], "input[0].phase"),
        ([{"role": "user", "content": 3}], "input[0].content"),
    ],
)
def test_other_input_is_refused_by_its_place(text: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        items(text)
    assert caught.value.param == param


def test_a_long_frame_is_refused() -> None:
    assert items("a", 1000)
    with pytest.raises(ApiError):
        items("a", 1001)


def test_messages_stand_in_the_order_of_their_submissions() -> None:
    asked = SteerRequest(previous_response_id="resp_1", input="x")
    several = tuple(
        Submission(id=str(n), asked=asked, items=items(f"text {n}"), num_bytes=1) for n in range(3)
    )
    assert [each.text for each in messages_of(several) if isinstance(each, Message)] == [
        *("text 0", "text 1", "text 2")
    ]


def test_a_stub_names_the_output_that_is_awaited() -> None:
    function, custom = parse_items(
        [
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "x"},
        ],
        "items",
    )
    assert required_input(function) == {
        "type": "function_call_output",
        "call_id": "a",
        "name": "f",
    }
    assert required_input(custom) == {"type": "custom_tool_call_output", "call_id": "b"}
