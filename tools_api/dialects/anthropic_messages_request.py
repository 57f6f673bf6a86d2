"""The body of ``POST /v1/messages`` as the fields of a ``response.create``.

Fields that mean the same in both are passed on unread; ``sessions`` checks them as it checks
anybody's, and ``NAMES`` says its refusals in this endpoint's words. The messages are read by
``tools_api.dialects.anthropic_messages_history``.

Always true: the same body gives the same fields; no field of it is dropped without being named
in ``WITHOUT_EFFECT``.
"""

from typing import Any

from tools_api import errors
from tools_api.dialects.anthropic_messages_history import instructions_of, items_of, refuse_prefill
from tools_api.dialects.anthropic_messages_tools import Toolbox
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

SAME = ("model", "temperature", "top_p", "truncation")
"""Fields of both; ``truncation`` is ours."""
READ = (
    "compaction", "context_management", "keepwarm", "max_tokens", "messages", "metadata",
    "output_config", "service_tier", "speed", "stop_sequences", "stream", "system", "thinking",
    "tool_choice", "tools", "top_k",
)  # fmt: skip
WITHOUT_EFFECT = ("cache_control", "diagnostics")
"""Everything is cached; why a prompt was not is told in ``keepwarm``."""
THREAD = "thread"
"""A conversation that the server is to hold, so that requests bring what is new alone."""
_KNOWN = frozenset({*SAME, *READ, *WITHOUT_EFFECT})
_REFUSED = {
    "container": "nothing runs beside the model here",
    "fallbacks": "one model is served here",
    "inference_geo": "the server is where it is",
    "mcp_servers": "this server calls no other; list their tools in tools",
    THREAD: "send the messages themselves",
}
_CLEAR_THINKING = "clear_thinking_20251015"
"""A context edit for which nothing is to be done: thinking of earlier turns is shown to a model
only where its template wants it."""
CLEAR_USES = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_EFFORT = "medium"
"""The effort of a model that is to think, where the body does not say how hard."""

