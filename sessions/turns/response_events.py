"""One response's events in the order the protocol demands (section 3.1).

Parsed output goes in piece by piece; out come the events that open, fill and close output
items, numbered from 0. Knows nothing of tokens and engines.

Always true: at most one item is open; the deltas of an item concatenate to its done text,
which is the item's, which is the one in the terminal ``response.output``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sessions.turns.built_in_events import BuiltInWriter
from tools_api import events
from tools_api.built_in_items import CALL_PREFIXES
from tools_api.call_parser import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)
from tools_api.custom_input import InputText
from tools_api.events import Event
from tools_api.item_fields import Status
from tools_api.items import (
    Compaction,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    TextPart,
)
from tools_api.responses import ResponseObject, ResponseStatus
from tools_api.tools import FunctionTool


@dataclass(frozen=True, slots=True)
class Piece:
    """A parsed event and the log-probabilities of the tokens behind its text."""

    parsed: ParsedEvent
    logprobs: tuple[Event, ...] = ()


_NO_TOOL = FunctionTool(name="none")
Kind = Literal["message", "reasoning", "call", "custom", "built_in"]
_ID_PREFIX = {"message": "msg", "reasoning": "rs", "call": "fc", "custom": "ctc"}
"""Prefixes of ids, of items that are not built-in tools' calls."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """The item that is being written."""

    kind: Kind
    id: str
    index: int
    tool: FunctionTool
    """The tool that is called; nothing of it is read of other kinds."""
    call_id: str = ""
    reader: InputText | None = None
    """Reads a custom tool's input that is written as JSON."""
    writer: BuiltInWriter | None = None
    """Writes a built-in tool's call."""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def function_call(self, status: Status) -> FunctionCall:
        tool = self.tool
        return FunctionCall(
            call_id=self.call_id,
            name=tool.own_name,
            arguments=self.text,
            namespace=None if tool.namespace is None else tool.namespace.name,
            id=self.id,
            status=status,
        )

    def custom_call(self, status: Status) -> CustomToolCall:
        tool = self.tool
        return CustomToolCall(
            call_id=self.call_id,
            name=tool.own_name,
            input=self.text,
            namespace=None if tool.namespace is None else tool.namespace.name,
            id=self.id,
            status=status,
        )


