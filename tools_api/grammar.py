"""Constraint on a turn's output, as text.

``GrammarSpec`` is made here, beside the parser of the same syntax, and compiled by
``runtime.grammar.state``. It is hashable, so compiled grammars are cached by value.

Output under a grammar has one spelling: separators are ", " and ": ", no other whitespace,
properties in the order of the schema. This doubles the share of tokens that the grammar
forces and leaves a model no room to ramble. A custom tool's own grammar binds plain text behind
the call's object: up to a special token, so that no text is taken for its end.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tools_api import errors
from tools_api.chat_format import (
    THINK_CLOSER,
    ChatFormat,
    JsonCalls,
    TemplateOptions,
    to_json,
)
from tools_api.custom_input import CustomFormat
from tools_api.exact_json import written
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import TextFormat
from tools_api.schema_dialect import dialect
from tools_api.tools import FunctionTool, ToolChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar and the point of the output at which it starts to bind.

    The output runs through up to three phases: free until ``after`` was emitted, then free
    until ``trigger`` was emitted, then bound by ``lark`` until the end of the turn. A phase
    whose token is None is skipped; with both None the grammar binds from the first token.
    Once bound the only way to end the turn is an accepting state plus end-of-turn.
    """

    lark: str
    """llguidance Lark text, for what follows the trigger token, the trigger itself excluded.
    Special tokens of the model stand in rules of their own, one a line
    (``special_0: <tool_call>``); see ``resolve_specials``."""
    after: str | None = None
    """Special token that must pass first, e.g. ``</think>``."""
    trigger: str | None = None
    """Special token that opens a call in free text, e.g. ``<tool_call>``."""
    free_text: bool = False
    """``lark`` also allows any text that does not begin with ``CALL_BRACE``, in place of a call."""

    @property
    def binds_all(self) -> bool:
        """Nothing of the output is free but reasoning."""
        return self.trigger is None and not self.free_text

    @property
    def reasons_first(self) -> bool:
        """All that comes before ``after`` is reasoning, whether the model opens it or not: the rest
        is bound, and room may be left for no more than the tag."""
        return self.after is not None and self.trigger is None


JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_COMBINATIONS = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$ref"}
)
# A text that is no call: anything that does not begin like an object.
_FREE_TEXT = r"/([^{\s](?s:.*))?/"


def grammar_for(
    chat_format: ChatFormat,
    tools: Sequence[FunctionTool],
    tool_choice: ToolChoice,
    *,
    parallel_tool_calls: bool,
    text_format: TextFormat,
    options: TemplateOptions,
    lenient: bool = False,
    max_calls: int = DEFAULT_LIMITS.max_parallel_calls,
) -> GrammarSpec | None:
    """What the output of a turn must look like; None if it is free.

    A free output may still not contain a call where none is allowed: its special tokens are
    banned by ``ChatFormat.output_specials``.

    Args:
        lenient: leave out what would be refused (``schema_dialect.REFUSED``).

    Raises:
        ApiError: a call is wanted of a model that has no syntax for it.
    """
    callable_tools = tool_choice.callable(tuple(tools))
    if tools and chat_format.calls is None:
        raise errors.unsupported_parameter("tools", "this model cannot call tools")
    lark = _Lark(lenient)
    value = None
    if text_format.type != "text":
        value = lark.json_rule("value", text_format.json_schema or {"type": "object"})
    if not callable_tools or chat_format.calls is None:
        return None if value is None else _bound(lark, value, chat_format, options)
    syntax = chat_format.calls
    if not isinstance(syntax, JsonCalls):
        return None
    limit = max_calls if parallel_tool_calls and syntax.parallel and not tool_choice.named else 1
    calls = _CallRules(lark, syntax, limit)
    calls.add_tools(tools, frozenset(tool.name for tool in callable_tools))
    if tool_choice.mode == "required":
        return _bound(lark, calls.whole(), chat_format, options)
    if value is not None:
        return _bound(lark, f"{calls.whole()} | {value}", chat_format, options)
    if syntax.opener is None:
        lark.rule("TEXT", _FREE_TEXT)
        return _bound(lark, f"{calls.whole()} | TEXT", chat_format, options, free_text=True)
    return GrammarSpec(
        lark=lark.text(calls.after_opener()),
        after=THINK_CLOSER if chat_format.thinking and options.thinking else None,
        trigger=syntax.opener,
    )


def resolve_specials(lark: str, special_id: Callable[[str], int | None]) -> str:
    """A spec's ``lark`` with the special tokens as ids (``special_0: <[151657]>``).

    Lark can name only tokens that are written in angle brackets; ids go for any.

    Raises:
        LookupError: the tokenizer has no such token; the argument is its name.
    """

    def resolved(rule: re.Match[str]) -> str:
        token = special_id(rule[2])
        if token is None:
            raise LookupError(rule[2])
        return f"{rule[1]}<[{token}]>"

    return re.sub(r"^(special_\d+: )(.+)$", resolved, lark, flags=re.MULTILINE)


def param_at(lark: str, line: int, tools: Sequence[FunctionTool] = ()) -> str | None:
    """The request's parameter whose schema stands in that line (from 1) of a spec's
    ``lark``; None if it is no schema's line.

    Args:
        tools: those of the request, if some stand elsewhere in it than in their order.
    """
    lines = lark.split("\n")
    rule = re.match(r"(value|arguments_(\d+)): %json ", lines[line - 1] if line else "")
    if rule is None:
        return None
    if rule[2] is None:
        return "text.format.schema"
    return f"{place_of(tools, int(rule[2]))}.parameters"


def place_of(tools: Sequence[FunctionTool], index: int) -> str:
    """Path of a tool in the request."""
    place = tools[index].place if index < len(tools) else ""
    return place or f"tools[{index}]"


