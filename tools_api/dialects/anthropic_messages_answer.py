"""Answers for a client of Anthropic's API: messages, the events of a stream, and errors.

Written from the events and the response object of the Responses protocol, an item to a block:
a message is ``text``, reasoning ``thinking``, a call ``tool_use``. ``message_start`` says how many
tokens the prompt has, which ``message_delta`` says again: where that is not known yet, it says 0.

Always true: the deltas of a stream add up to the message of ``whole``; one block is open at a
time; a stream that did not fail ends with ``message_stop``.
"""

from typing import Any

from tools_api import exact_json
from tools_api.dialects import dialect_events
from tools_api.dialects.anthropic_messages_request import CLEAR_USES, NAMES, THREAD
from tools_api.dialects.anthropic_messages_tools import SERVER_TOOLS
from tools_api.dialects.dialect_events import retold
from tools_api.errors import ApiError, told_lengths
from tools_api.events import Event
from tools_api.item_reading import summary_in

Block = dict[str, Any]
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Types of errors by status; any other is ``invalid_request_error`` below 500, else
``api_error``."""
_SIGNATURE = "unsigned"
"""The signature of all thinking. It proves nothing, and is read by nobody here: but of a block
without one clients take it that it may not be sent back, and write it into the text or drop it."""
_NOTHING_USED = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


def error_status(error: ApiError) -> int:
    """An overloaded server answers 529 there, which the clients know by a class of its own."""
    return 529 if error.status == 503 else error.status


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's shape. Of a prompt that is too long it says what is published and no
    more: clients read the numbers before they shorten the history and try again. Of a thread it has
    the published code, upon which a tool runner goes on without one."""
    lengths, message = told_lengths(error), NAMES.error(error).message
    if lengths is None and error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    elif lengths is not None:
        message = f"prompt is too long: {lengths[0]} tokens > {lengths[1]} maximum"
    other = "invalid_request_error" if error.status < 500 else "api_error"
    shown: Block = {"type": _TYPES.get(error.status, other), "message": message}
    if error.param == THREAD:
        shown["details"] = {"error_code": "thread_unsupported_request"}
    return {"type": "error", "error": shown}


def error_event(error: ApiError) -> bytes:
    """An error inside a stream, which ends with it."""
    return dialect_events.named(error_body(error))


class MessageWriter:
    """Writes the answer of the Messages API."""

    def __init__(self, *, thinking_shown: bool, generates: bool, edits: bool = False) -> None:
        """
        Args:
            edits: the context may have been edited, which the answer says.
            thinking_shown: thinking blocks hold their text; otherwise they are empty.
            generates: false for a warm-up, which ends at its limit of 0 tokens.
        """
        self._thinking_shown = thinking_shown
        self._generates = generates
        self._edits = edits
        self._opened = False
        self._told = False
        """Some item of the output has come."""
        self._response: Event = {}
        """The response as it was created; empty until then."""
        self._next = 0
        """Number of the block that is open, or of the next one."""

    def feed(self, event: Event) -> bytes:
        """Events for one event; the terminal one also brings the end."""
        match event["type"]:
            case "response.created":
                self._response = event["response"]
            case "response.in_progress":
                return self._open(event["response"])
            case "response.output_item.added":
                self._told = True
                opened = self._open(self._response)
                late = event["item"]["type"] == "tool_search_call"
                return opened if late else opened + self._start(event["item"])
            case "response.output_item.done":
                return self._whole_block(event["item"]) + self._stop()
            case "response.completed" | "response.incomplete":
                response = event["response"]
                return self._open(response) + self._untold(response) + self._end(response)
            case "response.failed":
                return error_event(dialect_events.failure(event["response"]))
            case "error":
                return error_event(dialect_events.refusal(event))
            case kind:
                return self._delta(kind, event)
        return b""

    def whole(self, response: Event) -> dict[str, Any]:
        """The message.

        Raises:
            ApiError: the response failed.
        """
        if response["status"] == "failed":
            raise dialect_events.failure(response)
        blocks = [self._block(item) for item in response["output"]]
        message = _message(response) | {"content": blocks, "usage": _usage(response)}
        return message | self._ending(response) | self._applied(response) | _vendor(response)

    def _applied(self, response: Event) -> Block:
        """Which edits were made of the context for this turn."""
        if not self._edits:
            return {}
        context = response.get("keepwarm", {}).get("context")
        applied: list[Block] = []
        if context is not None and context["cleared"]:
            cleared = {
                "type": CLEAR_USES,
                "cleared_tool_uses": len(context["cleared"]),
                "cleared_input_tokens": max(context["before"] - context["after"], 0),
            }
            applied.append(cleared)
        return {"context_management": {"applied_edits": applied}}

    def _open(self, response: Event) -> bytes:
        """The message without content, once."""
        if self._opened:
            return b""
        self._opened = True
        message = _message(response) | {"content": [], "usage": _usage_begun(response)}
        message |= {"stop_reason": None, "stop_sequence": None}
        start = dialect_events.named({"type": "message_start", "message": message})
        return start + dialect_events.named({"type": "ping"})

    def _start(self, item: Event) -> bytes:
        empty = {"type": "content_block_start", "index": self._next, "content_block": _empty(item)}
        return dialect_events.named(empty)

    def _delta(self, kind: str, event: Event) -> bytes:
        match kind:
            case "response.output_text.delta":
                delta = {"type": "text_delta", "text": event["delta"]}
            case "response.reasoning_text.delta" if self._thinking_shown:
                delta = {"type": "thinking_delta", "thinking": event["delta"]}
            case "response.function_call_arguments.delta":
                delta = {"type": "input_json_delta", "partial_json": event["delta"]}
            case _:
                return b""
        part = {"type": "content_block_delta", "index": self._next, "delta": delta}
        return dialect_events.named(part)

    def _whole_block(self, item: Event) -> bytes:
        """The block of a compaction or of a search, which comes at once; the end of thinking."""
        match item["type"]:
            case "reasoning":
                start, delta = b"", {"type": "signature_delta", "signature": _SIGNATURE}
            case "compaction":
                start, delta = b"", {"type": "compaction_delta"} | _compacted(item)
            case "tool_search_call":
                start = self._start(item)
                written = exact_json.written(item["arguments"])
                delta = {"type": "input_json_delta", "partial_json": written}
            case _:
                return b""
        part = {"type": "content_block_delta", "index": self._next, "delta": delta}
        return start + dialect_events.named(part)

    def _stop(self) -> bytes:
        stop = {"type": "content_block_stop", "index": self._next}
        self._next += 1
        return dialect_events.named(stop)

    def _untold(self, response: Event) -> bytes:
        """The events of a whole message, where its end came alone."""
        return b"" if self._told else b"".join(map(self.feed, retold(response["output"])))

    def _end(self, response: Event) -> bytes:
        delta = (
            {
                "type": "message_delta",
                "delta": self._ending(response),
                "usage": _usage(response),
            }
            | self._applied(response)
            | _vendor(response)
        )
        return dialect_events.named(delta) + dialect_events.named({"type": "message_stop"})

    def _block(self, item: Event) -> Block:
        block = _empty(item)
        match item["type"]:
            case "function_call":
                block["input"] = _input(item["arguments"])
            case "tool_search_call":
                block["input"] = item["arguments"]
            case "tool_search_output":
                pass
            case "compaction":
                block |= _compacted(item)
            case "message":
                block["text"] = "".join(part["text"] for part in item["content"])
            case _:
                block["signature"] = _SIGNATURE
                if self._thinking_shown:
                    block["thinking"] = "".join(part["text"] for part in item["content"])
        return block

    def _ending(self, response: Event) -> Block:
        """The message's ``stop_reason``."""
        stop = response.get("keepwarm", {}).get("stop")
        reason = "end_turn"
        if response["status"] == "incomplete":
            cut = response["incomplete_details"]
            reason = "refusal" if cut == {"reason": "content_filter"} else "max_tokens"
        elif not self._generates:
            reason = "max_tokens"
        elif response["output"] and response["output"][-1]["type"] == "compaction":
            reason = "compaction"
        elif any(item["type"] == "function_call" for item in response["output"]):
            reason = "tool_use"
        elif stop is not None:
            reason = "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": stop if reason == "stop_sequence" else None,
        }


