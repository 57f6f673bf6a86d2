"""Choices that a grammar can hold a model to, though the library knows no keyword for them.

``oneOf`` is taken for ``anyOf``, which is the same where no value satisfies two alternatives.
``uniqueItems`` is unknown to it: lists of few values are written out one by one.

Knows JSON Schema. Compiles nothing.

Always true: what comes out accepts the values that the schema accepts and no others; what is said
never to hold together does not.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from math import perm
from typing import Any

from tools_api.exact_json import dumps
from tools_api.exact_numbers import exact, identity, is_number
from tools_api.schema_judge import Judge
from tools_api.schema_references import Schema, resolved

_MOST_LISTS = 400
"""Written out for one array: those of five values are 326."""
_MOST_CHARS = 20_000
"""The most characters of all lists of a document."""
_MOST_DEPTH = 6
_MOST_STEPS = 5000
_MOST_PARTS = 16
_MOST_VALUES = 200
_DESCRIPTIONS = frozenset({"title", "description", "default", "examples", "$comment"})
_OF_LIST = _DESCRIPTIONS | {"type", "items", "uniqueItems", "minItems", "maxItems"}
_OF_ITEM = _DESCRIPTIONS | {"type", "enum", "const", "minimum", "maximum"}
_KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})
_BOUNDS = {
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


class Choices:
    """The choices of one document's schemas, within common bounds."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._chars = _MOST_CHARS
        self._steps = _MOST_STEPS

    def written_out(self, schema: Schema) -> Schema | None:
        """An array of different values out of few, as the lists that there are; None: it is no such
        array, or there are too many."""
        if schema.get("uniqueItems") is not True or schema.get("type") != "array":
            return None
        values = self._values(resolved(self._root, schema.get("items")))
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(values))
        if not schema.keys() <= _OF_LIST or type(least) is not int or type(most) is not int:
            return None
        sizes = range(max(0, least), min(most, len(values)) + 1)
        if not values or not 0 < sum(perm(len(values), size) for size in sizes) <= _MOST_LISTS:
            return None
        lists = [list(each) for size in sizes for each in permutations(values, size)]
        chars = len(dumps(lists))
        if chars > self._chars:
            return None
        self._chars -= chars
        kept = {key: value for key, value in schema.items() if key in _DESCRIPTIONS}
        return kept | {"type": "array", "enum": lists}

    def _values(self, items: Any) -> Sequence[Any]:
        """The values that an item may have, if they are few and plain; else none."""
        if not isinstance(items, dict) or not items.keys() <= _OF_ITEM:
            return ()
        values = _finite(items)
        if values is None and items.get("type") == "integer":
            low, high = items.get("minimum"), items.get("maximum")
            if type(low) is int and type(high) is int and high - low < _MOST_PARTS:
                values = range(low, high + 1)
        if values is None or any(isinstance(value, dict | list) for value in values):
            return ()
        judge, different = Judge(self._root), dict[Any, Any]()
        for value in values:
            if judge.verdict(items, value, ()) is True:
                different.setdefault(identity(value), value)
        return list(different.values())

    def never_both(self, one: Any, other: Any) -> bool:
        """Whether it is certain that no value satisfies both schemas."""
        return self._apart(one, other, 0)

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        self._steps -= 1
        if depth > _MOST_DEPTH or self._steps < 0:
            return False
        ways = list(islice(self._ways(one), _MOST_PARTS + 1))
        others = list(islice(self._ways(other), _MOST_PARTS + 1))
        if max(len(ways), len(others)) > _MOST_PARTS:
            return False
        return all(
            any(self._parts_apart(a, b, depth) for a, b in product(way, another))
            for way, another in product(ways, others)
        )

    def _ways(self, schema: Any) -> Iterator[list[Schema]]:
        """The schemas of which all hold, for each way in which one can hold."""
        schema = resolved(self._root, schema)
        if schema is False:
            return
        if not isinstance(schema, dict):
            yield []
            return
        parts = [schema]
        for part in schema.get("allOf", ()) if isinstance(schema.get("allOf"), list) else ():
            target = resolved(self._root, part)
            if isinstance(target, dict):
                parts.append(target)
        for keyword in ("anyOf", "oneOf"):
            choice = schema.get(keyword)
            if isinstance(choice, list):
                for alternative in choice:
                    target = resolved(self._root, alternative)
                    if target is not False:
                        yield [*parts, target] if isinstance(target, dict) else parts
                return
        yield parts

    def _parts_apart(self, one: Schema, other: Schema, depth: int) -> bool:
        for finite, whole in ((one, other), (other, one)):
            values = _finite(finite)
            if values is not None and len(values) <= _MOST_VALUES:
                judge, self._steps = Judge(self._root), self._steps - len(values)
                return all(
                    judge.verdict(whole, value, ()) is False
                    or judge.verdict(finite, value, ()) is False
                    for value in values
                )
        common = _kinds(one) & _kinds(other)
        return all(self._apart_in(kind, one, other, depth) for kind in common)

    def _apart_in(self, kind: str, one: Schema, other: Schema, depth: int) -> bool:
        """Whether no value of a kind satisfies both."""
        if kind in _BOUNDS and (_beyond(kind, one, other) or _beyond(kind, other, one)):
            return True
        return kind == "object" and (
            self._needs_what_differs(one, other, depth)
            or self._needs_what_differs(other, one, depth)
        )

    def _needs_what_differs(self, one: Schema, other: Schema, depth: int) -> bool:
        """Whether one requires a property that the other does not allow, or not so."""
        required = one.get("required")
        if not isinstance(required, list):
            return False
        own, theirs = _properties(one), _properties(other)
        closed = other.get("additionalProperties") is False and "patternProperties" not in other
        for name in required:
            if not isinstance(name, str):
                continue
            if name not in theirs:
                if closed:
                    return True
            elif name in own and self._apart(own[name], theirs[name], depth + 1):
                return True
        return False