class ResponseEvents:
    """Writes the events of one response; not reusable."""

    def __init__(
        self, response: ResponseObject, *, stream_id: str | None, new_id: Callable[[str], str]
    ) -> None:
        self._response = response
        self._stream_id = stream_id
        self._new_id = new_id
        self._number = 0
        self._open: _Open | None = None
        self.in_progress_told = False
        self._compacting = ""
        """The id of the item that was announced by ``compacting``."""
        self.items: list[Item] = []
        """Finished output items, in order."""

    @property
    def begun(self) -> bool:
        """Whether an event of the output was written."""
        return self._number > 0

    @property
    def _begun_status(self) -> ResponseStatus:
        """The status before it is in progress; one in the background waits then."""
        return "queued" if self._response.request.background else "in_progress"

    @property
    def is_open(self) -> bool:
        """Whether an item is being written."""
        return self._open is not None

    def compacting(self, item: Compaction) -> list[Event]:
        """An item is being made that stands for what was said before it."""
        index, zero = len(self.items), item.to_wire() | {"encrypted_content": ""}
        added = events.output_item_added(self.take_number(), index, zero, self._stream_id)
        self._compacting = item.id or ""
        number = self.take_number()
        told = events.compacting(number, self._compacting, index, self._stream_id)
        return [added, told]

    def leading(self, items: Iterable[Item]) -> list[Event]:
        """Events of finished items, before the model says anything."""
        out = list[Event]()
        for item in items:
            index, wire = len(self.items), item.to_wire()
            if item.id is None or item.id != self._compacting:
                number = self.take_number()
                out.append(events.output_item_added(number, index, wire, self._stream_id))
            self.items.append(item)
            number = self.take_number()
            out.append(events.output_item_done(number, index, wire, self._stream_id))
        return out

    def take_number(self) -> int:
        """The next sequence number; also for events that are not written here."""
        number = self._number
        self._number += 1
        return number

    def created(self, keepwarm: Event | None) -> Event:
        wire = self._response.wire(status=self._begun_status, keepwarm=keepwarm)
        return events.created(self.take_number(), wire, self._stream_id)

    def queued(self, keepwarm: Event | None) -> Event:
        wire = self._response.wire(status="queued", keepwarm=keepwarm)
        return events.queued(self.take_number(), wire, self._stream_id)

    def in_progress(self, keepwarm: Event | None) -> Event:
        self.in_progress_told = True
        wire = self._response.wire(status="in_progress", keepwarm=keepwarm)
        return events.in_progress(self.take_number(), wire, self._stream_id)

    def snapshot(self, keepwarm: Event | None) -> Event:
        """The response as it stands: the items that are finished."""
        output = [item.to_wire() for item in self.items]
        status = "in_progress" if self.in_progress_told else self._begun_status
        return self._response.wire(status=status, output=output, keepwarm=keepwarm)

    def terminal(
        self, status: Literal["completed", "incomplete", "failed"], **fields: Any
    ) -> Event:
        """The last event. ``fields`` as ``ResponseObject.wire`` takes them, output excepted."""
        build = {
            "completed": events.completed,
            "incomplete": events.incomplete,
            "failed": events.failed,
        }[status]
        output = [item.to_wire() for item in self.items]
        wire = self._response.wire(status=status, output=output, **fields)
        return build(self.take_number(), wire, self._stream_id)

    def write(self, pieces: Sequence[Piece], *, cut: bool = False) -> list[Event]:
        """Events for what one engine step brought; neighbouring deltas become one.

        Args:
            cut: the output broke off here: what ends, ends incomplete.
        """
        ended: Status = "incomplete" if cut else "completed"
        out: list[Event] = []
        for piece in _coalesced(pieces):
            match piece.parsed:
                case ParsedText(text):
                    self._ensure("message", out)
                    self._text_delta(text, piece.logprobs, out)
                case ParsedReasoning(text):
                    self._ensure("reasoning", out)
                    self._reasoning_delta(text, out)
                case ParsedCallStart(name, number):
                    self.close("completed", out)
                    tool = self._tool(name)
                    if tool.built_in is not None:
                        self._open_built_in(tool, number, out)
                    else:
                        kind: Kind = "call" if tool.custom is None else "custom"
                        self._open_item(kind, out, tool, number)
                case CallArgumentsDelta(text):
                    self._call_delta(text, out)
                case CallDone(_, arguments, complete):
                    if arguments and self._is_call_without_delta():
                        self._call_delta(arguments, out)
                    self.close("completed" if complete else "incomplete", out)
                case TextDone() | ReasoningDone():
                    self.close(ended, out)
        return out

    def close(self, status: Status, out: list[Event]) -> None:
        """Close the open item, if there is one; its events are appended to ``out``."""
        item = self._open
        if item is None:
            return
        self._open = None
        done: Item
        match item.kind:
            case "message":
                done = self._close_message(item, status, out)
            case "reasoning":
                done = self._close_reasoning(item, status, out)
            case "call":
                done = self._close_call(item, status, out)
            case "custom":
                done = self._close_custom(item, status, out)
            case "built_in":
                assert item.writer is not None
                done, told = item.writer.close(status)
                out += told
        self.items.append(done)
        number = self.take_number()
        out.append(events.output_item_done(number, item.index, done.to_wire(), self._stream_id))

    def _ensure(self, kind: Literal["message", "reasoning"], out: list[Event]) -> None:
        if self._open is None or self._open.kind != kind:
            self.close("completed", out)
            self._open_item(kind, out)

    def _tool(self, name: str) -> FunctionTool:
        """The tool that the model calls so."""
        tools = self._response.request.tools
        return next((tool for tool in tools if tool.name == name), FunctionTool(name=name))

    def _open_item(
        self, kind: Kind, out: list[Event], tool: FunctionTool = _NO_TOOL, call_number: str = ""
    ) -> None:
        index, id_ = len(self.items), self._new_id(_ID_PREFIX[kind])
        item = self._open = _Open(kind=kind, id=id_, index=index, tool=tool)
        zero: Item
        match kind:
            case "message":
                zero = Message(role="assistant", content=(), id=item.id, status="in_progress")
            case "reasoning":
                zero = Reasoning(id=item.id, status="in_progress")
            case "call":
                item.call_id = _numbered(self._new_id("call"), call_number)
                zero = item.function_call("in_progress")
            case "custom":
                item.call_id = _numbered(self._new_id("call"), call_number)
                item.reader = None if tool.plain else InputText()
                zero = item.custom_call("in_progress")
        number = self.take_number()
        out.append(events.output_item_added(number, item.index, zero.to_wire(), self._stream_id))
        if kind == "message":
            part = TextPart(type="output_text", text="").to_wire()
            out.append(self._at(item, events.content_part_added, content_index=0, part=part))

    def _open_built_in(self, tool: FunctionTool, number: str, out: list[Event]) -> None:
        assert tool.built_in is not None
        index, id_ = len(self.items), self._new_id(CALL_PREFIXES[tool.built_in.call_type])
        if tool.built_in.type == "local_shell":
            # Outputs of local shells name their call by the one id or the other.
            id_ = call_id = _numbered(id_, number)
        else:
            call_id = _numbered(self._new_id("call"), number)
        writer = BuiltInWriter(
            tool.built_in,
            id_=id_,
            call_id=call_id,
            index=index,
            take_number=self.take_number,
            stream_id=self._stream_id,
        )
        self._open = _Open(kind="built_in", id=id_, index=index, tool=tool, writer=writer)
        out += writer.begin()

    def _text_delta(self, text: str, logprobs: Sequence[Event], out: list[Event]) -> None:
        item = self._current("message")
        item.pieces.append(text)
        item.logprobs += logprobs
        build = events.output_text_delta
        out.append(self._at(item, build, content_index=0, delta=text, logprobs=logprobs))

    def _reasoning_delta(self, text: str, out: list[Event]) -> None:
        item = self._current("reasoning")
        item.pieces.append(text)
        out.append(self._at(item, events.reasoning_text_delta, content_index=0, delta=text))

    def _is_call_without_delta(self) -> bool:
        """A function without parameters still gets one."""
        return self._open is not None and self._open.kind == "call" and not self._open.pieces

    def _call_delta(self, text: str, out: list[Event]) -> None:
        item = self._open
        assert item is not None
        if item.writer is not None:
            out += item.writer.add(text)
            return
        assert item.kind in ("call", "custom")
        if item.reader is not None:
            text = item.reader.feed(text)
        if not text:
            return
        item.pieces.append(text)
        build = events.function_call_arguments_delta
        if item.kind == "custom":
            build = events.custom_tool_call_input_delta
        out.append(self._at(item, build, delta=text))

    def _close_message(self, item: _Open, status: Status, out: list[Event]) -> Message:
        part = TextPart(type="output_text", text=item.text, logprobs=tuple(item.logprobs))
        build, logprobs = events.output_text_done, item.logprobs
        out += [
            self._at(item, build, content_index=0, text=item.text, logprobs=logprobs),
            self._at(item, events.content_part_done, content_index=0, part=part.to_wire()),
        ]
        return Message(role="assistant", content=(part,), id=item.id, status=status)

    def _close_reasoning(self, item: _Open, status: Status, out: list[Event]) -> Reasoning:
        text = item.text
        out.append(self._at(item, events.reasoning_text_done, content_index=0, text=text))
        return Reasoning(content=(text,), id=item.id, status=status)

    def _close_call(self, item: _Open, status: Status, out: list[Event]) -> FunctionCall:
        build = events.function_call_arguments_done
        out.append(self._at(item, build, name=item.tool.own_name, arguments=item.text))
        return item.function_call(status)

    def _close_custom(self, item: _Open, status: Status, out: list[Event]) -> CustomToolCall:
        out.append(self._at(item, events.custom_tool_call_input_done, input=item.text))
        return item.custom_call(status)

    def _at(self, item: _Open, build: Callable[..., Event], **fields: Any) -> Event:
        """An event about a place inside ``item``."""
        return build(
            self.take_number(),
            item_id=item.id,
            output_index=item.index,
            stream_id=self._stream_id,
            **fields,
        )

    def _current(self, kind: str) -> _Open:
        assert self._open is not None
        assert self._open.kind == kind
        return self._open


def _numbered(id_: str, number: str) -> str:
    """A call's id with the number that the model gave it at its end, by which the format finds it
    again (``tools_api.sectioned_calls``)."""
    return f"{id_}_{number}" if number else id_


def _coalesced(pieces: Sequence[Piece]) -> Iterable[Piece]:
    """Join neighbouring deltas of one kind."""
    return pieces if len(pieces) < 2 else _joined(pieces)


def _joined(pieces: Sequence[Piece]) -> Iterable[Piece]:
    last: Piece | None = None
    for piece in pieces:
        match (last and last.parsed, piece.parsed):
            case (ParsedText(before), ParsedText(text)):
                assert last is not None
                last = Piece(ParsedText(before + text), last.logprobs + piece.logprobs)
            case (ParsedReasoning(before), ParsedReasoning(text)):
                last = Piece(ParsedReasoning(before + text))
            case (CallArgumentsDelta(before), CallArgumentsDelta(text)):
                last = Piece(CallArgumentsDelta(before + text))
            case _:
                if last is not None:
                    yield last
                last = piece
    if last is not None:
        yield last