def _message(response: Event) -> Block:
    return {
        "id": "msg_" + response["id"].removeprefix("resp_"),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
    }


def _empty(item: Event) -> Block:
    match item["type"]:
        case "function_call":
            return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_search_call":
            name = SERVER_TOOLS["pattern" in item["arguments"]]
            return {"type": "server_tool_use", "id": item["call_id"], "name": name, "input": {}}
        case "tool_search_output":
            return _found(item)
        case "compaction":
            return {"type": "compaction", "content": None, "encrypted_content": None}
    return {"type": "text", "text": ""}


def _found(item: Event) -> Block:
    """What a search found, by name."""
    references = [{"type": "tool_reference", "tool_name": tool["name"]} for tool in item["tools"]]
    content = {"type": "tool_search_tool_search_result", "tool_references": references}
    return {"type": "tool_search_tool_result", "tool_use_id": item["call_id"], "content": content}


def _compacted(item: Event) -> Block:
    """The summary, which clients may show, and what stands for it; None: there is no summary."""
    sealed = item["encrypted_content"]
    return {"content": summary_in(sealed), "encrypted_content": sealed}


def _input(arguments: str) -> Block:
    """The arguments as an object; of those that were cut short what a client makes of the
    deltas."""
    try:
        parsed = exact_json.beginning(arguments)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _usage_begun(response: Event) -> Block:
    """What the turn has read, as ``response.in_progress`` or a later event tells it."""
    tokens = response.get("keepwarm", {}).get("tokens")
    return _NOTHING_USED if tokens is None else _read(tokens["input"], tokens["cached"])


def _read(tokens: int, cached: int) -> Block:
    return _NOTHING_USED | {
        "input_tokens": tokens - cached,
        "cache_read_input_tokens": cached,
    }


def _usage(response: Event) -> Block:
    usage = response["usage"]
    read = _read(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
    told = read | {"output_tokens": usage["output_tokens"]}
    context = response.get("keepwarm", {}).get("context")
    if context is None or not context["computed"] + context["cached"]:
        return told
    summary = {
        "type": "compaction",
        "input_tokens": context["computed"],
        "cache_read_input_tokens": context["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": context["output"],
    }
    return told | {"iterations": [summary, {"type": "message"} | told]}


def _vendor(response: Event) -> Block:
    """The response's own ``keepwarm`` object, if it has one."""
    return {"keepwarm": response["keepwarm"]} if "keepwarm" in response else {}