def closed_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` without room for undeclared arguments, where it can be said for certain.

    What it accepts is accepted by ``schema`` too. Left as it is when keys other than
    ``properties`` may declare arguments, or when it requires an undeclared one.
    """
    if _COMBINATIONS & schema.keys():
        return schema
    closed = {"type": "object", **schema, "additionalProperties": False}
    declared = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(declared, dict) or not isinstance(required, list):
        return schema  # whoever compiles it says what is wrong
    if not all(isinstance(name, str) and name in declared for name in required):
        return schema
    return closed


def nested_lark(custom: CustomFormat) -> str:
    """A custom tool's grammar as it stands inside ``%lark {}``. Indented, so that no line of it is
    taken for one of the rules around it."""
    assert custom.definition is not None
    if custom.syntax == "regex":
        pattern = re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", custom.definition.removeprefix("^"))
        pattern = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)
        return f"  start: /{pattern}/" if pattern else '  start: ""'
    lines = custom.definition.replace("\r\n", "\n").split("\n")
    return "\n".join(f"  {line}" for line in lines)


def _bound(
    lark: "_Lark",
    start: str,
    chat_format: ChatFormat,
    options: TemplateOptions,
    *,
    free_text: bool = False,
) -> GrammarSpec:
    if chat_format.thinking and options.thinking:
        text = lark.text(f'"\\n\\n" ({start})')
        return GrammarSpec(lark=text, after=THINK_CLOSER, free_text=free_text)
    return GrammarSpec(lark=lark.text(start), free_text=free_text)


class _Lark:
    """Collects rules; every special token and every schema has a line of its own."""

    def __init__(self, lenient: bool) -> None:
        self._lenient = lenient
        # Alternatives that could hold together are checked when the output is finished.
        self._style: dict[str, Any] = JSON_STYLE | {"coerce_one_of": True}
        if lenient:
            self._style["lenient"] = True
        self._rules: dict[str, str] = {}
        self._specials: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def json_rule(self, name: str, schema: dict[str, Any]) -> str:
        schema = dialect(schema, lenient=self._lenient).schema
        return self.rule(
            name, "%json " + written(schema | {"x-guidance": self._style}, ensure_ascii=True)
        )

    def special(self, token: str) -> str:
        if token not in self._specials:
            name = f"special_{len(self._specials)}"
            self._specials[token] = self.rule(name, token)
        return self._specials[token]

    def text(self, start: str) -> str:
        rules = {"start": start} | self._rules
        return "".join(f"{name}: {body}\n" for name, body in rules.items())


class _CallRules:
    """Calls in one family's syntax, 1 to ``limit`` of them."""

    def __init__(self, lark: _Lark, syntax: JsonCalls, limit: int) -> None:
        self._lark = lark
        self._syntax = syntax
        self._limit = limit
        self._objects: list[str] = []
        """Rules of the calls that are one JSON object."""
        self._plain: list[str] = []
        """Rules of those whose input stands behind the object as plain text."""

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        for i, tool in enumerate(tools):
            if tool.name not in chosen:
                continue
            if tool.custom is not None and tool.plain:
                self._add_plain(i, tool.name, tool.custom)
            else:
                self._add_object(i, tool)
        if self._objects:
            self._lark.rule("call", " | ".join(self._objects))
        if self._plain:
            self._lark.rule("plain", " | ".join(self._plain))

    def _add_object(self, i: int, tool: FunctionTool) -> None:
        schema = self._lark.json_rule(f"arguments_{i}", closed_parameters(tool.parameters))
        opening = f'{{"name": {to_json(tool.name)}, "{self._syntax.arguments_key}": '
        self._objects.append(self._lark.rule(f"call_{i}", f'{json.dumps(opening)} {schema} "}}"'))

    def _add_plain(self, i: int, name: str, custom: CustomFormat) -> None:
        head = json.dumps(f'{{"name": {to_json(name)}}}\n')
        nested = self._lark.rule(f"input_{i}", f"%lark {{\n{nested_lark(custom)}\n}}")
        self._plain.append(self._lark.rule(f"plain_{i}", f"{head} {nested}"))

    def whole(self) -> str:
        """From the opener on."""
        if self._syntax.opener is None:
            return f"({self.after_opener()})"
        return f"{self._lark.special(self._syntax.opener)} ({self.after_opener()})"

    def after_opener(self) -> str:
        """Every call, with what opens the further ones and what closes each or all."""
        syntax = self._syntax
        before, after = self._text(syntax.before), self._text(syntax.after)
        closer = "" if syntax.closer is None else self._lark.special(syntax.closer)
        if syntax.repeats_opener and syntax.opener is not None:
            ends = [(f"call {after} {closer}", self._objects), (f"plain {closer}", self._plain)]
            each = " | ".join(end for end, rules in ends if rules)
            each = f"{before} {self._lark.rule('one', each)}"
            opener = f"{self._text(syntax.between)} {self._lark.special(syntax.opener)}"
            return f"{each} {self._more(f'{opener} {each}')}"
        listed = f"call {self._more(f'{self._text(syntax.between)} call')} {after} {closer}"
        ways = [(listed, self._objects), (f"plain {closer}", self._plain)]
        return " | ".join(f"{before} {way}" for way, rules in ways if rules)

    def _more(self, again: str) -> str:
        """Up to ``limit - 1`` further calls."""
        several = bool(self._objects) or self._syntax.repeats_opener
        if self._limit == 1 or not several:
            return ""
        return f"{self._lark.rule('more', again)}{{0,{self._limit - 1}}}"

    @staticmethod
    def _text(text: str) -> str:
        return json.dumps(text) if text else ""
