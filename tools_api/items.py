"""Transcript items: messages, calls of functions and custom tools, their outputs, reasoning.

The same types serve what a client sends (docs/protocol.md, ``input``) and what we answer, those of
built-in tools (``tools_api.built_in_items``) among them; ``parse_items`` reads the former (also our
own output items sent back verbatim), ``to_wire`` writes the latter. Text only: other content is
refused by name. Whether a call has an output, and which history an item continues, is the
session's business.

Always true: a parsed item is complete and frozen, and ``parse_items`` of an item's
``to_wire()`` gives an equal item.
"""

import base64
import json
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypedDict

from tools_api import errors, exact_json
from tools_api.built_in_items import (
    CALL_TYPES,
    OUTPUT_TYPES,
    AdditionalTools,
    BuiltInCall,
    BuiltInOutput,
    ConfigurationUpdate,
    parse_built_in,
)
from tools_api.item_fields import Status, call_id_of, head, item_head
from tools_api.json_fields import Fields, join
from tools_api.noted_items import note_of


class ItemLimits(Protocol):
    """The bounds on items among ``tools_api.limits.Limits``. A client, which reads its own server's
    answers without bounds, does not load those."""

    @property
    def max_input_items(self) -> int: ...

    @property
    def max_input_parts(self) -> int: ...

    @property
    def max_content_parts(self) -> int: ...


