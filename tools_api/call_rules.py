"""Calls as rules of a grammar: what opens, separates and closes them, whatever one looks like.

Knows the frame that ``CallSyntax`` describes, and calls that are one JSON object. Other calls are
``tools_api.raw_call_rules``.

Always true: what the rules let pass is read by the parser of the same syntax as whole calls of
the tools that were added.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tools_api.chat_format import CallSyntax, JsonCalls, to_json
from tools_api.custom_input import CustomFormat
from tools_api.lark_rules import LarkRules, literal
from tools_api.named_calls import NamedCalls
from tools_api.sectioned_calls import SectionedCalls
from tools_api.tools import FunctionTool

_COMBINATIONS = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$ref"}
)
_CALL_NUMBER = "/0|[1-9][0-9]{0,3}/"


class CallRules(ABC):
    """Calls in one syntax, 1 to ``limit`` of them."""

    def __init__(self, lark: LarkRules, syntax: CallSyntax, limit: int) -> None:
        self._lark = lark
        self._frame = syntax
        self._limit = limit
        self._before = self._after = ""
        """What stands between a call and its opener and closer."""
        self._plain_end = ""
        """The rule of what ends plain input, where it is not the closer of all."""
        self._calls: list[str] = []
        """Rules of the calls whose arguments a schema binds."""
        self._plain: list[str] = []
        """Rules of those whose input is plain text up to a special token."""
        self._alone: list[str] = []
        """Rules of those beside which the turn has no other: the server answers them within it."""

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        for i, tool in enumerate(tools):
            if tool.name not in chosen:
                continue
            if tool.custom is not None and tool.plain:
                nested = self._lark.rule(f"input_{i}", f"%lark {{\n{nested_lark(tool.custom)}\n}}")
                body = f"{self._plain_head(tool.name)} {nested} {self._plain_end}"
                self._plain.append(self._lark.rule(f"plain_{i}", body))
            else:
                here = tool.built_in is not None and tool.built_in.runs_here
                rules = self._alone if here else self._calls
                rules.append(self._lark.rule(f"call_{i}", self._call(i, tool)))
        if self._calls:
            self._lark.rule("call", " | ".join(self._calls))
        if self._plain:
            self._lark.rule("plain", " | ".join(self._plain))
        if self._alone:
            self._lark.rule("alone", " | ".join(self._alone))

    @abstractmethod
    def _call(self, i: int, tool: FunctionTool) -> str:
        """The body of the rule for one call."""

    @abstractmethod
    def _plain_head(self, name: str) -> str:
        """The text before the input of a call whose input is plain text."""

    def whole(self) -> str:
        """The rule of a whole call, from its opener on."""
        if self._frame.opener is None:
            return f"({self.after_opener()})"
        return f"{self._lark.special(self._frame.opener)} ({self.after_opener()})"

    def after_opener(self) -> str:
        """Every call, with what opens the further ones and what closes each or all."""
        syntax = self._frame
        before, after = literal(self._before), literal(self._after)
        closer = "" if syntax.closer is None else self._lark.special(syntax.closer)
        if syntax.repeats_opener and syntax.opener is not None:
            ends = [(f"call {after} {closer}", self._calls), (f"plain {closer}", self._plain)]
            each = " | ".join(end for end, rules in ends if rules)
            alone = [f"{before} alone {after} {closer}"] if self._alone else []
            if not each:
                return alone[0]
            each = f"{before} {self._lark.rule('one', each)}"
            opener = f"{literal(syntax.between)} {self._lark.special(syntax.opener)}"
            return " | ".join([f"{each} {self._more(f'{opener} {each}')}", *alone])
        listed = f"call {self._more(f'{literal(syntax.between)} call')} {after} {closer}"
        ways = [(listed, self._calls), (f"plain {closer}", self._plain)]
        ways.append((f"alone {after} {closer}", self._alone))
        return " | ".join(f"{before} {way}" for way, rules in ways if rules)

    def _more(self, again: str) -> str:
        """Up to ``limit - 1`` further calls."""
        several = bool(self._calls) or self._frame.repeats_opener
        if self._limit == 1 or not several:
            return ""
        return f"{self._lark.rule('more', again)}{{0,{self._limit - 1}}}"


class JsonCallRules(CallRules):
    """Calls that are one JSON object; plain input stands behind it."""

    def __init__(self, lark: LarkRules, syntax: JsonCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._before, self._after = syntax.before, syntax.after
        self._key = syntax.arguments_key

    def _call(self, i: int, tool: FunctionTool) -> str:
        schema = self._lark.json_rule(f"arguments_{i}", closed_parameters(tool.parameters))
        opening = f'{{"name": {to_json(tool.name)}, "{self._key}": '
        return f'{json.dumps(opening)} {schema} "}}"'

    def _plain_head(self, name: str) -> str:
        return json.dumps(f'{{"name": {to_json(name)}}}\n')


class NamedCallRules(CallRules):
    """Calls that name their function in front of one JSON object."""

    def __init__(self, lark: LarkRules, syntax: NamedCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._arguments = lark.special(syntax.before_arguments)

    def _call(self, i: int, tool: FunctionTool) -> str:
        schema = self._lark.json_rule(f"arguments_{i}", closed_parameters(tool.parameters))
        return f"{literal(tool.name)} {self._arguments} {schema}"

    def _plain_head(self, name: str) -> str:
        return f"{literal(name)} {self._arguments}"


class SectionedCallRules(CallRules):
    """Calls each of which stands between two tokens of its own."""

    def __init__(self, lark: LarkRules, syntax: SectionedCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._syntax = syntax
        self._plain_end = lark.special(syntax.call_closer)

    def _call(self, i: int, tool: FunctionTool) -> str:
        schema = self._lark.json_rule(f"arguments_{i}", closed_parameters(tool.parameters))
        syntax = self._syntax
        before, after = literal(syntax.before_arguments), literal(syntax.after_arguments)
        return f"{self._head(tool.name)} {before} {schema} {after} {self._plain_end}"

    def _plain_head(self, name: str) -> str:
        line = "" if self._syntax.word is None else literal("\n")
        return f"{self._head(name)} {line}"

    def _head(self, name: str) -> str:
        syntax, special = self._syntax, self._lark.special
        number = f'":" {self._lark.terminal(_CALL_NUMBER, "NUMBER")}' if syntax.numbered else ""
        named = f"{literal(syntax.before_name + name)} {number}"
        opener, separator = special(syntax.call_opener), special(syntax.separator)
        if syntax.word is None:
            return f"{opener} {named} {separator}"
        return f"{opener} {literal(syntax.word)} {separator} {named}"


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
