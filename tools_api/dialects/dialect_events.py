"""Events that dialects write alike: server-sent events as bytes, and failures as errors.

Knows the events of the Responses protocol, and no dialect.

Always true: an event's bytes are whole, and hold no line break but those that end it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tools_api.errors import ApiError
from tools_api.events import Event
from tools_api.exact_json import dumps
from tools_api.responses import FAILURES


def data(value: dict[str, Any]) -> bytes:
    """An event without a name."""
    return b"data: " + dumps(value) + b"\n\n"


def named(value: dict[str, Any]) -> bytes:
    """An event that is named by its ``type``."""
    name: str = value["type"]
    return b"event: " + name.encode() + b"\ndata: " + dumps(value) + b"\n\n"


def failure(response: Event) -> ApiError:
    """The error of a response that failed."""
    error = response["error"]
    status, type_ = FAILURES.get(error["code"], (500, "server_error"))
    return ApiError(error["message"], code=error["code"], status=status, type=type_)


def refusal(event: Event) -> ApiError:
    """The error in an ``error`` event."""
    error = event["error"]
    return ApiError(
        error["message"],
        code=error["code"],
        param=error["param"],
        status=event["status"],
        type=error["type"],
    )


def retold(output: Sequence[Event]) -> Iterator[Event]:
    """The events that open, fill and close the items of ``response.output``, with one delta for
    each text: for a stream that got the terminal event alone. They have what a dialect reads, and
    no numbers."""
    for index, item in enumerate(output):
        at = {"output_index": index}
        kind = item["type"]
        opened = item | {"arguments": ""} if kind == "function_call" else item
        yield {"type": "response.output_item.added", "item": opened} | at
        if kind == "function_call":
            delta = {"type": "response.function_call_arguments.delta"}
            yield delta | {"delta": item["arguments"]} | at
        elif kind == "message":
            for part in item["content"]:
                delta = {"type": "response.output_text.delta", "logprobs": part["logprobs"]}
                yield delta | {"delta": part["text"]} | at
        elif kind == "reasoning":
            for part in item["content"]:
                yield {"type": "response.reasoning_text.delta", "delta": part["text"]} | at
        yield {"type": "response.output_item.done", "item": item} | at
