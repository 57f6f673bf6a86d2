"""What the recorded dialogues have in common: tools and formats, and the outputs of calls."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.dialogues import Dialogue

Play = Callable[[Dialogue], Awaitable[None]]
LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Look a product up.",
    "parameters": {
        "type": "object",
        "properties": {"product": {"enum": ["lamp", "desk"]}},
        "required": ["product"],
        "additionalProperties": False,
    },
}
SIZE: Any = {
    "type": "object",
    "properties": {"width": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["width"],
    "additionalProperties": False,
}
FORMAT: Any = {"format": {"type": "json_schema", "name": "size", "schema": SIZE}}
ASK_FOR_BOTH = "Look up the lamp and the desk."
CREATED, DELTA = "response.created", "response.output_text.delta"


class Dialogues:
    """Those of one module, by name; ``dialogue`` adds one."""

    def __init__(self) -> None:
        self.by_name: dict[str, Play] = {}

    def dialogue(self, play: Play) -> Play:
        self.by_name[play.__name__] = play
        return play


def outputs(response: dict[str, Any]) -> list[dict[str, Any]]:
    """An output for each of its calls."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": f"price {number}"}
        for number, item in enumerate(response["output"])
        if item["type"] == "function_call"
    ]


def body(text: Any = "Who are you?", /, **fields: Any) -> dict[str, Any]:
    """Of a request of Responses over HTTP."""
    return {"input": text, "temperature": 0, "max_output_tokens": 12} | fields


def message(text: str = "Who are you?", **fields: Any) -> dict[str, Any]:
    """Of a request of Messages."""
    given = {"temperature": 0, "max_tokens": 12} | fields
    asked = {"model": "default", "messages": [{"role": "user", "content": text}]} | given
    return {name: value for name, value in asked.items() if value is not None}
