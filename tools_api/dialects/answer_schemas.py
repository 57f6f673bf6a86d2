"""Schemas of what the HTTP APIs answer: whole objects, errors, lists.

The response object has what its writer writes, field by field, with the schema of the request's
field that is echoed. Objects are closed: what an answer has is said here.
"""

from typing import Any

from tools_api.dialects.request_schemas import (
    ANY_OBJECT,
    FLAG,
    TEXT,
    WHOLE,
    Schema,
    array,
    closed,
    one_of,
    ref,
)
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject, usage

_NULL: Schema = {"type": "null"}
_NUMBER: Schema = {"type": "number"}
_MAYBE_TEXT = one_of(TEXT, _NULL)
_MAYBE_WHOLE = one_of(WHOLE, _NULL)


def answer_schemas() -> dict[str, Schema]:
    """The schemas of answers, by the names of components."""
    return {
        "Error": _error(),
        "MessagesError": _messages_error(),
        "Usage": _usage(),
        "Response": _response(),
        "DeletedResponse": _all({"id": TEXT, "object": {"const": "response"}, "deleted": FLAG}),
        "ItemList": _list(ref("Item"), first_id=_MAYBE_TEXT, last_id=_MAYBE_TEXT, has_more=FLAG),
        "InputTokens": _all({"object": {"const": "response.input_tokens"}, "input_tokens": WHOLE}),
        "CompactedResponse": _all(
            {
                "id": TEXT,
                "object": {"const": "response.compaction"},
                "created_at": WHOLE,
                "output": array(ref("Item")),
                "usage": ref("Usage"),
                "keepwarm": _all({"context": {"type": ["object", "null"]}}),
            }
        ),
        "CallList": _list(ANY_OBJECT, response_id=TEXT, session=_MAYBE_TEXT),
        "CallState": _call_state(),
        "Session": _all(
            {"object": {"const": "session"}, "name": TEXT, "head": _MAYBE_TEXT, "turns": WHOLE}
        ),
        "Conversation": _all(
            {"id": TEXT, "object": {"const": "conversation"}, "created_at": WHOLE}
            | {"metadata": {"type": "object", "additionalProperties": TEXT}}
        ),
        "DeletedConversation": _all(
            {"id": TEXT, "object": {"const": "conversation.deleted"}, "deleted": FLAG}
        ),
        "ChatCompletion": _completion(),
        "Message": _message(),
        "MessageTokens": _all({"input_tokens": WHOLE}),
        "Model": _model(),
        "ModelList": one_of(
            _list(ref("Model")),
            _all(
                {"data": array(ref("Model")), "has_more": FLAG, "first_id": _MAYBE_TEXT}
                | {"last_id": _MAYBE_TEXT}
            ),
        ),
        "UsageReport": _usage_report(),
        "EndpointList": _all({"name": TEXT, "endpoints": array(ANY_OBJECT)}),
    }


def _all(properties: dict[str, Schema]) -> Schema:
    """A closed object that has all of them."""
    return closed(properties, properties)


def _list(of: Schema, **more: Schema) -> Schema:
    return _all({"object": {"const": "list"}, "data": array(of)} | more)


def _error() -> Schema:
    told: dict[str, Schema] = {"message": TEXT, "type": TEXT, "param": _MAYBE_TEXT}
    told |= {"code": _MAYBE_TEXT}
    inner = closed(told | {"keepwarm": ANY_OBJECT}, told)
    return _all({"error": inner})


def _messages_error() -> Schema:
    told = {"type": TEXT, "message": TEXT}
    inner = closed(told | {"details": _all({"error_code": TEXT})}, told)
    return _all({"type": {"const": "error"}, "error": inner})


def _usage() -> Schema:
    """Of the shape that its writer gives it."""

    def shaped(value: Any) -> Schema:
        if isinstance(value, dict):
            return _all({name: shaped(each) for name, each in value.items()})
        return WHOLE

    none = usage(input_tokens=0, cached_tokens=0, cache_write_tokens=0, output_tokens=0)
    schema: Schema = shaped(none)
    return schema


