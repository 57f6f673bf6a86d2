"""How a transcript is written for a model: header, items, calls, as segments.

Text and control are two channels: a ``Segment`` is either text or exactly one special token,
so nothing a user writes can open a turn. This module holds what all families share, their
renderers are listed by ``tools_api.chat_families``. Rendering is from items to segments; the other
direction is ``tools_api.call_parser``, and the syntax of calls is shared by both and by
``tools_api.grammar``. No Jinja: templates that come with a model are code.

Always true (append-stability): while header and options are equal, the segments of a
transcript that has grown start with the segments of the shorter one, the model's own output
in place. A first turn equals the published template; ``docs/chat_formats.md`` lists where a
published template rewrites history and append-stable rendering therefore differs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from tools_api import exact_json
from tools_api.built_in_items import (
    AdditionalTools,
    BuiltInCall,
    BuiltInOutput,
    ConfigurationUpdate,
)
from tools_api.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    TextPart,
)
from tools_api.tool_definitions import definitions_in
from tools_api.tools import FunctionTool

THINK_OPENER, THINK_CLOSER = "<think>", "</think>"
"""Special tokens around reasoning, in formats that have it."""
TEMPLATE_DATE = date(2024, 7, 26)
"""Today, wherever a template asks for it: a real date would change every prefix at midnight."""
REASONING_OPENERS = frozenset({THINK_OPENER, "[THINK]", "<|channel>", "<mm:think>"})
REASONING_CLOSERS = frozenset({THINK_CLOSER, "[/THINK]", "<channel|>", "</mm:think>"})
"""Whatever the format; none has the other's."""
_NONE_FOUND = "No tools were found."
CALL_BRACE = "{"
"""Begins a call where no special token opens it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Text, or the name of one special token."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """The options of the template that a request may change; part of the header."""

    thinking: bool = False
    """The model may reason before it answers, where the format knows how."""
    effort: str | None = None
    """How much, as the request names it; None unless the format's header says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How a family writes calls: what all ways have in common. Each way is a class of its own."""

    opener: str | None
    """Special token in front of a call; None: the call's own text opens it."""
    closer: str | None = None
    """Special token behind it; None: the end of the turn, or the next opener."""
    between: str = ""
    """Text between two calls of one turn."""
    repeats_opener: bool = True
    """Each call has its opener and closer; otherwise one pair holds all calls of a turn."""
    parallel: bool = True

    @property
    def start(self) -> str:
        """The character that a call begins with where no token opens it."""
        return CALL_BRACE

    @property
    def specials(self) -> frozenset[str]:
        """The special tokens that calls are written with."""
        return frozenset(name for name in (self.opener, self.closer) if name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls(CallSyntax):
    """A call is one JSON object: ``opener before {object} after closer``.

    The object is ``{"name": "...", arguments_key: {...}}`` with ", " and ": ".
    """

    before: str = ""
    after: str = ""
    arguments_key: str = "arguments"


class ChatFormat(ABC):
    """Renderer of one family. Stateless; made by ``tools_api.chat_families``."""

    name: str
    """The name of the way in which it writes calls, as ``tools_api.call_signatures`` knows it."""
    end_of_turn: tuple[str, ...]
    """Special tokens that end a model turn; the first is what the renderer writes."""
    thinking: bool = False
    """Whether the format has think blocks at all."""
    think_opener: str = THINK_OPENER
    think_closer: str = THINK_CLOSER
    think_label: str = ""
    """The text behind the opener that belongs to it."""
    knows_effort: bool = False
    """The header says how much the model is to reason."""
    opens_reasoning: bool = False
    """The generation prompt of a turn that may reason opens the think block."""
    reasons_inside: bool = False
    """``prompt_inside`` of a turn that may reason opens the think block."""
    opens_output: str | None = None
    """Special token, one of ``end_of_turn``, that opens the output of a call."""
    after_thinking: str = "\n\n"
    """The text between a think block and an answer."""
    calls: CallSyntax | None
    """How calls are written; None: the model cannot call tools."""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        self._has_token = has_token

    @abstractmethod
    def header(
        self,
        instructions: str | None,
        tools: Sequence[FunctionTool],
        options: TemplateOptions,
    ) -> list[Segment]:
        """The text before all items."""

    @abstractmethod
    def items(
        self,
        items: Sequence[Item],
        *,
        first: bool,
        open_output: bool,
        options: TemplateOptions,
        after_output: bool = True,
    ) -> list[Segment]:
        """New input items.

        Args:
            items: in order; our own earlier output is only given when its tokens are not
                held any more.
            first: nothing but the header stands before.
            open_output: a model output stands before that was cut short; it is closed.
            after_output: unless ``first``, a model output stands before. False when other
                input items do (after a warm-up).
        """

    @abstractmethod
    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """The text that opens the model's turn, after all items."""

    def ends_inside(self, items: Sequence[Item], *, before: bool) -> bool:
        """Whether the text of input items ends inside the model's turn, as behind calls or their
        outputs where these stand in it; ``before``: whether the text in front of them does."""
        return False

    def items_inside(
        self, items: Sequence[Item], *, opened: bool, options: TemplateOptions
    ) -> list[Segment]:
        """New input items where the text before ends inside the model's turn.

        Args:
            opened: it is a model output that ended with ``opens_output``.
        """
        return self.items(
            items, first=False, open_output=False, options=options, after_output=opened
        )

    def prompt_inside(self, options: TemplateOptions) -> list[Segment]:
        """The text with which the model goes on inside its turn."""
        return self.generation_prompt(options)

    def output_specials(self, *, thinking: bool, calls: bool) -> frozenset[str]:
        """The special tokens that mean something in an output; any other is best banned."""
        names = set(self.end_of_turn)
        if thinking and self.thinking:
            names |= {self.think_opener, self.think_closer}
        if calls and self.calls is not None:
            names |= self.calls.specials
        return frozenset(names)

    def _writer(self) -> "SegmentWriter":
        return SegmentWriter(self._has_token)


class SegmentWriter:
    """Collects segments; neighbouring text becomes one."""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        self._has_token = has_token
        self.segments: list[Segment] = []

    def text(self, text: str) -> None:
        """Add text; whatever it spells, it becomes no special token."""
        if not text:
            return
        if self.segments and not self.segments[-1].special:
            text = self.segments.pop().text + text
        self.segments.append(Segment(text))

    def special(self, name: str | None) -> None:
        """Add one special token; None, the opener of a family without one, adds nothing."""
        if name is not None:
            self.segments.append(Segment(name, special=True))

    def tag(self, name: str) -> None:
        """A tag of the template: one token where the tokenizer has it, else text."""
        if self._has_token(name):
            self.special(name)
        else:
            self.text(name)

    def tagged(self, text: str) -> None:
        """Template text, in which tags stand between ``<`` and ``>``."""
        for piece in re.split(r"(</?\w+>)", text):
            if piece.startswith("<") and piece.endswith(">"):
                self.tag(piece)
            else:
                self.text(piece)

    def calls(self, syntax: JsonCalls, objects: Sequence[str]) -> None:
        """Add the calls of one turn; ``objects`` are made by ``call_object``."""
        each = syntax.repeats_opener
        for i, text in enumerate(objects):
            if i > 0:
                self.text(syntax.between)
            if each or i == 0:
                self.special(syntax.opener)
                self.text(syntax.before)
            self.text(text)
            if each or i == len(objects) - 1:
                self.text(syntax.after)
                self.special(syntax.closer)


@dataclass(slots=True)
class AssistantTurn:
    """The model's items between two turns of others, as templates group them."""

    reasoning: str | None = None
    text: str | None = None
    calls: list[FunctionCall] = field(default_factory=list)

    @property
    def only_reasoning(self) -> bool:
        """The output was cut short before text or calls, or nothing else was sent back."""
        return self.text is None and not self.calls


Turn = AssistantTurn | list[FunctionCallOutput] | Message


def turns(items: Iterable[Item]) -> Iterator[Turn]:
    """Items grouped as templates know them: one assistant turn holds reasoning, then text,
    then calls; outputs that follow one another are one turn of the tools. Calls of custom tools
    are functions with the argument ``input``, those of built-in tools functions of their names."""
    turn: Turn | None = None
    for item in map(_as_templates_know_it, items):
        if item is None or (isinstance(item, Reasoning) and item.sealed):
            continue
        match turn, item:
            case AssistantTurn(), FunctionCall():
                turn.calls.append(item)
            case AssistantTurn(text=None, calls=[]), Message(role="assistant"):
                turn.text = item.text
            case list(), FunctionCallOutput():
                turn.append(item)
            case _:
                if turn is not None:
                    yield turn
                turn = _open_turn(item)
    if turn is not None:
        yield turn


def _as_templates_know_it(
    item: Item,
) -> Message | FunctionCall | FunctionCallOutput | Reasoning | None:
    """None: no model reads of it."""
    match item:
        case ConfigurationUpdate():
            return None
        case CustomToolCall():
            return item.as_function_call()
        case CustomToolCallOutput():
            return item.as_function_output()
        case BuiltInCall():
            return FunctionCall(
                call_id=item.call_id,
                name=item.full_name,
                arguments=item.arguments,
                status=item.status,
            )
        case BuiltInOutput() if item.loads:
            return FunctionCallOutput(
                call_id=item.call_id, output=definitions(item), name=item.name
            )
        case AdditionalTools():
            part = TextPart(type="input_text", text=definitions(item))
            return Message(role="developer", content=(part,))
        case BuiltInOutput():
            return FunctionCallOutput(call_id=item.call_id, output=item.output, name=item.name)
        case Compaction():
            raise TypeError("a compaction is rendered as what it stands for")
    return item


def _open_turn(item: Message | FunctionCall | FunctionCallOutput | Reasoning) -> Turn:
    match item:
        case Reasoning():
            return AssistantTurn(reasoning=item.text)
        case FunctionCall():
            return AssistantTurn(calls=[item])
        case FunctionCallOutput():
            return [item]
        case Message(role="assistant"):
            return AssistantTurn(text=item.text)
    return item


def to_json(value: object, indent: int | None = None) -> str:
    """JSON as the published templates write it (``tojson`` of transformers)."""
    return exact_json.written(value, indent=indent)


def tool_object(tool: FunctionTool) -> dict[str, Any]:
    """The tool as templates list it, its keys in their order; they know no ``strict``."""
    function: dict[str, Any] = {"name": tool.name}
    if (description := tool.shown_description) is not None:
        function["description"] = description
    function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def definitions(item: BuiltInOutput | AdditionalTools) -> str:
    """The tools that an item brings, a line each, as a header would list them."""
    lines = [to_json(tool_object(tool)) for tool in definitions_in(item)]
    return "\n".join(lines) or _NONE_FOUND


def call_object(call: FunctionCall, syntax: JsonCalls, tail: str = "") -> str:
    """A call as the model writes it; its arguments pass through as text.

    Args:
        tail: JSON text to stand before the closing brace, as ``, "id": "..."``.
    """
    arguments = call.arguments or "{}"
    return f'{{"name": {to_json(call.full_name)}, "{syntax.arguments_key}": {arguments}{tail}}}'


def role_of(message: Message) -> str:
    """The role as templates know it: ``developer`` becomes ``system``."""
    return "system" if message.role == "developer" else message.role
