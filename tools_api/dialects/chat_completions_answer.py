"""Answers for a client of Chat Completions: completions, their chunks, and errors.

Written from the events and the response object of the Responses protocol. Items become one
message: its texts are joined, its reasoning is ``reasoning_content``, its calls are numbered in
the order of the items.

Always true: the deltas of a stream add up to the message of ``whole``; the first chunk brings
the role, ``[DONE]`` ends every stream that did not fail.
"""

from collections.abc import Iterator
from typing import Any

from tools_api.dialects import dialect_events
from tools_api.dialects.chat_completions_request import NAMES
from tools_api.dialects.dialect_events import retold
from tools_api.errors import ApiError
from tools_api.events import Event

Chunk = dict[str, Any]
_DONE = b"data: [DONE]\n\n"


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    named = NAMES.error(error)
    shown = {"message": named.message, "type": named.type, "param": named.param}
    return {"error": shown | {"code": named.code}}


def error_event(error: ApiError) -> bytes:
    """An error inside a stream, which ends with it and not with ``[DONE]``."""
    return dialect_events.data(error_body(error))


class CompletionWriter:
    """Writes the answer of the Chat Completions API."""

    def __init__(self, *, usage: bool, logprobs: bool) -> None:
        """
        Args:
            usage: a stream's last chunk tells what the turn consumed.
            logprobs: log-probabilities were asked for.
        """
        self._usage = usage
        self._logprobs = logprobs
        self._head: Chunk = {}
        """The fields that all chunks have in common; empty until the response is known."""
        self._opened = False
        self._told = False
        """Some item of the output has come."""
        self._calls: dict[int, int] = {}
        """Numbers of the calls by their item's ``output_index``."""

    def feed(self, event: Event) -> bytes:
        """Chunks for one event; the terminal one also brings the end."""
        match event["type"]:
            case "response.created":
                self._head = _head(event["response"])
            case "response.in_progress":
                return self._open(event["response"])
            case "response.output_item.added":
                self._told = True
                return self._call(event) if event["item"]["type"] == "function_call" else b""
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
        """The completion.

        Raises:
            ApiError: the response failed.
        """
        if response["status"] == "failed":
            raise dialect_events.failure(response)
        choice = {
            "index": 0,
            "message": _message(response["output"]),
            "logprobs": self._logprobs_of(_logprobs(response["output"])),
            "finish_reason": _finish_reason(response),
        }
        whole = _head(response) | {"object": "chat.completion", "choices": [choice]}
        return whole | {"usage": _usage(response)} | _vendor(response)

    def _open(self, response: Event) -> bytes:
        """The chunk with the role, once."""
        self._head = self._head or _head(response)
        if self._opened:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": ""})

    def _delta(self, kind: str, event: Event) -> bytes:
        match kind:
            case "response.output_text.delta":
                logprobs = self._logprobs_of(event["logprobs"])
                return self._chunk({"content": event["delta"]}, logprobs=logprobs)
            case "response.reasoning_text.delta":
                return self._chunk({"reasoning_content": event["delta"]})
            case "response.function_call_arguments.delta":
                number = self._calls[event["output_index"]]
                call = {"index": number, "function": {"arguments": event["delta"]}}
                return self._chunk({"tool_calls": [call]})
        return b""

    def _call(self, event: Event) -> bytes:
        number = self._calls[event["output_index"]] = len(self._calls)
        return self._chunk({"tool_calls": [{"index": number} | _tool_call(event["item"])]})

    def _untold(self, response: Event) -> bytes:
        """The chunks of a whole answer, where its end came alone."""
        return b"" if self._told else b"".join(map(self.feed, retold(response["output"])))

    def _end(self, response: Event) -> bytes:
        """The reason, what the turn consumed if that was asked for, and the mark of the end."""
        out = self._chunk({}, finish_reason=_finish_reason(response), more=_vendor(response))
        if self._usage:
            out += dialect_events.data(self._head | {"choices": [], "usage": _usage(response)})
        return out + _DONE

    def _chunk(
        self,
        delta: Chunk,
        *,
        finish_reason: str | None = None,
        logprobs: Chunk | None = None,
        more: Chunk | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = self._head | {"choices": [choice]}
        if self._usage:
            chunk["usage"] = None
        return dialect_events.data(chunk | more if more else chunk)

    def _logprobs_of(self, entries: list[Event]) -> Chunk | None:
        return {"content": entries, "refusal": None} if self._logprobs else None


def _head(response: Event) -> Chunk:
    return {
        "id": "chatcmpl-" + response["id"].removeprefix("resp_"),
        "object": "chat.completion.chunk",
        "created": response["created_at"],
        "model": response["model"],
        "service_tier": response["service_tier"],
        "system_fingerprint": None,
    }


def _message(output: list[Event]) -> Chunk:
    text = "".join(part["text"] for part in _parts(output, "message"))
    reasoning = "".join(part["text"] for part in _parts(output, "reasoning"))
    calls = [_tool_call(item) for item in output if item["type"] == "function_call"]
    message: Chunk = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message |= {"content": text or None, "tool_calls": calls}
    return message


def _tool_call(item: Event) -> Chunk:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _parts(output: list[Event], kind: str) -> Iterator[Event]:
    return (part for item in output if item["type"] == kind for part in item["content"])


def _logprobs(output: list[Event]) -> list[Event]:
    return [entry for part in _parts(output, "message") for entry in part["logprobs"]]


def _finish_reason(response: Event) -> str:
    if response["status"] == "incomplete":
        cut = response["incomplete_details"]
        return "content_filter" if cut == {"reason": "content_filter"} else "length"
    called = any(item["type"] == "function_call" for item in response["output"])
    return "tool_calls" if called else "stop"


def _usage(response: Event) -> Chunk:
    usage = response["usage"]
    read = usage["input_tokens_details"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": read["cached_tokens"],
            "cache_write_tokens": read["cache_write_tokens"],
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _vendor(response: Event) -> Chunk:
    """The response's own ``keepwarm`` object, if it has one."""
    return {"keepwarm": response["keepwarm"]} if "keepwarm" in response else {}
