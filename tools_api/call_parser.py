"""Model output, as it streams, to text, reasoning and calls.

The inverse of the renderers for what a model writes: think blocks, free text, calls in the
family's syntax (``JsonCalls``). In families with tags only the special token is a tag; text
that spells one stays text. A call's object is scanned as it arrives: its name is announced
as soon as the name's string is closed, its arguments pass through unchanged.
Input of a custom tool that a grammar binds stands behind the object as plain text, up to the
next special token.

Always true: the events' texts, concatenated by kind, and the order of the other events do
not depend on how the output was split into pushes. Every ``ParsedCallStart`` is followed by
exactly one ``CallDone``. Nothing is dropped but tags, the whitespace that belongs to them,
and a call that was cut before its name was known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tools_api.call_reader import CallReader
from tools_api.chat_format import (
    CallSyntax,
    ChatFormat,
    JsonCalls,
    Segment,
)
from tools_api.harmony import ChannelParser, HarmonyCalls
from tools_api.json_scanner import CallScanner
from tools_api.named_calls import NamedCallReader, NamedCalls
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)
from tools_api.python_calls import PythonCallReader, PythonCalls
from tools_api.quoted_calls import QuotedCallReader, QuotedCalls
from tools_api.raw_call_reader import ArgumentTypes, RawCallReader
from tools_api.raw_calls import RawCalls
from tools_api.raw_values import Types, argument_types
from tools_api.sectioned_calls import SectionedCallReader, SectionedCalls
from tools_api.tagged_call_reader import Schemas, TaggedCallReader
from tools_api.tagged_calls import TaggedCalls
from tools_api.tools import FunctionTool

__all__ = [
    "CallArgumentsDelta",
    "CallDone",
    "CallParser",
    "ParsedCallStart",
    "ParsedEvent",
    "ParsedReasoning",
    "ParsedText",
    "ReasoningDone",
    "TextDone",
]
_State = Literal["text", "reasoning", "list", "call", "input", "between", "group"]


class CallParser:
    """Parses one output; not reusable."""

    _label = ""
    """Text that belongs to the opener of reasoning, where it is due next."""

    def __init__(
        self,
        chat_format: ChatFormat,
        thinking: bool,
        *,
        calls: bool = True,
        plain: frozenset[str] = frozenset(),
        reasons_first: bool = False,
        tools: Sequence[FunctionTool] = (),
    ) -> None:
        """
        Args:
            chat_format: of the model that writes.
            thinking: think blocks are reasoning; otherwise their tags are text.
            calls: the turn may call tools; otherwise the calls' tags are text.
            plain: names of the tools whose input is plain text.
            reasons_first: what comes before the end of reasoning is reasoning, opened or not.
            tools: say which types arguments have, where the format does not.
        """
        self._channels: ChannelParser | None = None
        if isinstance(chat_format.calls, HarmonyCalls):
            self._channels = ChannelParser(calls=calls, plain=plain)
        self._thinking = thinking and chat_format.thinking
        self._syntax: CallSyntax | None = chat_format.calls if calls else None
        reasons_first = reasons_first or (self._thinking and chat_format.opens_reasoning)
        self._think = (chat_format.think_opener, chat_format.think_closer, chat_format.think_label)
        self._end_of_turn = frozenset(chat_format.end_of_turn)
        self._plain = plain
        self._tools = {tool.name: tool.parameters for tool in tools}
        self._state: _State = "reasoning" if reasons_first else "text"
        self._reader: CallReader | None = None
        """The reader of calls that are no JSON objects."""
        self._started = False
        """The text or reasoning that is open has had a delta."""
        self._held = ""
        """Newlines that are text only if more text follows."""
        self._after_tag = reasons_first
        """Newlines in front of the next text belong to a tag."""
        self._scanner: CallScanner | None = None
        self._input: list[str] = []
        """The plain text of the call that is open."""
        self._name = ""
        """Name of the tool whose input is being read."""
        self._announced = False
        self._raw = ""
        """The text read of a call that is not announced yet, its tag included."""
        self._events: list[ParsedEvent] = []

    def push(self, segments: Iterable[Segment]) -> list[ParsedEvent]:
        """Read on; return what has become certain."""
        if self._channels is not None:
            return self._channels.push(segments)
        for segment in segments:
            if not segment.special:
                self._text(segment.text)
            elif segment.text in self._end_of_turn:
                syntax = self._syntax
                self._end_input(complete=syntax is not None and syntax.closer is None)
                if self._reader is not None:
                    self._reader.end_of_turn()
                self._end(cut=False)
            else:
                self._special(segment.text)
        events, self._events = self._events, []
        return events

    @property
    def inside_call(self) -> bool:
        """What was read last belongs to a call, or may: its opener, its name, what closes it."""
        if self._channels is not None:
            return self._channels.inside_call
        syntax = self._syntax
        if self._state == "between" and syntax is not None:
            return syntax.closer is not None or not syntax.repeats_opener
        return self._state not in ("text", "reasoning")

    def opens(self, special: str) -> bool:
        """Whether a special token ends a text and opens something else."""
        if self._channels is not None:
            return self._channels.opens(special)
        opener = None if self._syntax is None else self._syntax.opener
        return special == opener or (self._thinking and special == self._think[0])

    def finish(self) -> list[ParsedEvent]:
        """The output has ended; close what is open."""
        if self._channels is not None:
            return self._channels.finish()
        self._end(cut=True)
        return self.push(())

    def _special(self, name: str) -> None:
        if self._state == "reasoning":
            if name == self._think[1]:
                self._end_reasoning()
            elif name != self._think[0]:
                self._run(name)
            elif not self._started and not self._held:
                self._label = self._think[2]
            return
        if self._reader is not None and self._read_special(self._reader, name):
            return
        syntax = self._syntax
        self._end_input(complete=syntax is not None and name == syntax.closer)
        if self._state != "text" and syntax is not None:
            self._break_call()
            if name == syntax.closer and not self._started:
                return
        if syntax is not None and name == syntax.opener:
            self._end_text(keep_newlines=False)
            self._start_call(syntax, name)
        elif self._thinking and name in self._think[:2]:
            self._end_text(keep_newlines=False)
            self._state = "reasoning" if name == self._think[0] else "text"
            self._label = self._think[2] if self._state == "reasoning" else ""
            self._after_tag = True
        else:
            self._run(name)

    def _text(self, text: str) -> None:
        while text:
            syntax = self._syntax
            if syntax is None or self._state in ("text", "reasoning"):
                text = self._free(text)
            elif self._reader is not None:
                text = self._read_on(self._reader, text)
            elif self._state == "list":
                text = self._list_start(text)
            elif self._state == "call":
                text = self._scan(text)
            elif self._state == "input":
                text = self._take_input(text)
            else:
                text = self._between(text, syntax)

    def _free(self, text: str) -> str:
        """Text or reasoning. In a family without tags a brace in front may open a call."""
        syntax = self._syntax
        if self._state == "text" and not self._started and syntax and syntax.opener is None:
            body = text.lstrip("\n")
            if body.startswith(syntax.start):
                self._held += text[: len(text) - len(body)]
                self._start_call(syntax, "")
                return body
        self._run(text)
        return ""

    def _run(self, text: str) -> None:
        """Emit text but for the newlines at its end, which a tag may follow."""
        run = self._held + text
        if self._label:
            self._held = run
            if self._label.startswith(run) and run != self._label:
                return
            run, self._label = run.removeprefix(self._label), ""
        if not self._started and self._after_tag:
            run = run.lstrip("\n")
        body = run.rstrip("\n")
        self._held = run[len(body) :]
        if body:
            self._started = True
            reasoning = self._state == "reasoning"
            self._events.append(ParsedReasoning(body) if reasoning else ParsedText(body))

    def _end_text(self, *, keep_newlines: bool) -> None:
        if keep_newlines and self._held and not (self._after_tag and not self._started):
            self._events.append(ParsedText(self._held))
            self._started = True
        if self._started:
            self._events.append(TextDone())
        self._started, self._held = False, ""

    def _end_reasoning(self) -> None:
        if self._label:
            label, held = self._label, self._held
            self._label = self._held = ""
            self._run("" if held == label.rstrip("\n") else held)
        if self._started:
            self._events.append(ReasoningDone())
        self._started, self._held = False, ""
        self._state, self._after_tag = "text", True

    def _read_on(self, reader: CallReader, text: str) -> str:
        """Text inside calls that are no JSON objects; returns what is not theirs."""
        rest = reader.text(text)
        self._tell(reader)
        if reader.over:
            self._leave_group()
        return rest

    def _read_special(self, reader: CallReader, name: str) -> bool:
        """Whether a special token belonged to the calls; they are left otherwise."""
        taken = reader.special(name)
        if not taken:
            unannounced = reader.unannounced
            reader.stop()
            self._tell(reader)
            self._leave_group()
            if unannounced:
                self._after_tag = False
                self._run(unannounced)
            return False
        self._tell(reader)
        if reader.over:
            self._leave_group()
        return True

    def _tell(self, reader: CallReader) -> None:
        events = reader.take()
        if events and self._started:
            self._end_text(keep_newlines=False)
        self._events += events

    def _leave_group(self) -> None:
        self._reader = None
        self._state, self._after_tag = "text", True

    def _open_group(self, syntax: CallSyntax) -> None:
        self._state = "group"
        self._reader = call_reader(syntax, self._types_of, self._schema_of, self._plain)

    def _types_of(self, name: str) -> Mapping[str, Types]:
        return argument_types(self._schema_of(name))

    def _schema_of(self, name: str) -> Mapping[str, Any]:
        return self._tools.get(name, {})

    def _start_call(self, syntax: CallSyntax, raw: str, *, in_list: bool = False) -> None:
        if not isinstance(syntax, JsonCalls):
            self._open_group(syntax)
            return
        lists = not syntax.repeats_opener and not in_list
        self._state = "list" if lists else "call"
        self._raw, self._announced = raw, False
        self._scanner = CallScanner(
            syntax.arguments_key, needs_arguments=syntax.opener is None, plain=self._plain
        )

    def _list_start(self, text: str) -> str:
        """Mistral's calls stand in a list: skip its bracket."""
        body = text.lstrip(" \n")
        if not body:
            self._raw += text
            return ""
        self._state = "call"
        if not body.startswith("["):
            return text
        self._raw += text[: len(text) - len(body) + 1]
        return body[1:]

    def _scan(self, text: str) -> str:
        assert self._scanner is not None
        scanner = self._scanner
        read = scanner.feed(text)
        if not self._announced:
            self._raw += text[:read]
        if scanner.announced:
            self._report(scanner)
        if scanner.failed:
            self._break_call()
        return text[read:]

    def _report(self, scanner: CallScanner) -> None:
        name = scanner.name or ""
        if not self._announced:
            self._end_text(keep_newlines=False)
            self._announced = True
            self._events.append(ParsedCallStart(name))
        if new := scanner.take_arguments():
            self._events.append(CallArgumentsDelta(new))
        if scanner.input_follows:
            self._state, self._scanner, self._name, self._input = "input", None, name, []
        elif scanner.done:
            self._events.append(CallDone(name, scanner.arguments or "{}", not scanner.skipped))
            self._state, self._scanner = "between", None

    def _take_input(self, text: str) -> str:
        """The first line break ends the object's line; all else is input."""
        body = text if self._input else text.removeprefix("\n")
        self._input.append(body)
        if body:
            self._events.append(CallArgumentsDelta(body))
        return ""

    def _end_input(self, *, complete: bool) -> None:
        """The input ends, if one is open."""
        if self._state == "input":
            self._events.append(CallDone(self._name, "".join(self._input), complete))
            self._state, self._after_tag = "between" if complete else "text", True

    def _break_call(self) -> None:
        """Leave a call that is over, or went wrong: once announced it ends incomplete,
        before that it was text after all."""
        scanner, self._scanner = self._scanner, None
        self._state, self._after_tag = "text", True
        if scanner is None:
            return
        if self._announced:
            self._events.append(CallDone(scanner.name or "", scanner.arguments, complete=False))
        else:
            self._after_tag = False
            self._run(self._raw)

    def _between(self, text: str, syntax: CallSyntax) -> str:
        """After a call's object: its ending, or the next object of a list."""
        body = text.lstrip(" \n")
        if not body:
            return ""
        if not syntax.repeats_opener and body[0] == ",":
            self._start_call(syntax, ",", in_list=True)
            return body[1:]
        ends_list = not syntax.repeats_opener and body[0] == "]"
        if ends_list and syntax.closer is not None:
            return body[1:]
        self._state, self._after_tag = "text", True
        return body[1:] if ends_list else body

    def _end(self, *, cut: bool) -> None:
        """
        Args:
            cut: not by the model. A call whose name was not known yet is no text then.
        """
        self._end_input(complete=False)
        if self._reader is not None:
            untagged = self._syntax is not None and self._syntax.opener is None
            begun = self._reader.unannounced if untagged or not cut else ""
            self._reader.stop()
            self._tell(self._reader)
            self._leave_group()
            if begun:
                self._after_tag = False
                self._run(begun)
        if self._state == "reasoning":
            self._end_reasoning()
        tagged = self._syntax is not None and self._syntax.opener is not None
        if self._scanner is not None and tagged and cut and not self._announced:
            self._scanner = None
        if self._state != "text":
            self._break_call()
        self._end_text(keep_newlines=True)


def call_reader(
    syntax: CallSyntax, types: ArgumentTypes, schemas: Schemas, plain: frozenset[str]
) -> CallReader:
    """A reader of calls of that syntax behind an opener."""
    match syntax:
        case NamedCalls():
            return NamedCallReader(syntax, plain)
        case SectionedCalls():
            return SectionedCallReader(syntax, plain)
        case PythonCalls():
            return PythonCallReader(syntax, plain)
        case QuotedCalls():
            return QuotedCallReader(syntax, plain)
        case RawCalls():
            return RawCallReader(syntax, types, plain)
        case TaggedCalls():
            return TaggedCallReader(syntax, schemas, plain)
    raise TypeError(f"no reader for {type(syntax).__name__}")
