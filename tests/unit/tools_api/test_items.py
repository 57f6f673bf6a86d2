"""Items: frozen, with the published form, and what follows from their fields."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from tests.unit.tools_api.test_item_reading import OUTPUT_ITEMS, user
from tools_api.items import CustomToolCall, FunctionCall, Message, Reasoning


@pytest.mark.parametrize(
    ("item", "published"),
    list(
        zip(
            OUTPUT_ITEMS,
            (ResponseOutputMessage, ResponseFunctionToolCall, ResponseReasoningItem),
            strict=True,
        )
    ),
)
def test_output_items_have_the_published_form(item: Message, published: Any) -> None:
    parsed = published.model_validate(item.to_wire())
    assert parsed.model_dump(exclude_none=True) == item.to_wire()


def test_an_opened_message_has_no_content_yet() -> None:
    opened = Message(role="assistant", content=(), id="msg_1", status="in_progress")
    assert opened.to_wire() == {
        "type": "message",
        "id": "msg_1",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


def test_items_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        user("Hi").role = "system"  # type: ignore[misc]


def test_a_call_of_a_namespace_is_called_by_both_names() -> None:
    assert FunctionCall(call_id="c", name="add", arguments="").full_name == "add"
    call = CustomToolCall(call_id="c", name="add", namespace="mcp__x", input='say "hi"\n')
    assert call.full_name == "mcp__x__add"
    assert call.as_function_call() == FunctionCall(
        call_id="c", name="mcp__x__add", arguments='{"input": "say \\"hi\\"\\n"}'
    )


def test_only_reasoning_without_a_readable_text_is_sealed() -> None:
    assert Reasoning(encrypted_content="x").sealed
    assert not Reasoning(encrypted_content="x", content=("open",)).sealed
    assert not Reasoning().sealed
