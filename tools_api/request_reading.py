"""Reading ``response.create`` into a ``CreateRequest``, with the first fault told by its path.

Knows the frame and the limits, nothing of the server's state. What costs little to refuse comes
first. Unknown top-level fields are ignored and named in ``warnings``, unknown keys inside
``keepwarm`` are faults, null equals absent everywhere.
"""

import hashlib
from collections.abc import Container, Sequence
from typing import Any

import orjson

from tools_api import errors
from tools_api.call_order import in_call_order
from tools_api.exact_json import dumps
from tools_api.item_fields import MAX_ID
from tools_api.item_reading import ItemLimits, parse_item, parse_items, refuse_many_items
from tools_api.item_references import ItemReference
from tools_api.items import Item
from tools_api.json_fields import Fields, join, without_nulls
from tools_api.limits import Limits
from tools_api.request_warnings import request_warnings
from tools_api.requests import (
    COMPACT_ALONE,
    ITEMS_ALONE,
    CreateRequest,
    KeepwarmOptions,
    ReasoningConfig,
    RequestBudget,
    SamplingOptions,
    TextConfig,
    TextFormat,
)
from tools_api.tool_definitions import DEFINING, check_definitions
from tools_api.tools import (
    FunctionTool,
    ToolChoice,
    check_schema,
    hosted_types,
    parse_tool_choice,
    parse_tools,
    refuse_many_tools,
)
from tools_api.wire import refuse_unprintable, validate

_TRANSPORT_FIELDS = frozenset({"type", "stream", "stream_options", "stream_id"})
_TOLD_BESIDE = frozenset({"request_id", "traceparent", "tools"})
"""Keys of ``keepwarm`` that ask for nothing."""


def parse_create(
    raw: dict[str, Any],
    stream_id: str | None,
    limits: Limits,
    models: Container[str] | None = None,
) -> CreateRequest:
    """Read the fields of a ``response.create`` event. What costs little to refuse comes first:
    the model, the sizes of arrays, then everything but tools and items.

    Args:
        models: names that a request may use; None: any.

    Raises:
        ApiError: the first fault, by its path.
    """
    raw = without_nulls(raw)
    _refuse_unsupported(raw)
    model = raw.get("model")
    if models is not None and isinstance(model, str) and model not in models:
        raise errors.model_not_found(model)
    _refuse_oversized(raw, limits)
    fields = {key: value for key, value in raw.items() if key not in ("input", "tools")}
    fields["stream_id"] = stream_id
    cache_options = raw.get("prompt_cache_options")
    if isinstance(cache_options, dict) and cache_options.get("prewarm") is True:
        fields["generate"] = False
    continues = "previous_response_id" in raw or "conversation" in raw
    wants_input = fields.get("generate", True) is not False and not continues
    if wants_input and "input" not in raw:
        raise errors.missing_parameter("input")
    fields["tool_choice"] = ToolChoice()
    fields["text_format"], fields["verbosity"] = parse_text(raw.get("text"), limits)
    fields["metadata"] = _parse_metadata(raw.get("metadata"), limits)
    fields["keepwarm"] = _parse_keepwarm(raw.get("keepwarm"), fields["metadata"], limits)
    fields |= _parse_conversation(raw, fields["keepwarm"])
    for name in ("include", "context_management"):
        if isinstance(raw.get(name), list):
            fields[name] = tuple(map(_with_tuples, raw[name]))
    fields["hosted_tools"], fields["warnings"], fields["body_digest"] = (), (), b""
    fields["references"], fields["compacts"], fields["late_choice"] = (), "no", None
    request = validate(CreateRequest, fields, "")
    _refuse_unprintable_ids(request)
    _refuse_unstored(request)
    return request.model_copy(update=_costly_fields(raw, request, limits))


def _refuse_unstored(request: CreateRequest) -> None:
    """Refuse what only a response that is stored can do."""
    if request.store:
        return
    if request.keepwarm.on_disconnect == "continue":
        why = "a response that is not stored ends with its connection"
        raise errors.invalid_value("keepwarm.on_disconnect", why)
    if request.conversation is not None:
        raise errors.invalid_value("store", "what a conversation is told is kept in it")
    if request.background:
        why = "nobody could ask for a response that is not stored"
        raise errors.invalid_value("background", why)


