"""Calls whose tags are named after keys, as rules of a grammar.

A schema becomes rules of this syntax, whatever is inside what: objects and arrays are taken apart
down to their texts. The arguments of a call come in any order, as with other formats that name
each; those of an object inside in the schema's order. A string that would be read as something else
at its place is not let through, nor is an array or an object with nothing in it where that is read
otherwise.

Knows ``TaggedCalls``, places and schemas. Always true: see ``tools_api.call_rules``.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tools_api import errors
from tools_api.argument_orders import Way, group_size, object_ways, ordered
from tools_api.call_rules import CallRules, closed_parameters
from tools_api.exact_json import written
from tools_api.lark_rules import LarkRules, literal, regex_escaped
from tools_api.raw_calls import Delimiter
from tools_api.raw_schemas import branches, document_of, parts_of, restricted, string_schemas
from tools_api.raw_values import SCALARS, types_of
from tools_api.schema_lists import (
    ListForm,
    has_refused,
    list_form,
    listed_values,
    only_empty,
    times,
)
from tools_api.schema_references import resolved
from tools_api.tagged_calls import INVOKE_AFTER, INVOKE_BEFORE, INVOKE_CLOSER, ITEM, TaggedCalls
from tools_api.tagged_places import Place, may_be_empty, reads_back
from tools_api.tools import FunctionTool

_NOT_IN_NAMES = r'<>"\x00-\x1f'
_NAME = rf"[^\s\/{_NOT_IN_NAMES}]([^{_NOT_IN_NAMES}]*[^\s{_NOT_IN_NAMES}])?"
_MAX_VALUES = 1000
"""Different parts of the parameters of one tool."""
_SHORT_ENDS = (">", ">0", ">true", ">null")
"""The end of a name that is being written, and a short value behind it."""


class TaggedCallRules(CallRules):
    """Calls in which one special token stands before each tag."""

    def __init__(self, lark: LarkRules, syntax: TaggedCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._syntax = syntax
        self._mark = lark.special(syntax.mark)
        self._plain_end = self._tag(INVOKE_CLOSER + "\n")
        self._group = 1
        self._name_ends: dict[str, None] = {}
        """Ends of tags behind which another tag stands."""

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        self._group = group_size(sum(tool.name in chosen for tool in tools))
        super().add_tools(tools, chosen)
        mark, after = (self._syntax.mark, True), self._syntax.after
        self._lark.closes((mark, (INVOKE_CLOSER + "\n", False)))
        self._lark.closes((mark, (after.text, after.special)))
        for end in self._name_ends:
            self._lark.closes(((end, False), mark))

    def after_opener(self) -> str:
        """The tag around all calls, every call, and the tag that closes it."""
        ways = [(f"call {self._more('call')}", self._calls), ("plain", self._plain)]
        ways.append(("alone", self._alone))
        calls = " | ".join(way for way, rules in ways if rules)
        before, after = (self._around(tag) for tag in (self._syntax.before, self._syntax.after))
        return f'{before} "\\n" ({calls}) {self._mark} {after}'

    def _around(self, tag: Delimiter) -> str:
        return self._lark.special(tag.text) if tag.special else literal(tag.text)

    def _tag(self, text: str) -> str:
        return f"{self._mark} {literal(text)}"

    def _plain_head(self, name: str) -> str:
        return self._tag(f"{INVOKE_BEFORE}{name}{INVOKE_AFTER}\n")

    def _call(self, i: int, tool: FunctionTool) -> str:
        root = self._lark.in_dialect(closed_parameters(tool.parameters))
        where = f"{tool.place or f'tools[{i}]'}.parameters"
        head = self._tag(f"{INVOKE_BEFORE}{tool.name}{INVOKE_AFTER}")
        end = self._tag(INVOKE_CLOSER + "\n")
        if has_refused(root):
            return f"{head} {self._lark.dialect_rule(f'arguments_{i}', root)} {end}"
        values = _Values(self._lark, self._syntax.mark, i, where, root)
        ways = object_ways(root)
        if not ways:
            raise values.refusal(
                "this model writes each argument by its name; the schema has to be one of an "
                "object whose properties are plain to see"
            )
        place = Place(tool.parameters, tool.parameters)
        bodies = [values.members(way, place, self._group, empty=True) for way in ways]
        self._name_ends |= dict.fromkeys(values.name_ends())
        return f"{head} ({' | '.join(bodies)}) {end}"


class _Values:
    """The rules for values of one tool's parameters."""

    def __init__(self, lark: LarkRules, mark: str, i: int, where: str, root: Any) -> None:
        self._lark = lark
        self._mark = mark
        self._tool = i
        self._where = where
        self._root = root
        self._known: dict[tuple[str, str], str] = {}
        """The rules by the JSON of schema and place, which may refer to themselves."""
        self._objects = 0
        self._tags = dict.fromkeys(["invoke"])
        """The names of tags that are told."""
        self._samples: dict[str, None] = {}
        """Names that members may have which the schema does not declare."""

    def name_ends(self) -> Iterator[str]:
        """Ends of tags, for whoever stands behind the beginning that all have: of those that close
        something, then of members whose names the schema does not declare."""
        yield from (f"/{name}>" for name in (*self._tags, *self._samples))
        if self._samples:
            yield from (f"{name}>" for name in self._samples)
            yield from _SHORT_ENDS

    def refusal(self, why: str) -> errors.ApiError:
        """The tool's parameters cannot be written."""
        return errors.unsupported_parameter(self._where, why)

    def members(self, way: Way, place: Place, group: int, *, empty: bool) -> str:
        """The members of an object of one form; ``empty``: there may be none. "" where the form
        has none and needs some."""
        prefix, self._objects = f"o{self._tool}_{self._objects}", self._objects + 1
        named: list[tuple[str, bool]] = []
        for key, schema in way.properties.items():
            needed = key in way.required
            if schema is False or (not needed and not types_of(self._root, schema)):
                continue  # no value satisfies it
            self._refuse_name(key, place)
            if needed:
                self._lark.opens(((self._mark, True), (f"<{key}>", False)))
            body = self._tagged(key, self.value(schema, place.member(key)))
            named.append((self._lark.rule(f"{prefix}k{len(named)}", body), needed))
        more = ""
        if way.more is not False:
            inner = self.value(way.more, place.member(""))
            more = self._lark.rule(f"{prefix}more", self._other(way, place, inner))
        if not named and not more:
            return '""' if empty else ""
        return ordered(
            self._lark,
            prefix,
            named,
            more=more,
            group=group,
            one_at_least=not empty,
            more_last=True,
        )

    def value(self, schema: Any, place: Place) -> str:
        """The rule for values of a schema, which is a part of the document, at a place."""
        schema = {} if schema is True else schema
        if not isinstance(schema, dict):
            raise self.refusal("no value satisfies a part that has to come")
        key = (written(schema), written(place.schema))
        if key in self._known:
            return self._known[key]
        if len(self._known) >= _MAX_VALUES:
            raise self.refusal(f"more than {_MAX_VALUES} different parts cannot be told apart")
        name = f"v{self._tool}_{len(self._known)}"
        self._known[key] = name
        ways = [*self._texts(schema, place, name), *self._containers(schema, place)]
        if not ways:
            raise self.refusal("no value of a part that has to come can be written between tags")
        return self._lark.rule(name, " | ".join(ways))

    def _tagged(self, name: str, inner: str) -> str:
        """A value between its tags."""
        mark = self._lark.special(self._mark)
        self._tags[name] = None
        self._lark.closes(((self._mark, True), (f"</{name}>", False)))
        return f"{mark} {literal(f'<{name}>')} {inner} {mark} {literal(f'</{name}>')}"

    def _other(self, way: Way, place: Place, inner: str) -> str:
        """A member that the schema does not declare. Its closing tag may have another name, which
        is not read."""
        known = {*way.properties, *place.declared, "invoke"}
        if "array" in place.types:
            known.add(ITEM)
        others = [f"/<{_NAME}>/", *(f"~/{regex_escaped(f'<{key}>')}/" for key in sorted(known))]
        opening = self._lark.terminal(" & ".join(others), "NAME")
        closing = self._lark.terminal(rf"/<\/{_NAME}>/ & ~/{regex_escaped(INVOKE_CLOSER)}/", "NAME")
        mark = self._lark.special(self._mark)
        sample = next(each for n in itertools.count() if (each := f"x{n or ''}") not in known)
        self._samples[sample] = None
        self._lark.opens(((self._mark, True), (f"<{sample}>", False)))
        self._lark.closes(((self._mark, True), (f"</{sample}>", False)))
        return f"{mark} {opening} {inner} {mark} {closing}"

    def _refuse_name(self, name: str, place: Place) -> None:
        if not _is_name(name) or (name == ITEM and "array" in place.types):
            raise self.refusal(f"this model cannot write the name {name!r} in a tag")

    def _texts(self, schema: dict[str, Any], place: Place, name: str) -> list[str]:
        """Strings, and numbers and words beside them; without strings these are JSON."""
        types = types_of(self._root, schema)
        if "string" not in types & place.types:
            part = restricted(self._root, schema, types & SCALARS)
            if part is None:
                return []
            rule = f"arguments_{self._tool}_{name.rpartition('_')[2]}"
            return [self._lark.dialect_rule(rule, document_of(self._root, part))]
        read = place.types & (SCALARS | {"string"})
        parts = parts_of(self._root, schema, python=False, read=read)
        if parts.text is None or (not types & SCALARS and self._all_read_otherwise(schema, place)):
            return []
        for string in string_schemas(self._root, schema):
            self._lark.has_string(string)
        if parts.may_be_empty and not types & SCALARS and only_empty(resolved(self._root, schema)):
            return ['""']
        some = self._lark.terminal(f"({parts.text}) & /(?s:.+)/")
        return [f"{some}{'?' if parts.may_be_empty else ''}"]

    def _all_read_otherwise(self, schema: dict[str, Any], place: Place) -> bool:
        """Whether a schema lists strings, and each of them is read as something else."""
        listed: list[Any] = []
        for branch in branches(self._root, schema, 0):
            if "string" in types_of(self._root, branch):
                values = branch.get("enum", [branch["const"]] if "const" in branch else [""])
                listed += values if isinstance(values, list) else [""]
        texts = [value for value in listed if isinstance(value, str)]
        return not any(reads_back(text, place) for text in texts)

    def _containers(self, schema: dict[str, Any], place: Place) -> Iterable[str]:
        """Objects and arrays."""
        types = types_of(self._root, schema) & place.types
        for kind in sorted(types & {"object", "array"}):
            part = restricted(self._root, schema, frozenset({kind}))
            if part is None:
                continue
            empty = may_be_empty(kind, place.types)
            for branch in branches(self._root, part, 0):
                if kind not in types_of(self._root, branch):
                    continue
                listed = listed_values(self._root, branch)
                if listed is not None:
                    of_kind = dict if kind == "object" else list
                    yield from (
                        self._literal(value)
                        for value in listed
                        if isinstance(value, of_kind) and self._can_be_written(value, place)
                    )
                elif kind == "array":
                    yield from self._array(branch, place, empty)
                else:
                    yield from self._object(branch, place, empty)

    def _object(self, schema: dict[str, Any], place: Place, empty: bool) -> Iterable[str]:
        ways = object_ways(self._root, schema)
        if not ways:
            raise self.refusal(
                "this model writes each member by its name; the properties of an object inside "
                "have to be plain to see"
            )
        return filter(None, (self.members(way, place, 1, empty=empty) for way in ways))

    def _array(self, schema: dict[str, Any], place: Place, empty: bool) -> Iterable[str]:
        form = list_form(self._root, schema)
        if form is None:
            raise self.refusal("the items of a list have to be plain to see")
        least = form.least if empty else max(form.least, 1)
        if form.most is not None and form.most < form.least:
            raise self.refusal("no list has so many items")
        if form.most is not None and form.most < least:
            return ()
        return (self._items(form, place.item, least),)

    def _items(self, form: ListForm, place: Place, least: int) -> str:
        if form.most == 0:
            return '""'
        first = [self._tagged(ITEM, self.value(each, place)) for each in form.first]
        left = None if form.most is None else form.most - len(first)
        behind = ""
        if form.rest is not False and left != 0:
            other = self._tagged(ITEM, self.value(form.rest, place))
            behind = f"({other}){times(max(least - len(first), 0), left)}"
        for at in range(len(first) - 1, -1, -1):
            body = f"{first[at]} {behind}"
            behind = body if at < least else f"({body})?"
        return behind or '""'

    def _can_be_written(self, value: Any, place: Place) -> bool:
        return reads_back(value, place) and all(map(_is_name, _names_in(value)))

    def _literal(self, value: Any) -> str:
        """One value as it is."""
        match value:
            case str():
                return literal(value) or '""'
            case dict():
                inner = [self._tagged(key, self._literal(each)) for key, each in value.items()]
                return " ".join(inner) or '""'
            case list():
                return " ".join(self._tagged(ITEM, self._literal(each)) for each in value) or '""'
        return literal(written(value))


def _is_name(name: str) -> bool:
    """Whether a tag can have that name."""
    return re.fullmatch(_NAME, name) is not None


def _names_in(value: Any) -> Iterator[str]:
    """The names of all members of a value."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _names_in(inner)