def _response() -> Schema:
    request = CreateRequest()
    made = ResponseObject(id="", request=request, model="", created_at=0, previous_response_id=None)
    known: dict[str, Schema] = {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": WHOLE,
        "completed_at": _MAYBE_WHOLE,
        "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed"]},
        "background": FLAG,
        "error": one_of(ANY_OBJECT, _NULL),
        "incomplete_details": one_of(ANY_OBJECT, _NULL),
        "model": TEXT,
        "output": array(ref("Item")),
        "usage": one_of(ref("Usage"), _NULL),
        "text": ANY_OBJECT,
        "reasoning": ANY_OBJECT,
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "tools": array(ref("Tool")),
        "tool_choice": ref("ToolChoice"),
        "temperature": _NUMBER,
        "top_p": _NUMBER,
        "top_logprobs": WHOLE,
        "parallel_tool_calls": FLAG,
        "store": FLAG,
        "max_output_tokens": _MAYBE_WHOLE,
        "max_tool_calls": _MAYBE_WHOLE,
    }
    always = {name: known.get(name, _MAYBE_TEXT) for name in made.wire(status="completed")}
    sometimes = dict.fromkeys(
        ("keepwarm", "prompt_cache_options", "prompt_cache_diagnostics"), ANY_OBJECT
    )
    sometimes["conversation"] = _all({"id": TEXT})
    return closed(always | sometimes, always)


def _call_state() -> Schema:
    always: dict[str, Schema] = {"call_id": TEXT, "state": TEXT}
    decided: dict[str, Schema] = {"by": TEXT, "key": TEXT, "reason": TEXT, "decided_at": _NUMBER}
    begun: dict[str, Schema] = {"holder": TEXT, "begun_at": _NUMBER, "output": TEXT}
    return closed(always | decided | begun, always)


def _completion() -> Schema:
    choice = _all(
        {
            "index": WHOLE,
            "message": closed(
                {"role": {"const": "assistant"}, "content": _MAYBE_TEXT, "refusal": _MAYBE_TEXT}
                | {"reasoning_content": TEXT, "tool_calls": array(ANY_OBJECT)},
                ["role", "content", "refusal"],
            ),
            "logprobs": one_of(ANY_OBJECT, _NULL),
            "finish_reason": {"enum": ["stop", "length", "content_filter", "tool_calls"]},
        }
    )
    always: dict[str, Schema] = {
        "id": TEXT,
        "object": {"const": "chat.completion"},
        "created": WHOLE,
        "model": TEXT,
        "service_tier": TEXT,
        "system_fingerprint": _MAYBE_TEXT,
        "choices": array(choice),
        "usage": _all(
            {"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE}
            | {"prompt_tokens_details": ANY_OBJECT, "completion_tokens_details": ANY_OBJECT}
        ),
    }
    return closed(always | {"keepwarm": ANY_OBJECT}, always)


def _message() -> Schema:
    always: dict[str, Schema] = {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": array(ANY_OBJECT),
        "stop_reason": _MAYBE_TEXT,
        "stop_sequence": _MAYBE_TEXT,
        "usage": ANY_OBJECT,
    }
    more = dict.fromkeys(("keepwarm", "context_management"), ANY_OBJECT)
    return closed(always | more | {"stop_details": one_of(ANY_OBJECT, _NULL)}, always)


def _model() -> Schema:
    ours: dict[str, Schema] = {"id": TEXT, "object": {"const": "model"}, "created": WHOLE}
    ours |= {"owned_by": TEXT, "max_model_len": WHOLE}
    theirs: dict[str, Schema] = {"type": {"const": "model"}, "display_name": TEXT}
    theirs |= {"created_at": TEXT, "lifecycle": TEXT}
    return closed(ours | theirs | {"max_input_tokens": WHOLE, "max_tokens": WHOLE}, ours)


def _usage_report() -> Schema:
    counts = (
        *("turns", "failed", "calls", "input_tokens", "cached_tokens", "output_tokens"),
        *("reasoning_tokens", "forced_tokens", "cost_nano", "saved_nano"),
    )
    sums: dict[str, Schema] = dict.fromkeys(counts, WHOLE)
    sums |= dict.fromkeys(("block_seconds", "cost", "saved"), _NUMBER)
    row = sums | {"start": TEXT, "value": _MAYBE_TEXT, "kind": TEXT}
    return _all(
        {
            "object": {"const": "usage"},
            "from": TEXT,
            "to": TEXT,
            "bucket": {"enum": ["1h", "1d", "1mo"]},
            "group_by": _MAYBE_TEXT,
            "tenant": _MAYBE_TEXT,
            "data": array(closed(row, [*sums, "start"])),
            "total": _all(sums),
            "next_cursor": _MAYBE_TEXT,
        }
    )
