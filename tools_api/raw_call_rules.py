"""Calls with raw text between tags as rules of a grammar.

Each argument is a rule of its own: its name, and a value that is text or JSON as its schema has
it. Arguments come in any order, each once and all that are required, up to eight of them; where
there are more, so many at a time in the schema's order.

Knows ``RawCalls`` and schemas. Always true: see ``tools_api.call_rules``; no value holds the tag
that closes it.
"""

import re
from collections.abc import Sequence
from typing import Any

from tools_api import errors
from tools_api.argument_orders import Way, group_size, object_ways, ordered
from tools_api.call_rules import CallRules, closed_parameters
from tools_api.exact_json import written
from tools_api.lark_rules import LarkRules, Tag, containing, literal, regex_escaped
from tools_api.raw_calls import Delimiter, RawCalls
from tools_api.raw_schemas import FREE, document_of, parts_of, string_schemas
from tools_api.raw_values import types_of
from tools_api.schema_dialect import REFUSED
from tools_api.tools import FunctionTool


class RawCallRules(CallRules):
    """Calls in one syntax of tags."""

    def __init__(self, lark: LarkRules, syntax: RawCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._syntax = syntax
        self._before = syntax.before
        self._blocks = 0
        self._group = 1

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        self._group = group_size(sum(tool.name in chosen for tool in tools))
        super().add_tools(tools, chosen)

    def _plain_head(self, name: str) -> str:
        syntax = self._syntax
        gap = syntax.name_gap if syntax.after_name.text else "\n"
        return self._joined((syntax.before_name, name, syntax.after_name, gap))

    def _call(self, i: int, tool: FunctionTool) -> str:
        syntax, self._blocks = self._syntax, 0
        root = self._lark.in_dialect(closed_parameters(tool.parameters))
        ways = object_ways(root)
        if not ways:
            raise errors.unsupported_parameter(
                f"{tool.place or f'tools[{i}]'}.parameters",
                "this model writes each argument by its name; the schema has to be one of an "
                "object whose properties are plain to see",
            )
        for closing in (
            (syntax.padding, syntax.after_value, syntax.value_gap),
            (syntax.end, syntax.end_gap),
        ):
            if tag := _tag(closing):
                self._lark.closes(tag)
        bodies = [self._arguments(i, n, tool, root, way) for n, way in enumerate(ways)]
        head = self._joined((syntax.before_name, tool.name, syntax.after_name, syntax.name_gap))
        end = self._joined((syntax.end, syntax.end_gap))
        return f"{head} ({' | '.join(bodies)}) {end}"

    def _arguments(self, i: int, n: int, tool: FunctionTool, root: Any, way: Way) -> str:
        prefix = f"a{i}" if n == 0 else f"a{i}_{n}"
        named: list[tuple[str, bool]] = []
        for key in sorted(way.properties, key=lambda key: key not in way.required):
            if way.properties[key] is not False:
                self._lark.opens(_tag(self._key_pieces(key)))
        for key, schema in way.properties.items():
            needed = key in way.required
            if schema is False or (not needed and not types_of(root, schema)):
                continue  # no value satisfies it
            self._refuse_key(i, tool, key)
            body = f"{self._joined(self._key_pieces(key))} {self._value(i, root, schema)}"
            rule = self._lark.rule(f"{prefix}k{len(named)}", body)
            named.append((rule, key in way.required))
        more = ""
        if way.more is not False:
            body = f"{self._other_key(way.properties)} {self._value(i, root, way.more)}"
            more = self._lark.rule(f"{prefix}more", body)
        return ordered(self._lark, prefix, named, more=more, group=self._group)

    def _refuse_key(self, i: int, tool: FunctionTool, key: str) -> None:
        syntax = self._syntax
        closing = syntax.after_key.text
        if not key or (not syntax.after_key.special and closing in key) or "\n" in key:
            raise errors.unsupported_parameter(
                f"{tool.place or f'tools[{i}]'}.parameters",
                f"this model cannot write the name {key!r} between its tags",
            )

    def _key_pieces(self, key: str) -> tuple[str | Delimiter, ...]:
        syntax = self._syntax
        return (
            syntax.before_key,
            key,
            syntax.after_key,
            syntax.key_gap,
            syntax.before_value,
            syntax.padding,
        )

    def _other_key(self, known: dict[str, Any]) -> str:
        syntax = self._syntax
        before = self._joined((syntax.before_key,))
        after = self._joined(
            (syntax.after_key, syntax.key_gap, syntax.before_value, syntax.padding)
        )
        excluded = [f"~/{regex_escaped(key)}/" for key in known]
        closing = "" if syntax.after_key.special else regex_escaped(syntax.after_key.text[:1])
        name = self._lark.terminal(" & ".join([f"/[^\\n{closing}]+/", *excluded]), "NAME")
        return f"{before} {name} {after}"

    def _value(self, i: int, root: Any, schema: Any) -> str:
        """A value and the tag behind it."""
        syntax = self._syntax
        schema = schema if isinstance(schema, dict) else {}
        if _is_refused(schema):
            name = f"arguments_{i}_{self._blocks}"
            return self._lark.dialect_rule(name, document_of(root, schema))
        parts = parts_of(root, schema, python=syntax.python_words)
        ways: list[str] = []
        closing = (syntax.padding, syntax.after_value, syntax.value_gap)
        if parts.text is not None:
            for string in string_schemas(root, schema):
                self._lark.has_string(string)
            ways.append(self._text(parts.text, may_be_empty=parts.may_be_empty))
        if parts.json is not None:
            name = f"arguments_{i}_{self._blocks}"
            self._blocks += 1
            block = self._lark.dialect_rule(name, document_of(root, parts.json))
            ways.append(f"{block} {self._joined(closing)}")
        if not ways:
            raise errors.unsupported_parameter(
                f"tools[{i}].parameters", "no value satisfies an argument that has to come"
            )
        return f"({' | '.join(ways)})"

    def _text(self, body: str, *, may_be_empty: bool) -> str:
        """Text and the tag behind it: one terminal where the tag is text too, since text ends
        where the tag begins and nowhere else."""
        syntax = self._syntax
        tag = syntax.after_value
        parts = [] if body == FREE else [f"({body})"]
        if not tag.special:
            closed = " & ".join([*(parts or [FREE]), f"~{containing(tag.text)}"])
            ending = literal(syntax.padding + tag.text + syntax.value_gap)
            return self._lark.terminal(f"({closed}) {ending}")
        written = " & ".join([*parts, "/(?s:.+)/"])
        some = self._lark.terminal(written)
        ending = self._joined((syntax.padding, tag, syntax.value_gap))
        return f"{some}{'?' if may_be_empty else ''} {ending}"

    def _joined(self, pieces: Sequence[str | Delimiter]) -> str:
        """Texts and tags as one run of literals and special tokens."""
        run: list[str] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, Delimiter) and piece.special:
                run += [literal(text), self._lark.special(piece.text)]
                text = ""
            else:
                text += piece.text if isinstance(piece, Delimiter) else piece
        return " ".join(part for part in (*run, literal(text)) if part)


def _tag(pieces: Sequence[str | Delimiter]) -> Tag:
    """Texts and special tokens, neighbouring texts as one."""
    tag: list[tuple[str, bool]] = []
    for piece in pieces:
        special = isinstance(piece, Delimiter) and piece.special
        text = piece.text if isinstance(piece, Delimiter) else piece
        if tag and not special and not tag[-1][1]:
            text = tag.pop()[0] + text
        if text:
            tag.append((text, special))
    return tuple(tag)


def _is_refused(schema: dict[str, Any]) -> bool:
    """Whether the library will refuse it by name."""
    return any(re.search(rf'"{re.escape(key)}":', written(schema)) for key in REFUSED)
