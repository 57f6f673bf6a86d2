"""A client's JSON Schema as the grammar library takes it.

What a grammar cannot hold a model to is either refused by name or checked when the output is
finished (``tools_api.output_checks``); what only describes is left out. Nothing else changes:
keys keep their places, so that the path to a keyword in what comes out is the client's own.

Knows JSON Schema and which of it the library leaves open, but for the numbers that it rounds: they
come out as they are, and ``runtime.grammar.exact_rules`` keeps them. Compiles nothing; a schema
that makes no sense comes out as it is, for whoever compiles it to say what is wrong.

Always true: a value that the client's schema accepts, its strings of a known format written as
``schema_formats`` has them, is accepted by what comes out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tools_api import schema_decimals
from tools_api.exact_json import dumps
from tools_api.schema_choices import Choices, only_in_one
from tools_api.schema_formats import LIBRARY_FORMATS, PATTERNS, WEB_ADDRESS
from tools_api.schema_references import Schema, resolved

REFUSED: dict[str, str] = {
    "not": "a model that is not held to what it may not write would fail too often",
    "if": "what holds depends on what has been written before, in any order",
    "unevaluatedProperties": "which names are left depends on how other keywords turn out",
    "unevaluatedItems": "which items are left depends on how other keywords turn out",
    "$dynamicRef": "what it refers to depends on how the schema was reached",
}
"""The keywords that are refused by name, and why. ``lenient`` leaves them out."""

AFTERWARDS = frozenset(
    {"uniqueItems", "contains", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"propertyNames", "oneOf", "minProperties", "maxProperties", "maxLength"}
)
"""Keywords that, where a grammar cannot hold a model to them, are checked when the output is
finished."""
LENIENTLY_CHECKED = frozenset({"not", "if"})
"""The keywords of ``REFUSED`` that are checked at the end where they are left out."""

MAX_COUNTED_CHARS = 6000
"""Characters that a grammar counts in strings. One that counts further may run out of states in
the middle of a turn: of 30,000 a character takes up to five (``runtime.grammar.compiler``)."""

_DROPPED = frozenset(
    {"uniqueItems", "contains", "minContains", "maxContains", "dependentRequired"}
    | {"dependentSchemas", "dependencies", "propertyNames"}
)
_DESCRIBING = frozenset({"deprecated", "contentSchema", "discriminator", "example", "nullable"})
"""Keywords that only describe, which the library takes for more."""
_INSTANCES = frozenset({"const", "enum", "default", "examples", "required", "x-guidance"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LOOKED_AT = re.compile(
    rb'"(?:uniqueItems|contains|depend\w+|propertyNames|oneOf|format|pattern|discriminator'
    rb"|deprecated|contentSchema|example|nullable|minProperties|maxProperties|not|if|then|else"
    rb'|unevaluated\w+|\$dynamicRef)":|"maxLength":\d{4}'
)
_WEB_LENGTHS = (1, 2083)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSchema:
    """A schema for the library, and what that leaves open."""

    schema: Schema
    afterwards: tuple[str, ...] = ()
    """Keywords to be checked when the output is finished, in alphabetical order."""
    ignored: tuple[str, ...] = ()
    """Keywords that are neither enforced nor checked, as the client asked for."""


def rewrite_schema(schema: Schema, *, lenient: bool = False) -> RewrittenSchema:
    """``schema`` for the library.

    Args:
        lenient: keywords that would be refused are left out.
    """
    if _LOOKED_AT.search(dumps(schema)) is None:
        return RewrittenSchema(schema=schema)
    rewriting = _Rewriting(schema, lenient)
    result = rewriting.rewritten(schema, at="#")
    assert isinstance(result, dict)
    left_out = rewriting.left_out
    checked = left_out & (AFTERWARDS | LENIENTLY_CHECKED)
    return RewrittenSchema(
        schema=result, afterwards=tuple(sorted(checked)), ignored=tuple(sorted(left_out - checked))
    )


class _Rewriting:
    """One document on its way."""

    def __init__(self, root: Schema, lenient: bool) -> None:
        self._root = root
        self._lenient = lenient
        self._tags = dict(_tags_of(root))
        self._choices = Choices(root)
        self.left_out: set[str] = set()

    def rewritten(self, schema: Any, *, at: str = "") -> Any:
        """A schema, or what stands where one should.

        Args:
            at: where it stands, if it may be referred to.
        """
        if not isinstance(schema, dict):
            return schema
        schema = self._choices.written_out(schema) or only_in_one(schema) or schema
        new = {
            key: self._value(key, value, at)
            for key, value in schema.items()
            if key not in self._without(schema)
        }
        self._narrow_names(schema, new)
        if at in self._tags and isinstance(new.get("required", []), list):
            others = [name for name in new.get("required", []) if name != self._tags[at]]
            new["required"] = [*others, self._tags[at]]
        return _with_pattern(_with_decimals(schema, new))

    def _value(self, key: str, value: Any, at: str) -> Any:
        if key in _INSTANCES:
            return value
        if key in _MAPS and isinstance(value, dict):
            return {
                name: self.rewritten(inner, at=f"{at}/{key}/{name}")
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self.rewritten(item) for item in value]
        return self.rewritten(value)

    def _without(self, schema: Schema) -> frozenset[str]:
        """The keywords to leave out; those that matter are remembered."""
        gone = (_DROPPED | _DESCRIBING) & schema.keys()
        if not _counts_are_enforced(schema):
            gone |= {"minProperties", "maxProperties"} & schema.keys()
        longest = schema.get("maxLength")
        if isinstance(longest, int) and longest > MAX_COUNTED_CHARS:
            gone |= {"maxLength"}
        if "if" not in schema:
            gone |= {"then", "else"}  # they say nothing then
        if self._lenient:
            gone |= REFUSED.keys() & schema.keys()
        matter = gone & (AFTERWARDS | REFUSED.keys()) - {"propertyNames"}
        if schema.get("uniqueItems") is not True or schema.get("maxItems") in (0, 1):
            matter -= {"uniqueItems"}
        tagged = "discriminator" in schema
        if "oneOf" in schema and not tagged and not self._alternatives_differ(schema["oneOf"]):
            matter |= {"oneOf"}
        if _may_count_twice(schema):
            matter |= {"minProperties"}
        self.left_out |= matter
        return frozenset(gone)

    def _alternatives_differ(self, alternatives: Any) -> bool:
        """Whether at most one of them can hold: each has types or a tag of its own."""
        if not isinstance(alternatives, list):
            return True
        marked = [(each, _marks(resolved(self._root, each))) for each in alternatives]
        return all(
            _differ(mark, others) or self._choices.never_both(each, other)
            for (each, mark), (other, others) in combinations(marked, 2)
        )

    def _narrow_names(self, schema: Schema, new: Schema) -> None:
        """``propertyNames`` as declared properties or as a pattern, where it is the one or the
        other and nothing else is said of names; else it is left to the check."""
        names = resolved(self._root, schema.get("propertyNames", True))
        if names is True or (isinstance(names, dict) and names.keys() <= {"type", "title"}):
            return
        known = names.get("enum") if isinstance(names, dict) else None
        pattern = _names_pattern(names) if isinstance(names, dict) else None
        value = new.get("additionalProperties", True)
        if schema.keys() & {"properties", "patternProperties"}:
            self.left_out.add("propertyNames")
        elif isinstance(known, list):
            new["properties"] = {name: value for name in known if isinstance(name, str)}
            new["additionalProperties"] = False
        elif pattern is not None:
            new["patternProperties"] = {pattern: value}
            new["additionalProperties"] = False
        else:
            self.left_out.add("propertyNames")


def _tags_of(node: Any) -> Iterator[tuple[str, str]]:
    """The definitions among which a ``discriminator`` chooses, and the name of its tag: without
    that an alternative could not be told from the others, whatever its default."""
    if isinstance(node, list):
        for item in node:
            yield from _tags_of(item)
    if not isinstance(node, dict):
        return
    discriminator, alternatives = node.get("discriminator"), node.get("oneOf")
    if isinstance(discriminator, dict) and isinstance(alternatives, list):
        name = discriminator.get("propertyName")
        for alternative in alternatives:
            reference = alternative.get("$ref") if isinstance(alternative, dict) else None
            if isinstance(reference, str) and isinstance(name, str):
                yield reference, name
    for key, value in node.items():
        if key not in _INSTANCES:
            yield from _tags_of(value)


def _marks(schema: Any) -> dict[str, frozenset[str]]:
    """Marks that tell a schema from others: by property, the texts that it may be; under the name
    "" the types of the whole, integers being numbers."""
    if not isinstance(schema, dict):
        return {}
    kinds = schema.get("type")
    marks = {"": _texts(kinds if isinstance(kinds, list) else [kinds])}
    if "integer" in marks[""]:
        marks[""] |= {"number"}
    properties, required = schema.get("properties"), _texts(schema.get("required", []))
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        if isinstance(inner, dict) and name in required:
            marks[name] = _texts(inner.get("enum", [inner.get("const")]))
    return marks


def _texts(values: Any) -> frozenset[str]:
    """The values, if all of them are texts."""
    plain = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return frozenset(values) if plain else frozenset()


def _differ(one: dict[str, frozenset[str]], other: dict[str, frozenset[str]]) -> bool:
    return any(
        values and other.get(name) and not values & other[name] for name, values in one.items()
    )


def _counts_are_enforced(schema: Schema) -> bool:
    """The library counts properties only where none that is declared may be left out."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    return all(name in required for name in properties)