def _parse_conversation(raw: dict[str, Any], options: KeepwarmOptions) -> dict[str, Any]:
    """The conversation's id, which is given as it is or in an object, and the options of a turn in
    its session."""
    path, id_ = "conversation", raw.get("conversation")
    if isinstance(id_, dict):
        path, id_ = "conversation.id", without_nulls(id_).get("id")
        if id_ is None:
            raise errors.missing_parameter(path)
    if id_ is None:
        return {}
    if not isinstance(id_, str):
        raise errors.invalid_type(path, "a string", id_)
    if "previous_response_id" in raw:
        raise errors.invalid_value("previous_response_id", "'conversation' names what it continues")
    if options.session not in (None, id_):
        raise errors.invalid_value("keepwarm.session", "'conversation' is in a session of its own")
    return {"conversation": id_, "keepwarm": options.model_copy(update={"session": id_})}


def _with_tuples(entry: Any) -> Any:
    """An entry of a list, whose own lists are tuples."""
    if not isinstance(entry, dict):
        return entry
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}


def _refuse_unprintable_ids(request: CreateRequest) -> None:
    refuse_unprintable(request.previous_response_id, "previous_response_id")
    refuse_unprintable(request.conversation, "conversation")
    compared = request.prompt_cache_options
    if compared is not None:
        path = "prompt_cache_options.comparison_response_id"
        refuse_unprintable(compared.comparison_response_id, path)


def _costly_fields(raw: dict[str, Any], request: CreateRequest, limits: Limits) -> dict[str, Any]:
    """Tools and items, and what is worked out of them. ``request``: the rest, checked."""
    tools = parse_tools(raw.get("tools"), "tools", limits)
    written, compacts = _without_trigger(raw.get("input", []), raw)
    items, references = parse_input(written, limits)
    repeated: tuple[str, ...] = ()
    whole = not references  # else it is put in order once what they stand for is there
    if whole and raw.get(ITEMS_ALONE) is not True:
        items, repeated = ordered_input(items, complete=request.generate)
    brought = check_definitions(written, limits)
    _check_updates(written, limits)
    choice, late = _tool_choice(raw, request, tools)
    return {
        "tools": tools,
        "tool_choice": choice,
        "late_choice": late,
        "hosted_tools": hosted_types(raw.get("tools")),
        "warnings": request_warnings(raw) + brought + repeated,
        "input": items,
        "compacts": compacts,
        "references": references,
        "body_digest": _body_digest(raw, request),
    }


def parse_input(
    raw: object, limits: ItemLimits
) -> tuple[tuple[Item, ...], tuple[ItemReference, ...]]:
    """Read ``input``: its items, and the references that stand among them.

    Raises:
        ApiError: with the path of the first fault, e.g. ``input[2].id``.
    """
    if not isinstance(raw, list):
        return parse_items(raw, "input", limits), ()
    refuse_many_items(raw, "input", limits)
    items: list[Item] = []
    references: list[ItemReference] = []
    for place, entry in enumerate(raw):
        path = join("input", place)
        if _is_reference(entry):
            id_ = Fields(entry, path).text("id", least=1, most=MAX_ID)
            refuse_unprintable(id_, join(path, "id"))
            references.append(ItemReference(place=place, id=id_))
        else:
            items.append(parse_item(entry, path, limits))
    return tuple(items), tuple(references)


