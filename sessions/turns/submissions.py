"""Messages that a client puts before a response that runs, by ``response.steer``.

Read and checked here; when they are heard ``sessions.turns.steering`` decides.

Always true: a submission holds messages of the user alone, and the input as it was sent.
"""

from dataclasses import dataclass
from typing import Any, Literal

from tools_api import errors
from tools_api.events import SteerRequest
from tools_api.items import Item, Message
from tools_api.json_fields import join
from tools_api.limits import Limits
from tools_api.request_reading import parse_input
from tools_api.requests import CreateRequest

Boundary = Literal["item", "now"]
"""Where a response that is steered ends: behind the item that it writes, or at the next token
outside a call."""
_KEYS = frozenset({"type", "role", "content", "id", "status"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A steer that was accepted: messages for a response that runs."""

    id: str
    asked: SteerRequest
    items: tuple[Item, ...]
    num_bytes: int
    """Size of the steer's frame."""


def steering_items(asked: SteerRequest, num_bytes: int, limits: Limits) -> tuple[Item, ...]:
    """The messages.

    Raises:
        ApiError: they are none of the user's, there are none, or they are too long.
    """
    if num_bytes > limits.max_steer_bytes:
        raise errors.invalid_value(
            "input", f"its frame has more than {limits.max_steer_bytes} bytes"
        )
    if not asked.input:
        raise errors.invalid_value("input", "it is empty")
    if isinstance(asked.input, list):
        for index, entry in enumerate(asked.input):
            _refuse_others(entry, join("input", index))
    items, _ = parse_input(asked.input, limits)
    return items


def _refuse_others(entry: Any, path: str) -> None:
    if not isinstance(entry, dict):
        raise errors.invalid_type(path, "an object", entry)
    if entry.get("type") not in (None, "message"):
        raise errors.invalid_value(join(path, "type"), "steering takes messages alone")
    if entry.get("role") != "user":
        raise errors.invalid_value(join(path, "role"), "steering takes messages of the user alone")
    for key in entry.keys() - _KEYS:
        raise errors.invalid_value(join(path, key[: errors.MAX_QUOTED]), "unknown key")


def required_input(call: Item) -> dict[str, Any]:
    """The stub of the output that a call waits for."""
    wire = call.to_wire()
    stub = {"type": f"{wire['type']}_output", "call_id": wire["call_id"]}
    return stub | {"name": wire["name"]} if wire["type"] == "function_call" else stub


def messages_of(submissions: tuple[Submission, ...]) -> tuple[Item, ...]:
    """The messages of all submissions, in the order in which they came."""
    return tuple(item for each in submissions for item in each.items if isinstance(item, Message))


def successor(
    request: CreateRequest, id_: str, submissions: tuple[Submission, ...]
) -> CreateRequest:
    """The request for the response behind ``id_`` that hears them: it has all settings of the
    target's request, and none of what that brought."""
    options = request.keepwarm.model_copy(update={"request_id": None, "tools": (), "fork": False})
    update = {
        "input": messages_of(submissions),
        "references": (),
        "previous_response_id": id_,
        "keepwarm": options,
        "body_digest": b"",
    }
    return request.model_copy(update=update)
