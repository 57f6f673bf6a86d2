"""One response's events in the order the protocol demands (section 3.1).

Parsed output goes in piece by piece; out come the events that open, fill and close output
items, numbered from 0. Knows nothing of tokens and engines.

Always true: at most one item is open; the deltas of an item concatenate to its done text,
which is the item's, which is the one in the terminal ``response.output``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tools_api import events
from tools_api.call_parser import (
    CallArgumentsDelta,
    CallDone,
    CallStarted,
    ParsedEvent,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from tools_api.events import Event
from tools_api.items import FunctionCall, Item, Message, Reasoning, Status, TextPart
from tools_api.responses import ResponseObject


@dataclass(frozen=True, slots=True)
class Piece:
    """A parsed event and the log-probabilities of the tokens behind its text."""

    parsed: ParsedEvent
    logprobs: tuple[Event, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Open:
    """The item that is being written."""

    kind: Literal["message", "reasoning", "call"]
    id: str
    index: int
    name: str = ""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


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
        self.items: list[Item] = []
        """Finished output items, in order."""

    def take_number(self) -> int:
        """The next sequence number; also for events that are not written here."""
        number = self._number
        self._number += 1
        return number

    def created(self, keepwarm: Event | None) -> Event:
        wire = self._response.wire(status="in_progress", keepwarm=keepwarm)
        return events.created(self.take_number(), wire, self._stream_id)

    def queued(self, keepwarm: Event | None) -> Event:
        wire = self._response.wire(status="queued", keepwarm=keepwarm)
        return events.queued(self.take_number(), wire, self._stream_id)

    def in_progress(self, keepwarm: Event | None) -> Event:
        wire = self._response.wire(status="in_progress", keepwarm=keepwarm)
        return events.in_progress(self.take_number(), wire, self._stream_id)

    def snapshot(self, keepwarm: Event | None) -> Event:
        """The response as it stands: the items that are finished."""
        output = [item.to_wire() for item in self.items]
        return self._response.wire(status="in_progress", output=output, keepwarm=keepwarm)

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
                case TextDelta(text):
                    self._ensure("message", out)
                    self._text_delta(text, piece.logprobs, out)
                case ReasoningDelta(text):
                    self._ensure("reasoning", out)
                    self._reasoning_delta(text, out)
                case CallStarted(name):
                    self.close("completed", out)
                    self._open_item("call", out, name=name)
                case CallArgumentsDelta(text):
                    self._arguments_delta(text, out)
                case CallDone(_, arguments, complete):
                    if arguments and not self._current("call").pieces:
                        self._arguments_delta(arguments, out)
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
        self.items.append(done)
        number = self.take_number()
        out.append(events.output_item_done(number, item.index, done.to_wire(), self._stream_id))

    def _ensure(self, kind: Literal["message", "reasoning"], out: list[Event]) -> None:
        if self._open is None or self._open.kind != kind:
            self.close("completed", out)
            self._open_item(kind, out)

    def _open_item(
        self, kind: Literal["message", "reasoning", "call"], out: list[Event], *, name: str = ""
    ) -> None:
        prefix = {"message": "msg", "reasoning": "rs", "call": "fc"}[kind]
        item = _Open(kind=kind, id=self._new_id(prefix), index=len(self.items), name=name)
        self._open = item
        zero: Item
        match kind:
            case "message":
                zero = Message(role="assistant", content=(), id=item.id, status="in_progress")
            case "reasoning":
                zero = Reasoning(id=item.id, status="in_progress")
            case "call":
                item.call_id = self._new_id("call")
                zero = FunctionCall(
                    call_id=item.call_id,
                    name=name,
                    arguments="",
                    id=item.id,
                    status="in_progress",
                )
        number = self.take_number()
        out.append(events.output_item_added(number, item.index, zero.to_wire(), self._stream_id))
        if kind == "message":
            part = TextPart(type="output_text", text="").to_wire()
            out.append(self._at(item, events.content_part_added, content_index=0, part=part))

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

    def _arguments_delta(self, text: str, out: list[Event]) -> None:
        item = self._current("call")
        item.pieces.append(text)
        out.append(self._at(item, events.function_call_arguments_delta, delta=text))

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
        out.append(self._at(item, build, name=item.name, arguments=item.text))
        return FunctionCall(
            call_id=item.call_id, name=item.name, arguments=item.text, id=item.id, status=status
        )

    def _at(self, item: _Open, build: Callable[..., Event], **fields: Any) -> Event:
        """An event inside ``item``."""
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


def _coalesced(pieces: Sequence[Piece]) -> Iterable[Piece]:
    """Join neighbouring deltas of one kind."""
    return pieces if len(pieces) < 2 else _joined(pieces)


def _joined(pieces: Sequence[Piece]) -> Iterable[Piece]:
    last: Piece | None = None
    for piece in pieces:
        match (last and last.parsed, piece.parsed):
            case (TextDelta(before), TextDelta(text)):
                assert last is not None
                last = Piece(TextDelta(before + text), last.logprobs + piece.logprobs)
            case (ReasoningDelta(before), ReasoningDelta(text)):
                last = Piece(ReasoningDelta(before + text))
            case (CallArgumentsDelta(before), CallArgumentsDelta(text)):
                last = Piece(CallArgumentsDelta(before + text))
            case _:
                if last is not None:
                    yield last
                last = piece
    if last is not None:
        yield last