def _is_reference(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    kind = entry.get("type")
    return kind == "item_reference" or (kind is None and without_nulls(entry).keys() == {"id"})


def _check_updates(written: object, limits: Limits) -> None:
    """Refuse a ``configuration_update`` of an ``input`` that is none, by its path."""
    for number, item in enumerate(written if isinstance(written, list) else ()):
        if not isinstance(item, dict) or item.get("type") != "configuration_update":
            continue
        try:
            parse_text(item.get("text"), limits)
            validate(ReasoningConfig, item.get("reasoning") or {}, "reasoning")
        except errors.ApiError as error:
            error.param = join(join("input", number), error.param or "type")
            raise


def _tool_choice(
    raw: dict[str, Any], request: CreateRequest, tools: tuple[FunctionTool, ...]
) -> tuple[ToolChoice, Any]:
    """The choice among the tools, and what of it has to wait until the history is known."""
    asked = raw.get("tool_choice")
    try:
        return parse_tool_choice(asked, tools), None
    except errors.ApiError as error:
        written = raw.get("input")
        kinds = (
            [item.get("type") for item in written if isinstance(item, dict)]
            if isinstance(written, list)
            else []
        )
        named = (request.previous_response_id, request.conversation, request.keepwarm.session)
        continues = any(name is not None for name in named)
        may_know = continues or "item_reference" in kinds or any(kind in DEFINING for kind in kinds)
        if error.code != "invalid_value" or not may_know:
            raise
        return ToolChoice(), asked


def _without_trigger(written: object, raw: dict[str, Any]) -> tuple[object, str]:
    """The input without the ``compaction_trigger`` at its end, and what the request compacts."""
    compacts = "alone" if raw.get(COMPACT_ALONE) is True else "no"
    if not isinstance(written, list):
        return written, compacts
    places = [
        n
        for n, item in enumerate(written)
        if isinstance(item, dict) and item.get("type") == "compaction_trigger"
    ]
    if not places:
        return written, compacts
    if places != [len(written) - 1]:
        path = join("input", places[0], "type")
        raise errors.invalid_value(path, "a compaction_trigger stands once, as the last item")
    return written[:-1], "trigger"


def ordered_input(
    items: Sequence[Item], *, complete: bool
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """A whole ``input`` in the order in which a model reads it, and warnings. ``complete`` and
    errors as for ``in_call_order``."""
    ordered = in_call_order(
        items, complete=complete, where=lambda index: join("input", index, "call_id")
    )
    return ordered.items, ordered.warnings()


def _body_digest(raw: dict[str, Any], request: CreateRequest) -> bytes:
    """A digest that is the same for two requests that ask the same: all but how they travel, the
    span that each of them has above it, what it tells of tools that ran, and the id."""
    if request.keepwarm.request_id is None:
        return b""
    body = {key: value for key, value in raw.items() if key not in _TRANSPORT_FIELDS}
    options = raw["keepwarm"].items()
    body["keepwarm"] = {k: v for k, v in options if k not in _TOLD_BESIDE}
    return hashlib.blake2b(dumps(body, sort_keys=True), digest_size=16).digest()


def _refuse_oversized(raw: dict[str, Any], limits: Limits) -> None:
    """Refuse by the lengths of arrays, before anything in them is looked at."""
    refuse_many_items(raw.get("input"), "input", limits)
    refuse_many_tools(raw.get("tools"), "tools", limits)
    for name in ("include", "context_management"):
        values = raw.get(name)
        if isinstance(values, list) and len(values) > limits.max_list_entries:
            raise errors.invalid_value(name, f"more than {limits.max_list_entries} entries")


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    if "prompt" in raw:
        raise errors.unsupported_parameter("prompt", "prompt templates do not exist here")


def parse_text(raw: object, limits: Limits) -> tuple[TextFormat, str | None]:
    """Read ``text``: its format and its verbosity. Raises ApiError."""
    if raw is None:
        return TextFormat(), None
    verbosity = validate(TextConfig, raw, "text").verbosity
    written = raw.get("format") if isinstance(raw, dict) else None
    if written is None:
        return TextFormat(), verbosity
    if isinstance(written, dict) and written.get("type") is None:
        raise errors.missing_parameter("text.format.type")
    format_ = validate(TextFormat, written, "text.format")
    if len(format_.description or "") > limits.max_format_description:
        raise errors.invalid_value(
            "text.format.description", f"longer than {limits.max_format_description} characters"
        )
    if format_.type == "json_schema":
        if format_.name is None:
            raise errors.missing_parameter("text.format.name")
        if format_.json_schema is None:
            raise errors.missing_parameter("text.format.schema")
        check_schema(format_.json_schema, "text.format.schema", limits)
    return format_, verbosity


def _parse_metadata(raw: object, limits: Limits) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise errors.invalid_type("metadata", "an object", raw)
    if len(raw) > limits.max_metadata_pairs:
        raise errors.invalid_value("metadata", f"more than {limits.max_metadata_pairs} pairs")
    for key, value in raw.items():
        if len(key) > limits.max_metadata_key:
            raise errors.invalid_value(
                "metadata",
                f"key {errors.quoted(key)} is longer than {limits.max_metadata_key} characters",
            )
        path = join("metadata", key)
        if not isinstance(value, str):
            raise errors.invalid_type(path, "a string", value)
        if len(value) > limits.max_metadata_value:
            raise errors.invalid_value(path, f"longer than {limits.max_metadata_value} characters")
    return dict(raw)


def _parse_keepwarm(raw: object, metadata: dict[str, str], limits: Limits) -> KeepwarmOptions:
    """The vendor object; ``metadata`` stands in for what clients cannot send otherwise."""
    if raw is not None and not isinstance(raw, dict):
        raise errors.invalid_type("keepwarm", "an object", raw)
    fields = dict(without_nulls(raw or {}))
    if "session" not in fields and "keepwarm.session" in metadata:
        fields["session"] = metadata["keepwarm.session"]
    if "budget" in fields:
        fields["budget"] = _parse_budgets(fields["budget"], "keepwarm.budget")
    elif "keepwarm.budget" in metadata:
        fields["budget"] = _parse_metadata_budget(metadata["keepwarm.budget"])
    if "sampling" in fields:
        fields["sampling"] = _parse_sampling(fields["sampling"], limits)
    if isinstance(fields.get("tools"), list):
        if len(fields["tools"]) > limits.max_list_entries:
            most = limits.max_list_entries
            raise errors.invalid_value("keepwarm.tools", f"more than {most} entries")
        fields["tools"] = tuple(fields["tools"])
    if "labels" in fields:
        check_labels(fields["labels"], "keepwarm.labels", limits)
    options = validate(KeepwarmOptions, fields, "keepwarm")
    for name in ("session", "request_id", "parent_session"):
        refuse_unprintable(getattr(options, name), f"keepwarm.{name}")
    return options


def check_labels(raw: object, path: str, limits: Limits) -> None:
    """Raise ApiError where it is no object of labels, or one is not to be kept."""
    if not isinstance(raw, dict):
        raise errors.invalid_type(path, "an object", raw)
    if len(raw) > limits.max_labels:
        raise errors.invalid_value(path, f"more than {limits.max_labels} labels")
    for name, value in raw.items():
        where = join(path, name)
        if not isinstance(value, str):
            raise errors.invalid_type(where, "a string", value)
        for text, most in ((name, limits.max_label_name), (value, limits.max_label_value)):
            if not 1 <= len(text) <= most or not text.isprintable():
                quoted = errors.quoted(text)
                raise errors.invalid_value(
                    where, f"{quoted} is not 1 to {most} printable characters"
                )


def _parse_budgets(raw: object, path: str) -> tuple[RequestBudget, ...]:
    if not isinstance(raw, list):
        return (validate(RequestBudget, raw, path),)
    budgets = tuple(
        validate(RequestBudget, entry, join(path, i)) for i, entry in enumerate(raw[:4])
    )
    scopes = [budget.scope for budget in budgets]
    if len(set(scopes)) < len(raw):
        raise errors.invalid_value(path, "more than one budget of a scope")
    return budgets


def _parse_metadata_budget(text: str) -> tuple[RequestBudget, ...]:
    path = "metadata.keepwarm.budget"
    try:
        raw = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise errors.invalid_value(path, f"not JSON: {error}") from None
    return _parse_budgets(raw, path)


def _parse_sampling(raw: object, limits: Limits) -> SamplingOptions:
    path = "keepwarm.sampling"
    if not isinstance(raw, dict):
        raise errors.invalid_type(path, "an object", raw)
    stop = raw.get("stop")
    if stop is None:
        return validate(SamplingOptions, raw, path)
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list):
        raise errors.invalid_type(join(path, "stop"), "a string or an array", stop)
    if len(stop) > limits.max_stop:
        raise errors.invalid_value(join(path, "stop"), f"more than {limits.max_stop} strings")
    for i, text in enumerate(stop):
        if isinstance(text, str) and not 1 <= len(text) <= limits.max_stop_chars:
            raise errors.invalid_value(
                join(path, "stop", i), f"not 1 to {limits.max_stop_chars} characters"
            )
    return validate(SamplingOptions, raw | {"stop": tuple(stop)}, path)
