"""Gemma 4: turns between ``<|turn>`` and ``<turn|>``, functions and calls in a syntax of its own.

Calls and their outputs stand inside the model's turn, which goes on behind them: the text of input
items that ends with one of these ends inside it. A model that waits for an output says so itself,
with the token that opens one.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tools_api.chat_format import (
    AssistantTurn,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    Turn,
    role_of,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.quoted_calls import QuotedCalls, in_order, write_quoted, write_quoted_calls
from tools_api.tools import FunctionTool

_TURN, _END, _THINK = "<|turn>", "<turn|>", "<|think|>"
_CHANNEL, _CHANNEL_END, _LABEL = "<|channel>", "<channel|>", "thought\n"
_TOOL, _TOOL_END = "<|tool>", "<tool|>"
_OUTPUT, _OUTPUT_END = "<|tool_response>", "<tool_response|>"
_QUOTE = '<|"|>'
_CALLS = QuotedCalls(
    opener="<|tool_call>",
    closer="<tool_call|>",
    before_name="call:",
    quote=_QUOTE,
    ends_with=_OUTPUT,
)
_KEYWORDS = frozenset({"description", "type", "properties", "required", "nullable"})
TOKENS = (
    *("<bos>", _TURN, _END, _THINK, _CHANNEL, _CHANNEL_END, _TOOL, _TOOL_END),
    *(_OUTPUT, _OUTPUT_END, *sorted(_CALLS.specials)),
)
"""The special tokens that conversations are written with."""


class Gemma4(ChatFormat):
    """The larger models (12B, 26B-A4B, 31B): where nothing is to be thought an empty thought opens
    the answer."""

    name = "Gemma 4"
    thinking = True
    think_opener = _CHANNEL
    think_closer = _CHANNEL_END
    think_label = _LABEL
    after_thinking = ""
    reasons_inside = True
    opens_output = _OUTPUT
    _empty_thought = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, (_END, _OUTPUT, "<eos>")))
        self.calls = _CALLS

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn: whether to think, the instructions, the functions; none if it would say
        nothing."""
        out = self._writer()
        out.special("<bos>")
        if instructions is None and not tools and not options.thinking:
            return out.segments
        self._open(out, "system")
        if options.thinking:
            out.special(_THINK)
            out.text("\n")
        out.text((instructions or "").strip())
        for tool in tools:
            out.special(_TOOL)
            _declare(out, tool)
            out.special(_TOOL_END)
        self._close(out)
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
        """Outputs go on in a model's turn that was cut short; one that was closed is opened again
        for them."""
        out, grouped = self._writer(), list(turns(items))
        inside = open_output and _are_outputs(grouped[:1])
        if open_output and not inside:
            self._close(out)
        elif not first and after_output and not open_output:
            out.text("\n")
        self._write(out, grouped, inside=inside, opened=False)
        return out.segments

    def ends_inside(self, items: Sequence[Item], *, before: bool) -> bool:
        """See ``ChatFormat``: behind calls and their outputs."""
        grouped = list(turns(items))
        if not grouped:
            return before
        last = grouped[-1]
        return _are_outputs([last]) or (isinstance(last, AssistantTurn) and bool(last.calls))

    def items_inside(
        self, items: Sequence[Item], *, opened: bool, options: TemplateOptions
    ) -> list[Segment]:
        """The first output stands behind the token that the model has opened it with."""
        out, grouped = self._writer(), list(turns(items))
        if opened and not grouped:
            self._close(out)
        self._write(out, grouped, inside=True, opened=opened)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the model's turn."""
        out = self._writer()
        self._open(out, "model")
        if self._empty_thought and not options.thinking:
            self._thought(out, "")
        return out.segments

    def prompt_inside(self, options: TemplateOptions) -> list[Segment]:
        """Behind outputs a model that is to think begins with it."""
        out = self._writer()
        if options.thinking:
            out.special(_CHANNEL)
            out.text(_LABEL)
        return out.segments

    def _write(
        self, out: SegmentWriter, grouped: Sequence[Turn], *, inside: bool, opened: bool
    ) -> None:
        """
        Args:
            inside: the text before ends inside the model's turn.
            opened: it ends with what opens an output.
        """
        names: dict[str, str] = {}
        for turn in grouped:
            match turn:
                case Message():
                    if inside:
                        self._close(out)
                    self._open(out, role_of(turn))
                    out.text(turn.text.strip())
                    self._close(out)
                    inside = False
                case AssistantTurn():
                    names |= {call.call_id: call.full_name for call in turn.calls}
                    if opened:
                        self._close(out)
                    if opened or not inside:
                        self._open(out, "model")
                    self._assistant(out, turn)
                    inside = bool(turn.calls)
                case outputs:
                    if not inside:
                        self._open(out, "model")
                    for i, output in enumerate(outputs):
                        if i or not opened:
                            out.special(_OUTPUT)
                        name = output.name or names.get(output.call_id) or "unknown"
                        self._output(out, output, name)
                    inside = True
            opened = False

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if turn.reasoning is not None:
            self._thought(out, turn.reasoning + "\n")
        out.text((turn.text or "").strip())
        write_quoted_calls(out, _CALLS, turn.calls)
        if not turn.calls:
            self._close(out)

    def _output(self, out: SegmentWriter, output: FunctionCallOutput, name: str) -> None:
        out.text(f"response:{name}")
        write_quoted(out, {"value": output.output}, _QUOTE)
        out.special(_OUTPUT_END)

    def _thought(self, out: SegmentWriter, text: str) -> None:
        out.special(_CHANNEL)
        out.text(_LABEL + text)
        out.special(_CHANNEL_END)

    def _open(self, out: SegmentWriter, role: str) -> None:
        out.special(_TURN)
        out.text(role + "\n")

    def _close(self, out: SegmentWriter) -> None:
        out.special(_END)
        out.text("\n")