def only_in_one(schema: Schema) -> Schema | None:
    """A ``oneOf`` between lists of values, with those that are in one of them alone; None: it is no
    such choice, or nothing is in two."""
    alternatives = schema.get("oneOf")
    if not isinstance(alternatives, list) or "discriminator" in schema:
        return None
    plain = _DESCRIPTIONS | {"enum", "const"}
    if not all(isinstance(each, dict) and each.keys() <= plain for each in alternatives):
        return None
    listed = [_finite(each) for each in alternatives]
    if any(values is None for values in listed):
        return None
    by_list = [{identity(value): value for value in values or ()} for values in listed]
    counts: dict[Any, int] = {}
    for values in by_list:
        for key in values:
            counts[key] = counts.get(key, 0) + 1
    alone = [value for values in by_list for key, value in values.items() if counts[key] == 1]
    if not alone or len(alone) == len(counts):
        return None
    return schema | {"oneOf": [{"enum": alone}]}


def _beyond(kind: str, one: Schema, other: Schema) -> bool:
    """Whether all that one allows is larger than all that the other does."""
    low, high = _BOUNDS[kind]
    least, most = one.get(low), other.get(high)
    if kind == "number":
        above, below = one.get("exclusiveMinimum"), other.get("exclusiveMaximum")
        for lower, upper in ((above, most), (least, below), (above, below)):
            if is_number(lower) and is_number(upper) and exact(lower) >= exact(upper):
                return True
    return is_number(least) and is_number(most) and exact(least) > exact(most)


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _finite(schema: Schema) -> Sequence[Any] | None:
    """The values among which a schema chooses; None: there is no end to them."""
    listed: Sequence[Any] = schema.get("enum", ())
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return listed if isinstance(listed, list) else None
    if schema.get("type") == "boolean":
        return [False, True]
    return [None] if schema.get("type") == "null" else None


def _kinds(schema: Schema) -> frozenset[str]:
    """Kinds of values that may satisfy it; whole numbers are numbers."""
    named = schema.get("type")
    named = named if isinstance(named, list) else [named]
    if not all(isinstance(kind, str) for kind in named):
        return _KINDS
    return frozenset("number" if kind == "integer" else kind for kind in named) & _KINDS