def _may_count_twice(schema: Schema) -> bool:
    """Whether an undeclared name that comes again could stand for one of the properties that the
    library counts."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    if not isinstance(least, int) or not isinstance(required, list):
        return False
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return least - len(required) > 1 and not closed


def _names_pattern(names: Schema) -> str | None:
    """The pattern of property names, if it says all that is said of them."""
    pattern = _with_pattern({key: names[key] for key in names if key not in ("type", "title")})
    if pattern.keys() == {"pattern"}:
        return str(pattern["pattern"])
    if pattern and pattern.keys() <= {"minLength", "maxLength"}:
        low, high = pattern.get("minLength", 0), pattern.get("maxLength", "")
        return rf"^[\s\S]{{{low},{high}}}$"
    return None


def _with_pattern(schema: Schema) -> Schema:
    """The schema with its ``format`` as a pattern; without it where it only describes."""
    name = schema.get("format")
    if not isinstance(name, str) or name in LIBRARY_FORMATS:
        return schema
    pattern = PATTERNS.get(name)
    if name == "uri" and (schema.get("minLength"), schema.get("maxLength")) == _WEB_LENGTHS:
        pattern = WEB_ADDRESS
    rest = {key: value for key, value in schema.items() if key != "format"}
    if pattern is None:
        return rest
    if "pattern" not in rest:
        return rest | {"pattern": pattern}
    others = rest.get("allOf", [])
    return rest | {"allOf": [*(others if isinstance(others, list) else ()), {"pattern": pattern}]}


def _with_decimals(schema: Schema, new: Schema) -> Schema:
    """``new``, made of ``schema``, with decimals as a grammar can write them."""
    own = schema_decimals.splits(schema)
    if own is not None and "format" not in schema:
        return new | {"pattern": schema_decimals.pattern(own)}
    alternatives = schema.get("anyOf")
    if not isinstance(alternatives, list):
        return new
    found = [split for split in map(schema_decimals.splits, alternatives) if split is not None]
    if not found:
        return new
    bounded = [
        schema_decimals.beside(node, found[0])
        if isinstance(node, dict) and node.get("type") == "number"
        else node
        for node in new["anyOf"]
    ]
    return new | {"anyOf": bounded}