class Gemma4E(Gemma4):
    """The small models (E2B, E4B): nothing opens an answer without a thought."""

    _empty_thought = False


def _are_outputs(grouped: Sequence[Turn]) -> bool:
    return any(isinstance(turn, list) for turn in grouped)


# Functions, as the template declares them: what it leaves out of a schema is left out


def _declare(out: SegmentWriter, tool: FunctionTool) -> None:
    out.text(f"declaration:{tool.name}{{description:")
    _string(out, tool.shown_description or "")
    schema = tool.parameters
    if schema:
        out.text(",parameters:{")
        parts: list[Callable[[], None]] = []
        if schema.get("properties"):
            parts.append(lambda: _properties(out, schema["properties"]))
        if schema.get("required"):
            parts.append(lambda: _required(out, schema["required"]))
        if schema.get("type"):
            parts.append(lambda: _type(out, schema["type"]))
        _joined(out, parts)
        out.text("}")
    out.text("}")


def _joined(out: SegmentWriter, parts: Sequence[Callable[[], None]]) -> None:
    for i, part in enumerate(parts):
        out.text("," if i else "")
        part()


def _properties(out: SegmentWriter, properties: Any, *, keywords: bool = True) -> None:
    """``keywords``: names that are keywords of a schema count as properties."""
    out.text("properties:{")
    listed = in_order(properties) if isinstance(properties, dict) else []
    shown = [(key, value) for key, value in listed if keywords or key not in _KEYWORDS]
    for i, (key, value) in enumerate(shown):
        out.text(f"{',' if i else ''}{key}:{{")
        _property(out, value if isinstance(value, dict) else {})
        out.text("}")
    out.text("}")


def _property(out: SegmentWriter, schema: dict[str, Any]) -> None:
    kind = str(schema.get("type", "")).upper()
    parts: list[Callable[[], None]] = []
    if description := schema.get("description"):
        parts.append(lambda: _member(out, "description", str(description)))
    if kind == "STRING" and (listed := schema.get("enum")):
        parts.append(lambda: _member(out, "enum", listed))
    items = schema.get("items")
    if kind == "ARRAY" and isinstance(items, dict) and items:
        parts.append(lambda: _items(out, items))
    if schema.get("nullable"):
        parts.append(lambda: out.text("nullable:true"))
    if kind == "OBJECT":
        inner = schema.get("properties")
        plain = isinstance(inner, dict)
        parts.append(lambda: _properties(out, inner if plain else schema, keywords=plain))
        if required := schema.get("required"):
            parts.append(lambda: _required(out, required))
    parts.append(lambda: _type(out, schema.get("type", "")))
    _joined(out, parts)


def _items(out: SegmentWriter, schema: dict[str, Any]) -> None:
    out.text("items:{")
    shown = [(key, value) for key, value in in_order(schema) if value is not None]
    for i, (key, value) in enumerate(shown):
        out.text("," if i else "")
        match key, value:
            case "properties", _:
                _properties(out, value)
            case "required", list():
                _required(out, value)
            case "type", str():
                _type(out, value)
            case "type", list():
                _member(out, key, [str(each).upper() for each in value])
            case _:
                _member(out, key, value)
    out.text("}")


def _required(out: SegmentWriter, names: Any) -> None:
    out.text("required:[")
    for i, name in enumerate(names if isinstance(names, list) else ()):
        out.text("," if i else "")
        _string(out, str(name))
    out.text("]")


def _type(out: SegmentWriter, kind: Any) -> None:
    _member(out, "type", str(kind).upper())


def _member(out: SegmentWriter, key: str, value: Any) -> None:
    out.text(f"{key}:")
    write_quoted(out, value, _QUOTE, quoted_keys=True)


def _string(out: SegmentWriter, text: str) -> None:
    write_quoted(out, text, _QUOTE)
