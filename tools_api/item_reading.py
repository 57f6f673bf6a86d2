"""Reading transcript items out of JSON: what a client sends, and our own items sent back.

Text only: other content is refused by name. Whether a call has an output, and which history an
item continues, is the session's business.

Always true: a parsed item is complete, and ``parse_items`` of an item's ``to_wire()`` gives an
equal item.
"""

import base64
import zlib
from typing import Any, Protocol, TypedDict

from tools_api import errors, exact_json
from tools_api.built_in_items import CALL_TYPES, OUTPUT_TYPES, parse_built_in
from tools_api.item_fields import call_id_of, item_head
from tools_api.items import (
    SEALED,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Phase,
    Reasoning,
    Role,
    TextPart,
)
from tools_api.json_fields import Fields, join
from tools_api.noted_items import TOLD, note_of

_SUPPORTED = ", ".join(
    [
        *("message", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "reasoning", "compaction", "item_reference"),
        *(*CALL_TYPES, *OUTPUT_TYPES, "additional_tools", "configuration_update"),
    ]
)


class ItemLimits(Protocol):
    """The bounds on items among ``tools_api.limits.Limits``. A client, which reads its own server's
    answers without bounds, does not load those."""

    @property
    def max_input_items(self) -> int: ...

    @property
    def max_input_parts(self) -> int: ...

    @property
    def max_content_parts(self) -> int: ...


def parse_items(
    raw: object, path: str = "input", limits: ItemLimits | None = None
) -> tuple[Item, ...]:
    """Read ``input``: a string is one user message, otherwise an array of items.

    Args:
        limits: None for what is trusted: a client's own server, or a journal, whose items
            have passed the limits of their day.

    Raises:
        ApiError: with the path of the first fault, e.g. ``input[2].content[0].type``.
    """
    if isinstance(raw, str):
        part = TextPart(type="input_text", text=raw)
        return (Message(role="user", content=(part,)),)
    if not isinstance(raw, list):
        raise errors.invalid_type(path, "a string or an array", raw)
    if limits is not None:
        refuse_many_items(raw, path, limits)
    return tuple(parse_item(item, join(path, i), limits) for i, item in enumerate(raw))


def refuse_many_items(raw: object, path: str, limits: ItemLimits) -> None:
    """Refuse an ``input`` by its size, without a look at what stands in it.

    Raises:
        ApiError: too many items, or too many parts in all of them.
    """
    if not isinstance(raw, list):
        return
    if len(raw) > limits.max_input_items:
        raise errors.invalid_value(path, f"more than {limits.max_input_items} items")
    if _count_parts(raw) > limits.max_input_parts:
        raise errors.invalid_value(path, f"more than {limits.max_input_parts} content parts")


def _count_parts(raw: list[Any]) -> int:
    return sum(
        len(parts)
        for item in raw
        if isinstance(item, dict)
        for parts in (item.get("content"), item.get("output"), item.get("summary"))
        if isinstance(parts, list)
    )


def parse_item(raw: object, path: str, limits: ItemLimits | None = None) -> Item:
    """Read one item; ``limits`` as ``parse_items``. Raises ApiError."""
    if not isinstance(raw, dict):
        raise errors.invalid_type(path, "an object", raw)
    kind = raw.get("type")
    if kind is None and "role" in raw:
        kind = "message"
    fields = Fields(raw, path)
    if isinstance(kind, str) and kind in TOLD:
        told = TextPart(type="output_text", text=note_of(raw, path))
        return Message(role="assistant", content=(told,), id=fields.text("id", absent=True))
    if (built_in := parse_built_in(raw, path)) is not None:
        return built_in
    match kind:
        case "message":
            return Message(
                content=_parse_content(raw, join(path, "content"), limits),
                role=fields.choice("role", Role),
                phase=fields.choice("phase", Phase, absent=True),
                **item_head(fields),
            )
        case "function_call":
            return FunctionCall(
                **_named_call(fields), arguments=fields.text("arguments"), **item_head(fields)
            )
        case "custom_tool_call":
            return CustomToolCall(
                **_named_call(fields), input=fields.text("input"), **item_head(fields)
            )
        case "function_call_output" | "custom_tool_call_output":
            made = FunctionCallOutput if kind == "function_call_output" else CustomToolCallOutput
            output = _parse_output(raw, join(path, "output"), limits)
            return made(call_id=call_id_of(fields), output=output, **item_head(fields))
        case "reasoning":
            return Reasoning(
                content=_parse_texts(
                    raw.get("content"), join(path, "content"), "reasoning_text", limits
                ),
                summary=_parse_texts(
                    raw.get("summary"), join(path, "summary"), "summary_text", limits
                ),
                encrypted_content=fields.text("encrypted_content", absent=True),
                **item_head(fields),
            )
        case "compaction":
            return _compaction(fields)
    raise _unsupported_type(kind, join(path, "type"), "item", _SUPPORTED)