NAMES = FieldNames(
    rules=(
        (r"input\b.*", "messages"),
        (r"instructions", "system"),
        (r"(tools\[\d+\])\.parameters(.*)", r"\1.input_schema\2"),
        (r"text\.format\.schema(.*)", r"output_config.format.schema\1"),
        (r"text\.format\b.*", "output_config.format"),
        (r"max_output_tokens", "max_tokens"),
        (r"user", "metadata.user_id"),
        (r"context_management\[\d+\].*", "context_management.edits"),
        (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        (r"keepwarm\.compaction\.instructions", "compaction.instructions"),
        (r"keepwarm\.sampling\.stop\b(.*)", r"stop_sequences\1"),
        (r"keepwarm\.sampling\.top_k", "top_k"),
    )
)
"""This endpoint's names for the fields of a ``response.create``."""


def create_fields(body: object) -> tuple[Fields, Fields]:
    """Understand a body that is to be answered.

    Returns:
        The fields of a ``response.create``, and the body's own without nulls.

    Raises:
        ApiError: it cannot be served; named in this endpoint's words.
    """
    fields = known_fields(body, _KNOWN, _REFUSED)
    limit = a_count(fields.get("max_tokens"), "max_tokens", least=0)
    create = _create(fields)
    if "compaction" in fields:
        create = _compacting(create, fields)
    else:
        refuse_prefill(fields["messages"])
    if limit == 0:
        return create | {"generate": False}, fields
    return create | {"max_output_tokens": limit}, fields


def counted_fields(body: object) -> Fields:
    """The fields of a ``response.create`` whose input is what a body would make a model read.

    Raises:
        ApiError: as for ``create_fields``, but nothing is needed to limit an answer.
    """
    return _create(known_fields(body, _KNOWN, _REFUSED))


def _create(fields: Fields) -> Fields:
    create = picked(fields, SAME)
    create |= _who(fields) | _pace(fields) | _tool_choice(fields)
    create |= _thought(fields) | _system(fields) | _edits(fields)
    sampling = picked(fields, ("top_k",))
    if "stop_sequences" in fields:
        sampling["stop"] = an_array(fields["stop_sequences"], "stop_sequences")
    options = vendor_options(fields, sampling)
    if options:
        create["keepwarm"] = options
    whole = not names_session(create)
    tools = Toolbox(fields.get("tools"), whole=whole)
    create["input"] = items_of(fields.get("messages"), whole=whole, tools=tools)
    if entries := tools.entries():
        create["tools"] = entries
    return create


def _system(fields: Fields) -> Fields:
    instructions = instructions_of(fields.get("system", ""))
    return {} if instructions is None else {"instructions": instructions}


def _who(fields: Fields) -> Fields:
    metadata = an_object(fields.get("metadata", {}), "metadata")
    refuse_others(metadata, frozenset({"user_id"}), "metadata")
    return {"user": metadata["user_id"]} if metadata else {}


def _pace(fields: Fields) -> Fields:
    """How fast the turn is wanted, in two fields of theirs and one of ours."""
    one_of(fields.get("speed", "standard"), "speed", "speed", ("standard",))
    if "service_tier" not in fields:
        return {}
    tiers = {"auto": "auto", "standard_only": "default"}
    tier = one_of(fields["service_tier"], "service_tier", "tier", tuple(tiers))
    return {"service_tier": tiers[tier]}


def _tool_choice(fields: Fields) -> Fields:
    if "tool_choice" not in fields:
        return {}
    path = "tool_choice"
    raw = an_object(fields[path], path)
    kinds = {"auto": "auto", "any": "required", "none": "none", "tool": "function"}
    kind = kinds[one_of(raw.get("type"), join(path, "type"), "tool choice", tuple(kinds))]
    choice: Any = kind
    if kind == "function":
        choice = {"type": kind, "name": a_name(raw.get("name"), join(path, "name"))}
    name = "disable_parallel_tool_use"
    alone = a_flag(raw.get(name), join(path, name))
    return {"tool_choice": choice, "parallel_tool_calls": not alone}


def _thought(fields: Fields) -> Fields:
    """``thinking`` says whether, ``output_config`` how hard, and what the text must look like.

    A thinking ``budget_tokens`` is a wish: what bounds a turn is ``max_tokens``.
    """
    path = "output_config"
    config = an_object(fields.get(path, {}), path)
    refuse_others(config, frozenset({"effort", "format"}), path)
    effort = one_of(config.get("effort", _EFFORT), join(path, "effort"), "effort", _EFFORTS)
    create: Fields = {"text": {"format": _format(config["format"])}} if "format" in config else {}
    if _thinks(fields):
        create["reasoning"] = {"effort": effort}
    return create


def _format(raw: object) -> Fields:
    path = "output_config.format"
    written = an_object(raw, path)
    one_of(written.get("type"), join(path, "type"), "format", ("json_schema",))
    schema = an_object(written.get("schema"), join(path, "schema"))
    return {"type": "json_schema", "name": "output", "schema": schema}


def _thinks(fields: Fields) -> bool:
    """Whether the body asks for thinking."""
    if "thinking" not in fields:
        return False
    kinds = ("enabled", "disabled", "adaptive")
    thinking = an_object(fields["thinking"], "thinking")
    return one_of(thinking.get("type"), "thinking.type", "thinking", kinds) != "disabled"


def thinking_shown(fields: Fields) -> bool:
    """Whether the answer is to hold the text of the thinking."""
    thinking = an_object(fields.get("thinking", {}), "thinking")
    displays = ("summarized", "omitted")
    display = one_of(thinking.get("display", "summarized"), "thinking.display", "display", displays)
    return display != "omitted"


def edits_asked(fields: Fields) -> bool:
    """Whether the answer is to say which edits were made."""
    return bool(fields.get("context_management"))


def _edits(fields: Fields) -> Fields:
    path = "context_management"
    management = an_object(fields.get(path, {}), path)
    refuse_others(management, frozenset({"edits"}), path)
    made = []
    for at, edit in objects(management.get("edits", []), join(path, "edits")):
        kinds = (_CLEAR_THINKING, CLEAR_USES, COMPACT)
        match one_of(edit.get("type"), join(at, "type"), "edit", kinds):
            case "clear_tool_uses_20250919":
                made.append(_clearing(edit, at))
            case "compact_20260112":
                made.append(_compaction(edit, at))
    return {path: made} if made else {}


def _clearing(edit: Fields, path: str) -> Fields:
    known = {"type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"}
    refuse_others(edit, frozenset(known), path)
    made: Fields = {"type": "clear_tool_uses"}
    kind, value = _amount(edit, "trigger", path, ("input_tokens", "tool_uses"))
    if value is not None:
        made["compact_threshold" if kind == "input_tokens" else "trigger_uses"] = value
    _, kept = _amount(edit, "keep", path, ("tool_uses",), least=0)
    _, least = _amount(edit, "clear_at_least", path, ("input_tokens",), least=0)
    made |= {} if kept is None else {"keep_uses": kept}
    made |= {} if least is None else {"clear_at_least": least}
    at = join(path, "exclude_tools")
    names = an_array(edit.get("exclude_tools", []), at)
    made["exclude_tools"] = [a_name(name, join(at, n)) for n, name in enumerate(names)]
    made["clear_tool_inputs"] = _inputs_to_clear(edit, join(path, "clear_tool_inputs"))
    return made


def _inputs_to_clear(edit: Fields, path: str) -> bool | list[str]:
    """Of all tools, of none, or of these."""
    raw = edit.get("clear_tool_inputs")
    if isinstance(raw, list):
        return [a_name(name, join(path, n)) for n, name in enumerate(raw)]
    return a_flag(raw, path)


def _compacting(create: Fields, fields: Fields) -> Fields:
    """The request as one that only compacts."""
    path = "compaction"
    asked = an_object(fields[path], path)
    refuse_others(asked, frozenset({"type", "instructions"}), path)
    one_of(asked.get("type"), join(path, "type"), "compaction", ("summarize",))
    if "context_management" in fields:
        raise errors.unsupported_parameter(path, "it cannot be combined with context_management")
    made = create | {"input": [*create["input"], {"type": "compaction_trigger"}]}
    at = join(path, "instructions")
    own = "" if asked.get("instructions") is None else a_string(asked["instructions"], at)
    if own.strip():
        options = an_object(create.get("keepwarm", {}), "keepwarm")
        before = an_object(options.get("compaction", {}), "keepwarm.compaction")
        made["keepwarm"] = options | {"compaction": before | {"instructions": own}}
    return made


def _compaction(edit: Fields, path: str) -> Fields:
    known = {"type", "trigger", "instructions", "pause_after_compaction"}
    refuse_others(edit, frozenset(known), path)
    made: Fields = {"type": "compaction"}
    _, value = _amount(edit, "trigger", path, ("input_tokens",))
    made |= {} if value is None else {"compact_threshold": value}
    if edit.get("instructions") is not None:
        made["instructions"] = a_string(edit["instructions"], join(path, "instructions"))
    flag = "pause_after_compaction"
    made["pause"] = a_flag(edit.get(flag), join(path, flag))
    return made


def _amount(
    edit: Fields, name: str, path: str, kinds: tuple[str, ...], *, least: int = 1
) -> tuple[str, int | None]:
    """The kind of thing that is counted, and how many there are; None: it is not said."""
    raw = edit.get(name)
    if raw is None:
        return kinds[0], None
    at = join(path, name)
    amount = an_object(raw, at)
    kind = one_of(amount.get("type"), join(at, "type"), "count", kinds)
    return kind, a_count(amount.get("value"), join(at, "value"), least=least)
