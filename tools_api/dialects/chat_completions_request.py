"""The body of ``POST /v1/chat/completions`` as the fields of a ``response.create``.

Fields that mean the same in both are passed on unread; ``sessions`` checks them as it checks
anybody's, and ``NAMES`` says its refusals in this endpoint's words. The messages are read by
``tools_api.dialects.chat_completions_history``.

Always true: the same body gives the same fields; no field of it is dropped without being named
in ``WITHOUT_EFFECT``.
"""

from typing import Any

from tools_api import errors
from tools_api.dialects.chat_completions_history import items_of
from tools_api.dialects.dialect_fields import (
    FieldNames,
    Fields,
    a_count,
    a_flag,
    a_name,
    a_string,
    an_array,
    an_object,
    known_fields,
    names_session,
    objects,
    one_of,
    picked,
    refuse_others,
    vendor_options,
)
from tools_api.json_fields import join

SAME = (
    "metadata", "model", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "store", "temperature",
    "top_logprobs", "top_p", "truncation", "user",
)  # fmt: skip
"""Fields that both APIs have under one name."""
SAMPLING = (
    "frequency_penalty", "presence_penalty", "seed", "stop",
    "min_p", "repetition_penalty", "top_k",
)  # fmt: skip
"""Fields that stand in ``keepwarm.sampling`` there; those of the second line are not OpenAI's,
but many servers have them."""
READ = (
    "keepwarm", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages",
    "modalities", "n", "reasoning_effort", "response_format", "stream", "stream_options",
    "tool_choice", "tools", "verbosity",
)  # fmt: skip
WITHOUT_EFFECT = ("prediction",)
"""A guess at the answer, to be faster: it changes no answer."""
_KNOWN = frozenset({*SAME, *SAMPLING, *READ, *WITHOUT_EFFECT})
_REFUSED = {
    "audio": "models here do not speak",
    "function_call": "it is deprecated; use tool_choice",
    "functions": "it is deprecated; use tools",
    "moderation": "nothing here moderates",
    "web_search_options": "there is no web search here",
}
_STREAM_OPTIONS = frozenset({"include_obfuscation", "include_usage"})

NAMES = FieldNames(
    rules=(
        (r"input\b.*", "messages"),
        (r"(tools\[\d+\])\.(?!type\b)(.+)", r"\1.function.\2"),
        (r"tool_choice\.(mode|tools)", r"tool_choice.allowed_tools.\1"),
        (r"text\.format\.type", "response_format.type"),
        (r"text\.format\.(.+)", r"response_format.json_schema.\1"),
        (r"text\.format", "response_format"),
        (r"text\.verbosity", "verbosity"),
        (r"reasoning\.effort", "reasoning_effort"),
        (r"max_output_tokens", "max_completion_tokens"),
        (rf"keepwarm\.sampling\.((?:{'|'.join(SAMPLING)})\b.*)", r"\1"),
    )
)
"""This endpoint's names for the fields of a ``response.create``."""


def create_fields(body: object) -> tuple[Fields, Fields]:
    """Understand a body.

    Returns:
        The fields of a ``response.create``, and the body's own without nulls.

    Raises:
        ApiError: it cannot be served; named in this endpoint's words.
    """
    fields = known_fields(body, _KNOWN, _REFUSED)
    _refuse_unserved(fields)
    create = picked(fields, SAME)
    create |= _output_limit(fields) | _format(fields) | _log_probabilities(fields)
    create |= _tools(fields)
    if "reasoning_effort" in fields:
        create["reasoning"] = {"effort": fields["reasoning_effort"]}
    options = vendor_options(fields, picked(fields, SAMPLING))
    if options:
        create["keepwarm"] = options
    create["input"] = items_of(fields.get("messages"), whole=not names_session(create))
    return create, fields


def usage_wanted(fields: Fields) -> bool:
    """Whether a stream is to end with what it consumed."""
    path = "stream_options"
    options = an_object(fields.get(path, {}), path)
    refuse_others(options, _STREAM_OPTIONS, path)
    return a_flag(options.get("include_usage"), join(path, "include_usage"))


def _refuse_unserved(fields: Fields) -> None:
    """Fields that are served for one value only."""
    if a_count(fields.get("n", 1), "n", least=1) > 1:
        raise errors.unsupported_parameter("n", "one answer at a time; send the request again")
    if an_object(fields.get("logit_bias", {}), "logit_bias"):
        raise errors.unsupported_parameter("logit_bias", "tokens cannot be favoured one by one")
    for index, kind in enumerate(an_array(fields.get("modalities", ["text"]), "modalities")):
        one_of(kind, join("modalities", index), "modality", ("text",))


def _output_limit(fields: Fields) -> Fields:
    given = [
        a_count(fields[name], name, least=1)
        for name in ("max_completion_tokens", "max_tokens")
        if name in fields
    ]
    if len(set(given)) > 1:
        raise errors.invalid_value("max_tokens", "it is not equal to max_completion_tokens")
    return {"max_output_tokens": given[0]} if given else {}


def _log_probabilities(fields: Fields) -> Fields:
    if a_flag(fields.get("logprobs"), "logprobs"):
        return {"include": ["message.output_text.logprobs"]}
    if "top_logprobs" in fields:
        raise errors.invalid_value("top_logprobs", "it needs logprobs to be true")
    return {}


def _format(fields: Fields) -> Fields:
    text: Fields = picked(fields, ("verbosity",))
    if "response_format" in fields:
        text["format"] = _response_format(fields["response_format"], "response_format")
    return {"text": text} if text else {}


def _response_format(raw: object, path: str) -> Fields:
    written = an_object(raw, path)
    if a_string(written.get("type"), join(path, "type")) != "json_schema":
        return {"type": written["type"]}
    schema = an_object(written.get("json_schema"), join(path, "json_schema"))
    return picked(schema, ("name", "schema", "description", "strict")) | {"type": "json_schema"}


def _tools(fields: Fields) -> Fields:
    create: Fields = {}
    if "tools" in fields:
        create["tools"] = [_tool(tool, path) for path, tool in objects(fields["tools"], "tools")]
    if "tool_choice" in fields:
        create["tool_choice"] = _tool_choice(fields["tool_choice"], "tool_choice")
    return create


def _tool(tool: Fields, path: str) -> Fields:
    """Tools are not strict unless they say so: this is the endpoint's default."""
    one_of(tool.get("type"), join(path, "type"), "tool type", ("function",))
    function = an_object(tool.get("function"), join(path, "function"))
    told = picked(function, ("name", "description", "parameters", "strict"))
    return {"type": "function", "strict": False} | told


def _tool_choice(raw: Any, path: str) -> Any:
    if not isinstance(raw, dict):
        return raw
    kinds = ("function", "allowed_tools")
    kind = one_of(raw.get("type"), join(path, "type"), "tool choice", kinds)
    if kind == "function":
        return _function_named(raw, path)
    at = join(path, kind)
    allowed = an_object(raw.get(kind), at)
    if "tools" in allowed:
        named = objects(allowed["tools"], join(at, "tools"))
        allowed = allowed | {"tools": [_function_named(tool, place) for place, tool in named]}
    return {"type": kind} | picked(allowed, ("mode", "tools"))


def _function_named(raw: Fields, path: str) -> Fields:
    one_of(raw.get("type"), join(path, "type"), "tool type", ("function",))
    function = an_object(raw.get("function"), join(path, "function"))
    return {"type": "function", "name": a_name(function.get("name"), join(path, "function.name"))}