def unpacked(sealed: str) -> Any:
    """The content of a compaction's ``encrypted_content``, unchecked."""
    packed = sealed.split(".")[1]
    return exact_json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "==")))


def summary_in(sealed: str) -> str | None:
    """The summary in the ``encrypted_content`` of a compaction that was made here, if it has
    one."""
    parts = unpacked(sealed)
    if parts["summary"] is None:
        return None
    (summary,) = parse_items([parts["items"][parts["summary"]]])
    return summary.text if isinstance(summary, Message) else None


def _compaction(fields: Fields) -> Compaction:
    sealed = fields.text("encrypted_content", least=1)
    if SEALED.fullmatch(sealed) is None:
        raise errors.invalid_value(
            fields.path("encrypted_content"),
            "no server of this kind made it; send the history that it stands for",
        )
    return Compaction(encrypted_content=sealed, **item_head(fields))


class _Named(TypedDict):
    call_id: str
    name: str
    namespace: str | None


def _named_call(fields: Fields) -> _Named:
    return {
        "call_id": call_id_of(fields),
        "name": fields.text("name", least=1),
        "namespace": fields.text("namespace", least=1, absent=True),
    }


def _parse_content(
    raw: dict[str, Any], path: str, limits: ItemLimits | None
) -> tuple[TextPart, ...]:
    content = raw.get("content")
    if isinstance(content, str):
        by_model = raw.get("role") == "assistant"
        return (TextPart(type="output_text" if by_model else "input_text", text=content),)
    parts = []
    for index, part in enumerate(_parts(content, path, limits)):
        kind = part.get("type")
        if kind not in ("input_text", "output_text", "refusal"):
            raise _unsupported_type(
                kind, join(path, index, "type"), "content", "input_text, output_text, refusal"
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise _no_text(text, join(path, index, "refusal" if kind == "refusal" else "text"))
        parts.append(TextPart(type=kind, text=text))
    return tuple(parts)


def _parse_output(raw: dict[str, Any], path: str, limits: ItemLimits | None) -> str:
    output = raw.get("output")
    if isinstance(output, str):
        return output
    return "\n".join(_parse_texts(output, path, "input_text", limits, required=True))


def _parse_texts(
    raw: object, path: str, tag: str, limits: ItemLimits | None, required: bool = False
) -> tuple[str, ...]:
    if raw is None and not required:
        return ()
    texts = []
    for index, part in enumerate(_parts(raw, path, limits)):
        if part.get("type") != tag:
            raise _unsupported_type(part.get("type"), join(path, index, "type"), "content", tag)
        text = part.get("text")
        if not isinstance(text, str):
            raise _no_text(text, join(path, index, "text"))
        texts.append(text)
    return tuple(texts)


def _parts(raw: object, path: str, limits: ItemLimits | None) -> list[dict[str, Any]]:
    if raw is None:
        raise errors.missing_parameter(path)
    if not isinstance(raw, list):
        raise errors.invalid_type(path, "a string or an array", raw)
    if limits is not None and len(raw) > limits.max_content_parts:
        raise errors.invalid_value(path, f"more than {limits.max_content_parts} parts")
    for i, part in enumerate(raw):
        if not isinstance(part, dict):
            raise errors.invalid_type(join(path, i), "an object", part)
    return raw


def _no_text(found: object, path: str) -> errors.ApiError:
    if found is None:
        return errors.missing_parameter(path)
    return errors.invalid_type(path, "a string", found)


def _unsupported_type(kind: object, path: str, noun: str, known: str) -> errors.ApiError:
    if kind is None:
        return errors.missing_parameter(path)
    if not isinstance(kind, str):
        return errors.invalid_type(path, "a string", kind)
    return errors.unsupported_parameter(
        path, f"{noun} type {errors.quoted(kind)} is not supported; supported are {known}"
    )