Role = Literal["user", "assistant", "system", "developer"]
Phase = Literal["commentary", "final_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """One piece of a message. Made here alone, of checked parts, and by the thousand."""

    type: Literal["input_text", "output_text", "refusal"]
    text: str
    logprobs: tuple[dict[str, Any], ...] = ()
    """Log-probabilities of our own output, as ``tools_api.responses.logprob`` makes them; ignored
    in input."""

    def to_wire(self) -> dict[str, Any]:
        """As the published types have it: a refusal's text has a key of its own.

        Output carries ``annotations`` and ``logprobs``, empty ones too: typed clients insist.
        """
        if self.type == "refusal":
            return {"type": "refusal", "refusal": self.text}
        if self.type == "input_text":
            return {"type": "input_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a user, the model or the application, in parts of text."""

    type: Literal["message"] = "message"
    role: Role
    content: tuple[TextPart, ...]
    id: str | None = None
    status: Status | None = None
    phase: Phase | None = None

    @property
    def text(self) -> str:
        """The whole text; parts stand on lines of their own."""
        return "\n".join(part.text for part in self.content)

    def to_wire(self) -> dict[str, Any]:
        """``id``, ``status`` and ``phase`` stand there only if the item has them."""
        wire = head(self.type, self.id, self.status)
        wire["role"] = self.role
        wire["content"] = [part.to_wire() for part in self.content]
        return wire if self.phase is None else wire | {"phase": self.phase}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """A call by the model; outputs answer to ``call_id``, while ``id`` is the item's own."""

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    """JSON text as the model wrote it; cut short when ``status`` is incomplete."""
    namespace: str | None = None
    """The namespace in which the function stood among the tools."""
    id: str | None = None
    status: Status | None = None

    @property
    def full_name(self) -> str:
        """As the model calls it."""
        return _full_name(self.namespace, self.name)

    def to_wire(self) -> dict[str, Any]:
        """``arguments`` stays the text it is; what may be absent is only there if it was."""
        wire = head(self.type, self.id, self.status)
        wire |= {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return wire if self.namespace is None else wire | {"namespace": self.namespace}


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomToolCall:
    """A call of a custom tool by the model: its input is a text, not JSON."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: str
    name: str
    input: str
    """The text; cut short when ``status`` is incomplete."""
    namespace: str | None = None
    id: str | None = None
    status: Status | None = None

    @property
    def full_name(self) -> str:
        """As the model calls it."""
        return _full_name(self.namespace, self.name)

    def as_function_call(self) -> FunctionCall:
        """As a model that knows functions alone has it in its history."""
        arguments = json.dumps({"input": self.input}, ensure_ascii=False)
        return FunctionCall(
            call_id=self.call_id, name=self.full_name, arguments=arguments, status=self.status
        )

    def to_wire(self) -> dict[str, Any]:
        """``id``, ``status`` and ``namespace`` stand there only if the item has them."""
        wire = head(self.type, self.id, self.status)
        wire |= {"call_id": self.call_id, "name": self.name, "input": self.input}
        return wire if self.namespace is None else wire | {"namespace": self.namespace}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCallOutput:
    """A tool's output for the call of the same ``call_id``; a failure is text as well."""

    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str
    """Text the tool returned; parts of an array stand on lines of their own."""
    id: str | None = None
    status: Status | None = None
    name: str | None = field(default=None, compare=False)
    """Name of the tool, where the call is known; formats that write it ask for it."""

    def to_wire(self) -> dict[str, Any]:
        """``output`` is one text, also where parts of an array came in."""
        return head(self.type, self.id, self.status) | {
            "call_id": self.call_id,
            "output": self.output,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomToolCallOutput:
    """A custom tool's output for the call of the same ``call_id``."""

    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    call_id: str
    output: str
    """As of a function's output."""
    id: str | None = None
    status: Status | None = None
    name: str | None = field(default=None, compare=False)
    """Name of the tool, where the call is known; formats that write it ask for it."""

    def as_function_output(self) -> FunctionCallOutput:
        """As a model that knows functions alone has it in its history."""
        return FunctionCallOutput(call_id=self.call_id, output=self.output, name=self.name)

    def to_wire(self) -> dict[str, Any]:
        """``output`` is one text, also where parts of an array came in."""
        return head(self.type, self.id, self.status) | {
            "call_id": self.call_id,
            "output": self.output,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The model's thoughts; read again only by models whose format has think blocks."""

    type: Literal["reasoning"] = "reasoning"
    content: tuple[str, ...] = ()
    """Texts of the ``reasoning_text`` parts."""
    summary: tuple[str, ...] = ()
    encrypted_content: str | None = None
    """Another server's reasoning: kept and sent back as it came, read by nobody here."""
    id: str | None = None
    status: Status | None = None

    @property
    def sealed(self) -> bool:
        """Nothing in it can be read here."""
        return self.encrypted_content is not None and not self.content

    @property
    def text(self) -> str:
        """The texts of ``content``, each on lines of its own; no summary."""
        return "\n".join(self.content)

    def to_wire(self) -> dict[str, Any]:
        """Each text is a part again, ``summary_text`` or ``reasoning_text``."""
        wire = head(self.type, self.id, self.status) | {
            "summary": [{"type": "summary_text", "text": text} for text in self.summary],
            "content": [{"type": "reasoning_text", "text": text} for text in self.content],
        }
        sealed = self.encrypted_content
        return wire if sealed is None else wire | {"encrypted_content": sealed}


CompactionKind = Literal["whole", "part", "inner"]
_SEALED = re.compile(r"kw1([wpi])\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_KINDS: dict[str, CompactionKind] = {"w": "whole", "p": "part", "i": "inner"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StandsFor:
    """The items that a compaction item makes a model read."""

    items: tuple["Item", ...]
    """No compaction among them."""
    summary_at: int | None = None
    """Which of them is the summary of what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The rest of a history that was recast: opaque to clients, signed by the server. What it
    stands for is read out of it by ``sessions.durable.compaction``."""

    type: Literal["compaction"] = "compaction"
    encrypted_content: str
    id: str | None = None
    status: Status | None = None
    stands_for: StandsFor | None = field(default=None, compare=False, repr=False)
    """None: nobody has opened it yet."""

    @property
    def kind(self) -> CompactionKind:
        """``whole``: it stands for all that was before it. ``part``: for what is missing behind
        what stands before it. ``inner``: clients never see it."""
        return _KINDS[self.encrypted_content[3]]

    def to_wire(self) -> dict[str, Any]:
        """``status`` is of no concern to clients."""
        return head(self.type, self.id, None) | {"encrypted_content": self.encrypted_content}


Call = FunctionCall | CustomToolCall | BuiltInCall
CallOutput = FunctionCallOutput | CustomToolCallOutput | BuiltInOutput
Item = Message | Call | CallOutput | Reasoning | Compaction | AdditionalTools | ConfigurationUpdate
_SUPPORTED = ", ".join(
    [
        *("message", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "reasoning", "compaction", "item_reference"),
        *(*CALL_TYPES, *OUTPUT_TYPES, "additional_tools", "configuration_update"),
    ]
)


def with_output(item: CallOutput, text: str) -> CallOutput:
    """An output with another text; a built-in tool's keeps none of the fields that it came in."""
    if isinstance(item, BuiltInOutput):
        return FunctionCallOutput(call_id=item.call_id, output=text, id=item.id, name=item.name)
    return replace(item, output=text)


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
    if (note := note_of(raw, path)) is not None:
        told, id_ = TextPart(type="output_text", text=note), fields.text("id", absent=True)
        return Message(role="assistant", content=(told,), id=id_)
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
    if _SEALED.fullmatch(sealed) is None:
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


def _full_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"
