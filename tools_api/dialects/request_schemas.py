"""Schemas of the bodies that the HTTP APIs take, made from the models that read them.

A field that a pydantic model has gets that model's schema; where a body may be written otherwise
than the model holds it (a string for a list of one, an object for an array), that is said here, and
so is what is read by hand: items, messages, tools. A schema is no narrower than what is served.

Always true: of each body every field that is known is a property; null equals absent.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import create_model
from pydantic.json_schema import models_json_schema

from tools_api.call_decisions import CallDecision
from tools_api.dialects import anthropic_messages_request as messages
from tools_api.dialects import chat_completions_request as chat
from tools_api.docstrings import field_docstrings
from tools_api.requests import (
    Bounds,
    CacheOptions,
    CompactionOptions,
    ContextManagement,
    ContextOptions,
    CreateRequest,
    KeepwarmOptions,
    ReasoningConfig,
    RequestBudget,
    SamplingOptions,
    TextConfig,
    TextFormat,
    ToolReport,
)
from tools_api.wire import WireModel

Schema = dict[str, Any]
PREFIX = "#/components/schemas/"
_NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}
_INTERNAL = frozenset(
    {"references", "stream_id", "text_format", "verbosity", "compacts", "hosted_tools"}
    | {"body_digest", "warnings"}
)
"""Fields of ``CreateRequest`` that no client writes so."""
_NESTED: tuple[type[WireModel], ...] = (
    *(Bounds, RequestBudget, SamplingOptions, CompactionOptions, ContextOptions, ToolReport),
    *(
        CallDecision,
        KeepwarmOptions,
        CacheOptions,
        ContextManagement,
        ReasoningConfig,
        TextConfig,
        TextFormat,
    ),
)


def ref(name: str) -> Schema:
    """A reference to a component of the OpenAPI document."""
    return {"$ref": PREFIX + name}


def array(of: Schema) -> Schema:
    """The schema of an array of such values."""
    return {"type": "array", "items": of}


def one_of(*schemas: Schema) -> Schema:
    """The schema of a value that fits one of these."""
    return {"anyOf": list(schemas)}


def closed(properties: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    """An object that has no other properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": False,
    }


_MAYBE = one_of(TEXT, _NULL)
_BY_HAND: dict[str, Schema] = {
    "Item": {
        "type": "object",
        "description": "A message, call, output, reasoning or compaction; without a type a message",
        "properties": dict.fromkeys(("type", "id", "role", "call_id", "name"), _MAYBE),
    },
    "Tool": {
        "type": "object",
        "description": "A function, namespace, custom tool; hosted ones are left out, with a word",
        "properties": {"type": TEXT, "name": _MAYBE, "description": _MAYBE}
        | {"parameters": one_of(ANY_OBJECT, _NULL)},
        "required": ["type"],
    },
    "ToolChoice": one_of({"enum": ["none", "auto", "required"]}, ANY_OBJECT),
    "ChatMessage": {
        "type": "object",
        "properties": {"role": TEXT, "content": one_of(TEXT, array(ANY_OBJECT), _NULL)},
        "required": ["role"],
    },
    "ChatTool": {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": ANY_OBJECT},
        "required": ["type", "function"],
    },
    "MessagesMessage": {
        "type": "object",
        "properties": {"role": TEXT, "content": one_of(TEXT, array(ANY_OBJECT))},
        "required": ["role", "content"],
    },
}


def request_schemas() -> dict[str, Schema]:
    """By the names of components: ``CreateResponse``, ``CreateChatCompletion``, ``CreateMessage``,
    ``CountMessageTokens``, and what they refer to."""
    found = _of_models() | _BY_HAND
    create = found.pop("CreateRequest")
    fields: dict[str, Schema] = create["properties"]
    items, metadata = array(ref("Item")), fields["metadata"]
    return found | {
        "NewConversation": closed({"items": one_of(items, _NULL), "metadata": metadata}),
        "ChangedConversation": closed({"metadata": metadata}, ["metadata"]),
        "AddedItems": closed({"items": items}, ["items"]),
        "CreateResponse": _create_response(fields),
        "CreateChatCompletion": _chat_completion(fields, found["SamplingOptions"]),
        "CreateMessage": _message(fields, found["SamplingOptions"], counted=False),
        "CountMessageTokens": _message(fields, found["SamplingOptions"], counted=True),
    }


