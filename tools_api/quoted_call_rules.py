"""Calls with strings between special tokens, as rules of a grammar.

A schema becomes rules of this syntax, whatever is inside what: objects and lists are taken apart,
numbers and the like stay a schema for the library's JSON, which writes them alike. The arguments
of a call come in any order, as with other formats that name each; those of an object inside in
alphabetical order, in which the templates write them.

Knows ``QuotedCalls`` and schemas. Always true: see ``tools_api.call_rules``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tools_api import errors
from tools_api.argument_orders import Way, group_size, object_ways, ordered
from tools_api.call_rules import CallRules, closed_parameters
from tools_api.exact_json import written
from tools_api.lark_rules import LarkRules, literal, regex_escaped
from tools_api.quoted_calls import QuotedCalls, in_order
from tools_api.raw_schemas import (
    FREE,
    accepts_empty,
    branches,
    document_of,
    restricted,
    string_schemas,
    strings_of,
)
from tools_api.raw_values import SCALARS, types_of
from tools_api.schema_lists import has_refused, list_form, listed_values, only_empty, times
from tools_api.schema_references import resolved
from tools_api.tools import FunctionTool

_NAME = r"""/[^\s:,{}\[\]"\x00-\x1f]([^:,{}\[\]"\x00-\x1f]*[^\s:,{}\[\]"\x00-\x1f])?/"""
_NOT_IN_KEYS = frozenset(':,{}[]"\n')
_MAX_VALUES = 1000
"""Different schemas in the parameters of one tool."""


class QuotedCallRules(CallRules):
    """Calls whose strings stand between special tokens."""

    def __init__(self, lark: LarkRules, syntax: QuotedCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._syntax = syntax
        self._quote = lark.special(syntax.quote)
        self._group = 1

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        self._group = group_size(sum(tool.name in chosen for tool in tools))
        closer, end = self._syntax.closer, self._syntax.ends_with
        last = tuple((name, True) for name in (closer, end) if name is not None)
        for tag in (((self._syntax.quote, True),), (("}", False),), (("]", False),), last):
            self._lark.closes(tag)
        super().add_tools(tools, chosen)

    def after_opener(self) -> str:
        """Every call, and what ends the turn behind them."""
        calls = super().after_opener()
        if self._syntax.ends_with is None:
            return calls
        return f"({calls}) {self._lark.special(self._syntax.ends_with)}"

    def _plain_head(self, name: str) -> str:
        return literal(f"{self._syntax.before_name}{name}\n")

    def _call(self, i: int, tool: FunctionTool) -> str:
        root = self._lark.in_dialect(closed_parameters(tool.parameters))
        place = f"{tool.place or f'tools[{i}]'}.parameters"
        head = literal(f"{self._syntax.before_name}{tool.name}")
        if has_refused(root):
            return f"{head} {self._lark.dialect_rule(f'arguments_{i}', root)}"
        values = _Values(self._lark, self._quote, i, place, root)
        ways = object_ways(root)
        if not ways:
            raise values.refusal(
                "this model writes each argument by its name; the schema has to be one of an "
                "object whose properties are plain to see"
            )
        return f"{head} {values.object_of(ways, self._group)}"


class _Values:
    """The rules for values of one tool's parameters."""

    def __init__(self, lark: LarkRules, quote: str, i: int, place: str, root: Any) -> None:
        self._lark = lark
        self._quote = quote
        self._tool = i
        self._place = place
        self._root = root
        self._known: dict[str, str] = {}
        """The rules by the JSON of their schemas, which may refer to themselves."""
        self._objects = 0

    def refusal(self, why: str) -> errors.ApiError:
        """The tool's parameters cannot be written."""
        return errors.unsupported_parameter(self._place, why)

    def object_of(self, ways: Sequence[Way], group: int) -> str:
        """An object of one of the forms; so many of its members at a time in any order."""
        bodies = [self._members(way, group) for way in ways]
        return f'"{{" ({" | ".join(bodies)}) "}}"'

    def _members(self, way: Way, group: int) -> str:
        prefix, self._objects = f"o{self._tool}_{self._objects}", self._objects + 1
        named: list[tuple[str, bool]] = []
        for key, schema in in_order(way.properties):
            needed = key in way.required
            if schema is False or (not needed and not types_of(self._root, schema)):
                continue  # no value satisfies it
            if not key or key != key.strip() or _NOT_IN_KEYS & set(key):
                raise self.refusal(f"this model cannot write the name {key!r} in front of a value")
            if needed:
                self._lark.opens(((f"{key}:", False),))
            body = f"{literal(f'{key}:')} {self.value(schema)}"
            named.append((self._lark.rule(f"{prefix}k{len(named)}", body), needed))
        more = ""
        if way.more is not False:
            body = f"{self._other_name(way.properties)} {self.value(way.more)}"
            more = self._lark.rule(f"{prefix}more", body)
        return ordered(self._lark, prefix, named, more=more, group=group, separator='","')

    def _other_name(self, known: Mapping[str, Any]) -> str:
        others = [_NAME, *(f"~/{regex_escaped(key)}/" for key in known)]
        return f'{self._lark.terminal(" & ".join(others), "NAME")} ":"'

    def value(self, schema: Any) -> str:
        """The rule for values of a schema, which is a part of the document."""
        schema = {} if schema is True else schema
        if not isinstance(schema, dict):
            raise self.refusal("no value satisfies a part that has to come")
        text = written(schema)
        if text in self._known:
            return self._known[text]
        if len(self._known) >= _MAX_VALUES:
            raise self.refusal(f"more than {_MAX_VALUES} different parts cannot be told apart")
        name = f"v{self._tool}_{len(self._known)}"
        self._known[text] = name
        ways = [*self._strings(schema), *self._scalars(schema), *self._listed(schema)]
        if not ways:
            raise self.refusal("no value satisfies a part that has to come")
        return self._lark.rule(name, " | ".join(ways))

    def _strings(self, schema: dict[str, Any]) -> list[str]:
        if "string" not in types_of(self._root, schema):
            return []
        body = strings_of(self._root, schema)
        if body is None:
            return []
        for string in string_schemas(self._root, schema):
            self._lark.has_string(string)
        quote, empty = self._quote, accepts_empty(self._root, schema)
        if empty and only_empty(resolved(self._root, schema)):
            return [f"{quote} {quote}"]
        conditions = [] if body == FREE else [f"({body})"]
        some = self._lark.terminal(" & ".join([*conditions, "/(?s:.+)/"]))
        return [f"{quote} {some}{'?' if empty else ''} {quote}"]

    def _scalars(self, schema: dict[str, Any]) -> list[str]:
        """Numbers, booleans and null, as the library writes them in JSON."""
        part = restricted(self._root, schema, types_of(self._root, schema) & SCALARS)
        if part is None:
            return []
        name = f"arguments_{self._tool}_{len(self._known)}"
        return [self._lark.dialect_rule(name, document_of(self._root, part))]

    def _listed(self, schema: dict[str, Any]) -> list[str]:
        """Objects and lists."""
        ways: list[str] = []
        types = types_of(self._root, schema)
        for kind in sorted(types & {"object", "array"}):
            part = restricted(self._root, schema, frozenset({kind}))
            if part is None:
                continue
            for branch in branches(self._root, part, 0):
                if kind not in types_of(self._root, branch):
                    continue
                values = listed_values(self._root, branch)
                if values is not None:
                    of_kind = (dict if kind == "object" else list,)
                    ways += [self._literal(each) for each in values if isinstance(each, of_kind)]
                elif kind == "array":
                    ways.append(self._list(branch))
                else:
                    ways.append(self._object(branch))
        return ways

    def _object(self, schema: dict[str, Any]) -> str:
        ways = object_ways(self._root, schema)
        if not ways:
            raise self.refusal(
                "this model writes each member by its name; the properties of an object inside "
                "have to be plain to see"
            )
        return self.object_of(ways, 1)

    def _list(self, schema: dict[str, Any]) -> str:
        form = list_form(self._root, schema)
        if form is None:
            raise self.refusal("the items of a list have to be plain to see")
        if form.most is not None and form.most < form.least:
            raise self.refusal("no list has so many items")
        first = [self.value(each) for each in form.first]
        return f'"[" {self._items(first, form.rest, form.least, form.most)} "]"'

    def _items(self, first: Sequence[str], rest: Any, least: int, most: int | None) -> str:
        """What stands between the brackets."""
        if most == 0:
            return ""
        left = None if most is None else most - len(first)
        behind, other = "", "" if rest is False or left == 0 else self.value(rest)
        if other and first:
            behind = f'("," {other}){times(max(least - len(first), 0), left)}'
        elif other:
            behind = f'{other} ("," {other}){times(max(least - 1, 0), left and left - 1)}'
        for at in range(len(first) - 1, -1, -1):
            separated = '"," ' if at else ""
            body = f"{separated}{first[at]} {behind}"
            behind = body if at < least or at == 0 else f"({body})?"
        return behind if least or not behind else f"({behind})?"

    def _literal(self, value: Any) -> str:
        """One value as it is."""
        match value:
            case str():
                return f"{self._quote} {literal(value)} {self._quote}"
            case dict():
                if any(not key or key != key.strip() or _NOT_IN_KEYS & set(key) for key in value):
                    raise self.refusal("this model cannot write a name in front of a value")
                members = [f"{literal(f'{k}:')} {self._literal(v)}" for k, v in in_order(value)]
                return '"{" ' + ' "," '.join(members) + ' "}"'
            case list():
                return '"[" ' + ' "," '.join(map(self._literal, value)) + ' "]"'
        return literal(written(value))
