"""Transcript items: messages, calls of functions and custom tools, their outputs, reasoning.

The same types serve what a client sends (docs/protocol.md, ``input``) and what we answer, those of
built-in tools (``tools_api.built_in_items``) among them; ``tools_api.item_reading`` reads the
former (also our own output items sent back verbatim), ``to_wire`` writes the latter.

Always true: an item is frozen.
"""

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tools_api.built_in_items import (
    AdditionalTools,
    BuiltInCall,
    BuiltInOutput,
    ConfigurationUpdate,
)
from tools_api.item_fields import Status, head

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
        """The tool's name as the model calls it, its namespace before it."""
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
        """The tool's name as the model calls it, its namespace before it."""
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
SEALED = re.compile(r"kw1([wpi])\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
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


def with_output(item: CallOutput, text: str) -> CallOutput:
    """An output with another text; a built-in tool's keeps none of the fields that it came in."""
    if isinstance(item, BuiltInOutput):
        return FunctionCallOutput(call_id=item.call_id, output=text, id=item.id, name=item.name)
    return replace(item, output=text)


def _full_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"