def _of_models() -> dict[str, Schema]:
    plain: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in CreateRequest.model_fields.items()
        if name not in _INTERNAL | {"input", "tools", "tool_choice"}
    }
    create = create_model("CreateRequest", __base__=WireModel, **plain)
    models = [(model, "validation") for model in (create, *_NESTED)]
    _, top = models_json_schema(models, ref_template=PREFIX + "{model}")  # type: ignore[arg-type]
    schemas: dict[str, Schema] = top["$defs"]
    every: tuple[type[WireModel], ...] = (CreateRequest, *_NESTED)
    for model in every:
        schema = schemas[model.__name__]
        told = field_docstrings(model)
        for name, each in schema["properties"].items():
            if name in told:
                each["description"] = told[name]
            schema["properties"][name] = _or_null(each, name in schema.get("required", ()))
        schema.pop("title", None)
    options, sampling = schemas["KeepwarmOptions"]["properties"], schemas["SamplingOptions"]
    options["budget"] = one_of(ref("RequestBudget"), array(ref("RequestBudget")), _NULL)
    sampling["properties"]["stop"] = one_of(TEXT, array(TEXT), _NULL)
    return schemas


def _or_null(schema: Schema, required: bool) -> Schema:
    schema = {key: value for key, value in schema.items() if key not in ("title", "default")}
    if required or _NULL in schema.get("anyOf", ()):
        return schema
    told = schema.pop("description", None)
    either = one_of(schema, _NULL)
    return either if told is None else either | {"description": told}


def _create_response(fields: dict[str, Schema]) -> Schema:
    text = one_of(ref("TextConfigAndFormat"), _NULL)
    named = {"type": "object", "properties": {"id": TEXT}, "required": ["id"]}
    told = {"description": fields["conversation"]["description"]}
    own = {
        "conversation": one_of(*fields["conversation"]["anyOf"], named) | told,
        "input": one_of(TEXT, array(ref("Item")), _NULL),
        "tools": one_of(array(ref("Tool")), _NULL),
        "tool_choice": one_of(ref("ToolChoice"), _NULL),
        "text": text,
        "stream": one_of(FLAG, _NULL),
        "stream_options": one_of(ANY_OBJECT, _NULL),
    }
    return {
        "type": "object",
        "description": "A response.create without its type; other fields are named in warnings",
        "properties": fields | own,
    }


def text_schema() -> Schema:
    """``text`` of a response: how it is written, and what it must look like."""
    return {
        "type": "object",
        "properties": {
            "format": one_of(ref("TextFormat"), _NULL),
            "verbosity": one_of({"enum": ["low", "medium", "high"]}, _NULL),
        },
    }


def _chat_completion(fields: dict[str, Schema], sampling: Schema) -> Schema:
    own: dict[str, Schema] = {
        "keepwarm": fields["keepwarm"],
        "logit_bias": ANY_OBJECT,
        "logprobs": FLAG,
        "max_completion_tokens": WHOLE,
        "max_tokens": WHOLE,
        "messages": array(ref("ChatMessage")),
        "modalities": array(TEXT),
        "n": WHOLE,
        "reasoning_effort": TEXT,
        "response_format": ANY_OBJECT,
        "stream": FLAG,
        "stream_options": ANY_OBJECT,
        "tool_choice": ref("ToolChoice"),
        "tools": array(ref("ChatTool")),
        "verbosity": TEXT,
        "prediction": ANY_OBJECT,
    }
    assert own.keys() == {*chat.READ, *chat.WITHOUT_EFFECT}
    same = {name: fields[name] for name in chat.SAME}
    drawn = {name: sampling["properties"][name] for name in chat.SAMPLING}
    return closed(same | drawn | _nullable(own, "messages"), ["messages"])


def _message(fields: dict[str, Schema], sampling: Schema, *, counted: bool) -> Schema:
    own: dict[str, Schema] = {
        "compaction": ANY_OBJECT,
        "context_management": ANY_OBJECT,
        "keepwarm": fields["keepwarm"],
        "max_tokens": WHOLE,
        "messages": array(ref("MessagesMessage")),
        "metadata": ANY_OBJECT,
        "output_config": ANY_OBJECT,
        "service_tier": TEXT,
        "speed": TEXT,
        "stop_sequences": array(TEXT),
        "stream": FLAG,
        "system": one_of(TEXT, array(ANY_OBJECT)),
        "thinking": ANY_OBJECT,
        "tool_choice": ANY_OBJECT,
        "tools": array(ANY_OBJECT),
        "top_k": sampling["properties"]["top_k"],
        "cache_control": {},
        "diagnostics": {},
    }
    assert own.keys() == {*messages.READ, *messages.WITHOUT_EFFECT}
    needed = ["messages"] if counted else ["max_tokens", "messages"]
    same = {name: fields[name] for name in messages.SAME}
    return closed(same | _nullable(own, *needed), needed)


def _nullable(properties: dict[str, Schema], *required: str) -> dict[str, Schema]:
    return {
        name: schema if name in required or not schema else _or_null(schema, False)
        for name, schema in properties.items()
    }
