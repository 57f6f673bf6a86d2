"""The renderer that is data: turns as a model folder's own chat template writes them.

Its pieces are literal text, cut at the tokenizer's special tokens, and slots for what a request
brings. They were found out by ``runtime.chat_judge``; here they are only put together, so that no
template runs in a turn. A description of a chat format is one text: the name of a renderer of
ours, or these pieces as JSON; it crosses to other processes and lies in a file.

Always true: see ``tools_api.chat_format``. What a slot is given becomes text, whatever it spells;
a description that is read has every piece that its renderer needs.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tools_api.call_writing import write_calls
from tools_api.chat_families import call_syntax_named, chat_format_named
from tools_api.chat_format import (
    THINK_OPENER,
    AssistantTurn,
    CallSyntax,
    ChatFormat,
    JsonCalls,
    Segment,
    SegmentWriter,
    TemplateOptions,
    role_of,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.python_calls import PythonCalls
from tools_api.tool_listing import LISTINGS
from tools_api.tools import FunctionTool

GENERIC = "generic"
"""In the place of a format's name."""
_SLOTS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "s": ("system",),
    "t": ("tools",),
    "st": ("system", "tools"),
}
"""The slots of a header, by what there is."""
Trim = Literal["", "left", "right", "both"]
_TRIMS: Mapping[str, Callable[[str], str]] = {
    "": lambda text: text,
    "left": str.lstrip,
    "right": str.rstrip,
    "both": str.strip,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where something of the request stands."""

    name: str
    trim: Trim = ""
    """On which sides the template takes white space off."""


Part = Segment | Slot
Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Call syntax: one of ours with white space, or with tokens, of the template's own."""

    format: str
    """The format whose syntax it is, or one of ``CALL_KINDS``."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Fields of the syntax that differ."""


CALL_KINDS: Mapping[str, CallSyntax] = {
    "json": JsonCalls(opener=None),
    "json list": JsonCalls(opener=None, before="[", after="]", between=", ", repeats_opener=False),
    "python list": PythonCalls(
        opener=None, before="[", after="]", between=", ", repeats_opener=False
    ),
}
"""Ways of writing calls whose tokens a folder says itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The texts that a template writes around what it is given."""

    headers: Mapping[str, Parts]
    """By what there is: "" neither, "s" instructions (slot ``system``), "t" tools (slot
    ``tools``), "st" both."""
    listing: str | None = None
    """How one tool is listed, by its name in ``tool_listing``."""
    between_tools: str = ""
    lead: str = ""
    """White space between two turns."""
    user: Parts
    """A user's message, with a slot ``text``."""
    system: Parts | None = None
    """A system message behind others; None: it is written as a user's."""
    before_answer: Parts
    answer_trim: Trim = ""
    called_trim: Trim = ""
    """The same of a text that calls follow."""
    reasoning: tuple[Parts, Parts] | None = None
    """Before and behind it; None: it is left out."""
    before_calls: str = ""
    """The text between a message and its calls."""
    before_calls_alone: str = ""
    after_calls: str = ""
    after_answer: Parts
    """Begins with the special token that ends the model's turn."""
    outputs: tuple[Parts, Parts, Parts] | None = None
    """Before the first output, between two, behind the last. Slots ``name`` and ``call_id`` are of
    the output that follows, or behind the last of that one."""
    output_trim: Trim = ""
    prompt: Parts
    prompt_thinking: Parts
    thinking: bool = False
    opens_reasoning: bool = False
    after_thinking: str = ""
    calls: Learned | None = None


class GenericFormat(ChatFormat):
    """Turns put together from pieces."""

    name = "the folder's template"

    def __init__(self, pieces: Pieces, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.pieces = pieces
        first = pieces.after_answer[0] if pieces.after_answer else None
        if not isinstance(first, Segment) or not first.special:
            raise ValueError("the pieces have no special token that ends the model's turn")
        self.end_of_turn = (first.text,)
        self.thinking = pieces.thinking
        self.opens_reasoning = pieces.opens_reasoning
        self.after_thinking = pieces.after_thinking
        self.calls: CallSyntax | None = None
        if pieces.calls is not None:
            self.calls = learned_syntax(pieces.calls, has_token)
        for part in (part for parts, _ in _groups(pieces) for part in parts):
            if isinstance(part, Segment) and part.special and not has_token(part.text):
                raise ValueError(f"the tokenizer has no special token {part.text}")

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """As the template writes it for the same of instructions and tools."""
        out = self._writer()
        pieces = self.pieces
        listing = LISTINGS[pieces.listing] if pieces.listing is not None else None
        kind = ("s" if instructions is not None else "") + ("t" if tools and listing else "")
        listed = ""
        if listing is not None:
            listed = pieces.between_tools.join(listing(tool) for tool in tools)
        _write(out, pieces.headers[kind], {"system": instructions or "", "tools": listed})
        return out.segments

    def items(
        self,
        items: Sequence[Item],
        *,
        first: bool,
        open_output: bool,
        options: TemplateOptions,
        after_output: bool = True,
    ) -> list[Segment]:
        """Behind an output comes what the template writes after its last token."""
        out = self._writer()
        if open_output:
            _write(out, self.pieces.after_answer, {})
        elif not first and after_output:
            _write(out, self.pieces.after_answer[1:], {})
        names: dict[str, str] = {}
        for i, turn in enumerate(turns(items)):
            if i or not first:
                out.text(self.pieces.lead)
            match turn:
                case Message():
                    system = role_of(turn) == "system" and self.pieces.system is not None
                    parts = self.pieces.system if system else self.pieces.user
                    _write(out, parts or (), {"text": turn.text})
                case AssistantTurn():
                    names |= {call.call_id: call.full_name for call in turn.calls}
                    self._assistant(out, turn)
                case outputs:
                    self._outputs(out, outputs, names)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """As the template opens the model's turn, with and without reasoning."""
        out = self._writer()
        pieces = self.pieces
        _write(out, pieces.prompt_thinking if options.thinking else pieces.prompt, {})
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        pieces = self.pieces
        if turn.only_reasoning and pieces.reasoning is None:
            return
        _write(out, pieces.before_answer, {})
        if pieces.reasoning is not None and turn.reasoning is not None:
            before, behind = pieces.reasoning
            _write(out, before, {})
            out.text(turn.reasoning.strip("\n"))
            _write(out, behind, {})
        trim = pieces.called_trim if turn.calls else pieces.answer_trim
        text = _TRIMS[trim](turn.text or "")
        out.text(text)
        if turn.calls and self.calls is not None:
            out.text(pieces.before_calls if text else pieces.before_calls_alone)
            write_calls(out, self.calls, turn.calls)
            out.text(pieces.after_calls)
        _write(out, pieces.after_answer, {})

    def _outputs(
        self,
        out: SegmentWriter,
        outputs: Sequence[FunctionCallOutput],
        names: Mapping[str, str],
    ) -> None:
        pieces = self.pieces
        if pieces.outputs is None:
            for output in outputs:
                _write(out, pieces.user, {"text": output.output})
            return
        before, between, behind = pieces.outputs
        given: dict[str, str] = {}
        for i, output in enumerate(outputs):
            given = {"name": names.get(output.call_id, ""), "call_id": output.call_id}
            _write(out, between if i else before, given)
            out.text(_TRIMS[pieces.output_trim](output.output))
        _write(out, behind, given)


def _write(out: SegmentWriter, parts: Parts, given: Mapping[str, str]) -> None:
    for part in parts:
        if isinstance(part, Slot):
            out.text(_TRIMS[part.trim](given[part.name]))
        elif part.special:
            out.special(part.text)
        else:
            out.text(part.text)


def learned_syntax(calls: Learned, has_token: Callable[[str], bool]) -> CallSyntax:
    """The call syntax that was learned.

    Raises:
        ValueError: there is none of that name, without such fields, or the tokenizer lacks its
            special tokens.
    """
    syntax = CALL_KINDS.get(calls.format)
    try:
        syntax = syntax or call_syntax_named(calls.format, has_token)
    except LookupError as error:
        raise ValueError(str(error)) from error
    texts = {
        each.name
        for each in dataclasses.fields(syntax)
        if not isinstance(getattr(syntax, each.name), bool)
    }
    if unknown := [name for name in calls.gaps if name not in texts]:
        raise ValueError(f"calls of {calls.format} have no gap {unknown[0]}")
    own: dict[str, Any] = dict(calls.gaps)
    made: CallSyntax = dataclasses.replace(syntax, **own)
    if lacking := [name for name in made.specials if not has_token(name)]:
        raise ValueError(f"the tokenizer has no special token {lacking[0]}")
    return made


def _groups(pieces: Pieces) -> Iterator[tuple[Parts, set[str]]]:
    """Everything made of parts, with the slots that it may have."""
    for kind, parts in pieces.headers.items():
        yield parts, set(_SLOTS[kind])
    for parts in (pieces.user, pieces.system or ()):
        yield parts, {"text"}
    for parts in (pieces.before_answer, pieces.after_answer, pieces.prompt, pieces.prompt_thinking):
        yield parts, set()
    for parts in pieces.reasoning or ():
        yield parts, set()
    for parts in pieces.outputs or ():
        yield parts, {"name", "call_id"}


# As text


def described(pieces: Pieces) -> str:
    """The description of the renderer that has these pieces."""
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(pieces):
        value = getattr(pieces, each.name)
        if each.name in _PARTS:
            value = _PARTS[each.name](_parts_as_json, value)
        elif isinstance(value, Learned):
            value = {"format": value.format, "gaps": dict(value.gaps)}
        fields[each.name] = value
    return json.dumps(fields, ensure_ascii=False)


def chat_format_described(description: str, has_token: Callable[[str], bool]) -> ChatFormat:
    """The renderer of a description.

    Raises:
        LookupError: it is no name of a renderer.
        ValueError: it does not fit the tokenizer, or is no whole set of pieces.
    """
    if not description.startswith("{"):
        return chat_format_named(description, has_token)
    return GenericFormat(_pieces_of(description), has_token)


def _pieces_of(description: str) -> Pieces:
    try:
        fields = json.loads(description)
        if not isinstance(fields, dict):
            raise TypeError("no object")
        for name, value in fields.items():
            if name in _PARTS:
                fields[name] = _PARTS[name](_parts_from_json, value)
            elif name == "calls" and value is not None:
                fields[name] = Learned(
                    format=_text(value["format"]),
                    gaps={_text(key): _text(gap) for key, gap in value["gaps"].items()},
                )
            elif isinstance(value, dict | list):
                raise TypeError(name)
        pieces = Pieces(**fields)
        _check(pieces)
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise ValueError(f"no description of a chat format: {error}") from error
    return pieces


def _check(pieces: Pieces) -> None:
    needed = {"", "s"} | ({"t", "st"} if pieces.listing is not None else set())
    if set(pieces.headers) != needed:
        raise ValueError(f"headers {sorted(pieces.headers)}")
    if pieces.listing is not None and pieces.listing not in LISTINGS:
        raise ValueError(f"listing {pieces.listing!r}")
    for trim in (pieces.answer_trim, pieces.called_trim, pieces.output_trim):
        _TRIMS[trim]
    for name in ("lead", "between_tools", "before_calls", "before_calls_alone", "after_calls"):
        _text(getattr(pieces, name))
    _text(pieces.after_thinking)
    if not all(isinstance(flag, bool) for flag in (pieces.thinking, pieces.opens_reasoning)):
        raise TypeError("thinking")
    if len(pieces.reasoning or (1, 2)) != 2 or len(pieces.outputs or (1, 2, 3)) != 3:
        raise ValueError("reasoning has two pieces, outputs have three")
    for parts, known in _groups(pieces):
        if names := {part.name for part in parts if isinstance(part, Slot)} - known:
            raise ValueError(f"slots {sorted(names)}")


def _parts_as_json(parts: Parts) -> list[list[str]]:
    return [
        ["slot", part.name, part.trim]
        if isinstance(part, Slot)
        else ["token" if part.special else "text", part.text]
        for part in parts
    ]


def _parts_from_json(told: Sequence[Sequence[str]]) -> Parts:
    parts: list[Part] = []
    for kind, text, *trim in told:
        if kind == "slot":
            (side,) = trim
            _TRIMS[side]
            parts.append(Slot(_text(text), side))  # type: ignore[arg-type]
        elif kind in ("text", "token") and not trim:
            parts.append(Segment(_text(text), special=kind == "token"))
        else:
            raise ValueError(f"a part of kind {kind!r}")
    return tuple(parts)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


_One = Callable[[Any], Any]
_PARTS: dict[str, Callable[[_One, Any], Any]] = {
    **dict.fromkeys(
        ("user", "before_answer", "after_answer", "prompt", "prompt_thinking"),
        lambda one, value: one(value),
    ),
    "system": lambda one, value: None if value is None else one(value),
    **dict.fromkeys(
        ("reasoning", "outputs"),
        lambda one, value: None if value is None else tuple(map(one, value)),
    ),
    "headers": lambda one, value: {str(key): one(parts) for key, parts in value.items()},
}
"""Fields made of parts, and how to go over them."""


def opens_thinking(parts: Parts) -> bool:
    """Whether a generation prompt ends inside a think block."""
    texts = [part for part in parts if isinstance(part, Segment) and part.text.strip()]
    return bool(texts) and texts[-1] == Segment(THINK_OPENER, special=True)
