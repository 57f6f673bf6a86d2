"""A schema as alternatives that say what they say themselves: without references, ``allOf``,
``anyOf`` or ``oneOf`` at their root.

What has to hold together is merged keyword by keyword. Below the root nothing is looked into:
schemas of the same property or item stand side by side in an ``allOf`` of their own.

Knows JSON Schema. Knows no grammar.

Always true: a value satisfies one of the alternatives if and only if it satisfies the schema, of
which ``oneOf`` is taken for ``anyOf``.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import lcm
from typing import Any

from runtime.grammar.number_ranges import Ends, decimal_of, ends_of, tighter
from runtime.grammar.schema_parts import APPLICATORS
from tools_api.exact_numbers import exact, identity, is_number, plain
from tools_api.schema_references import Schema, pointed_at

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ALTERNATIVES = ("anyOf", "oneOf")
_OWN = frozenset(
    {"type", "const", "enum", "items", "prefixItems", "minItems", "maxItems", "properties"}
    | {"patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"}
    | {"minLength", "maxLength", "pattern", "format", "multipleOf", "minimum", "maximum"}
    | {"exclusiveMinimum", "exclusiveMaximum", "additionalItems"}
)
_ENDS = frozenset({"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})
_OBJECT = frozenset({"properties", "patternProperties", "additionalProperties"})
_ARRAY = frozenset({"items", "prefixItems"})
_MAX_ALTERNATIVES = 256
_MAX_DEPTH = 64


class NotPlain(Exception):
    """A schema cannot be written as alternatives; ``keyword`` is what stands against it."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


def is_assertive(schema: Schema) -> bool:
    """Whether it says anything besides what it refers to and what it chooses from."""
    return bool(_OWN & schema.keys())


def alternatives(root: Any, schema: Any, depth: int = 0) -> list[Schema]:
    """The alternatives of ``schema``, a part of the document ``root``; none if nothing can satisfy
    it.

    Raises:
        NotPlain: there are too many, or two keywords do not go together.
    """
    if not isinstance(schema, dict):
        return [] if schema is False else [{}]
    found = [_own(schema)]
    for keyword in APPLICATORS:
        if keyword not in schema:
            continue
        if depth > _MAX_DEPTH:
            raise NotPlain(keyword)
        for choice in _choices(root, keyword, schema[keyword]):
            ways = [way for one in choice for way in alternatives(root, one, depth + 1)]
            merged = (_merged(one, other) for one in found for other in ways)
            found = [both for both in merged if both is not None]
            if len(found) > _MAX_ALTERNATIVES:
                raise NotPlain(keyword)
    return found


def _choices(root: Any, keyword: str, value: Any) -> Iterator[list[Any]]:
    """Schemas of which one has to hold, for each choice there is."""
    if keyword == "$ref":
        target = pointed_at(root, value) if isinstance(value, str) else None
        if target is None:
            raise NotPlain(keyword)
        yield [target]
    elif not isinstance(value, list):
        raise NotPlain(keyword)
    elif keyword in _ALTERNATIVES:
        yield value
    else:
        yield from ([one] for one in value)


def _own(schema: Schema) -> Schema:
    """The keywords that a schema says itself: numbers of bounds as drafts from 6 on write them,
    items as those from 2020-12 on, one constant as a list of one."""
    own = {key: value for key, value in schema.items() if key in _OWN}
    if "const" in own:
        constant = own.pop("const")
        listed = own.get("enum")
        fits = not isinstance(listed, list) or identity(constant) in map(identity, listed)
        own["enum"] = [constant] if fits else []
    if isinstance(own.get("items"), list):
        own["prefixItems"] = own.pop("items")
        if "additionalItems" in own:
            own["items"] = own["additionalItems"]
    own.pop("additionalItems", None)
    return _with_ends(own, ends_of(own))


def _with_ends(own: Schema, ends: Ends) -> Schema:
    """``own`` with these bounds for its own."""
    low, high = ends
    rest = {key: value for key, value in own.items() if key not in _ENDS}
    if low is not None:
        rest["minimum" if low.included else "exclusiveMinimum"] = plain(low.value)
    if high is not None:
        rest["maximum" if high.included else "exclusiveMaximum"] = plain(high.value)
    return rest


def _merged(one: Schema, other: Schema) -> Schema | None:
    """A schema that both are satisfied by; None if that is nothing."""
    both = {**one, **other}
    for keyword in one.keys() & other.keys() - _ENDS - _OBJECT - _ARRAY:
        rule = _RULES.get(keyword)
        if rule is not None:
            both[keyword] = rule(one[keyword], other[keyword])
        elif one[keyword] != other[keyword]:
            raise NotPlain(keyword)
    both = _with_ends(both, tighter(ends_of(one), ends_of(other)))
    if one.keys() & _OBJECT and other.keys() & _OBJECT:
        both |= _merged_object(one, other)
    if one.keys() & _ARRAY and other.keys() & _ARRAY:
        both |= _merged_array(one, other)
    return None if both.get("type") == [] or both.get("enum") == [] else both


def _merged_object(one: Schema, other: Schema) -> Schema:
    for schema, beside in ((one, other), (other, one)):
        if "patternProperties" in schema and beside.keys() & _OBJECT:
            raise NotPlain("patternProperties")
    names = dict.fromkeys([*one.get("properties", {}), *other.get("properties", {})])
    properties = {
        name: _together(*(_property(schema, name) for schema in (one, other))) for name in names
    }
    rests = [schema.get("additionalProperties", True) for schema in (one, other)]
    return {"properties": properties, "additionalProperties": _together(*rests)}


def _property(schema: Schema, name: str) -> Any:
    properties: Schema = schema.get("properties", {})
    return properties.get(name, schema.get("additionalProperties", True))


def _merged_array(one: Schema, other: Schema) -> Schema:
    prefixes = [schema.get("prefixItems", []) for schema in (one, other)]
    rests = [schema.get("items", True) for schema in (one, other)]
    size = max(map(len, prefixes))
    filled = [
        prefix + [rest] * (size - len(prefix)) for prefix, rest in zip(prefixes, rests, strict=True)
    ]
    return {
        "prefixItems": [_together(*pair) for pair in zip(*filled, strict=True)],
        "items": _together(*rests),
    }


def _together(one: Any, other: Any) -> Any:
    """A schema that says what both say."""
    if one is True or other is False:
        return other
    if other is True or one is False:
        return one
    return {"allOf": [one, other]}


def _types(one: Any, other: Any) -> list[str]:
    wanted, allowed = (value if isinstance(value, list) else [value] for value in (one, other))
    both = [kind for kind in wanted if kind in allowed]
    whole = any("integer" in a and "number" in b for a, b in ((wanted, allowed), (allowed, wanted)))
    return [*both, "integer"] if whole and not {"integer", "number"} & {*both} else both


def _values(one: Any, other: Any) -> list[Any]:
    known = set(map(identity, other))
    return [value for value in one if identity(value) in known]


def _step(one: Any, other: Any) -> Any:
    """The least number that is a multiple of both."""
    if not is_number(one) or not is_number(other) or not one or not other:
        raise NotPlain("multipleOf")
    first, second = (Fraction(abs(exact(step))) for step in (one, other))
    whole = lcm(first.denominator, second.denominator)
    least = Fraction(lcm(int(first * whole), int(second * whole)), whole)
    return plain(decimal_of(least))


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _values,
    "multipleOf": _step,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    **dict.fromkeys(("minItems", "minProperties", "minLength"), max),
    **dict.fromkeys(("maxItems", "maxProperties", "maxLength"), min),
}
