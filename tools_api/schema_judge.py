"""Whether a value satisfies a JSON Schema, as far as it can be told without a grammar.

Judgement is threefold: a value satisfies a schema, does not, or nobody here knows, as with a
pattern. Numbers are compared to the last digit.

Knows JSON Schema. Knows no grammar, and no turn.

Always true: a verdict other than "not known" is right.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tools_api.exact_numbers import exact, identity, is_number, is_whole, num_digits
from tools_api.schema_references import Schema, resolved

Verdict = bool | None
"""Satisfied, broken, or not known."""
Place = tuple[str | int, ...]

_MAX_STEPS = 50_000
_MAX_DEPTH = 96
_MAX_DIVIDED_DIGITS = 1000


class Judge:
    """Judges one value by one document."""

    def __init__(self, root: Schema, afterwards: Iterable[str] = ()) -> None:
        """
        Args:
            root: the document, to which references lead.
            afterwards: keywords to be remembered when they are seen broken.
        """
        self._root = root
        self._afterwards = frozenset(afterwards)
        self._steps = 0
        self.broken: tuple[str, Place] | None = None
        """The last of the keywords ``afterwards`` that was seen broken, and where in the value."""

    def verdict(self, schema: Any, value: Any, place: Place, depth: int = 0) -> Verdict:
        """Whether ``value``, which stands at ``place``, satisfies ``schema``."""
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else None
        self.spend(1)
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            return None
        verdicts: list[Verdict] = []
        for keyword, parameter in schema.items():
            rule = _RULES.get(keyword)
            if rule is None:
                verdicts.append(None if keyword in _UNKNOWN else True)
                continue
            found = rule(_At(self, schema, place, depth + 1), parameter, value)
            if found is False and keyword in self._afterwards:
                self.broken = keyword, place
            verdicts.append(found)
        return _all(verdicts)

    def spend(self, steps: int) -> None:
        """Count work; when there was too much of it, nothing more is judged."""
        self._steps += steps

    def resolved(self, reference: str) -> Any:
        return resolved(self._root, {"$ref": reference})


@dataclass(frozen=True, slots=True)
class _At:
    """Where a keyword is judged."""

    judge: Judge
    schema: Schema
    place: Place
    depth: int

    def verdict(self, schema: Any, value: Any, *step: str | int) -> Verdict:
        return self.judge.verdict(schema, value, (*self.place, *step), self.depth)


Rule = Callable[[_At, Any, Any], Verdict]


def _all(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    if False in found:
        return False
    return None if None in found else True


def _any(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    if True in found:
        return True
    return None if None in found else False


def _not(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict


def _type(at: _At, wanted: Any, value: Any) -> Verdict:
    wanted = wanted if isinstance(wanted, list) else [wanted]
    kinds = {"null": value is None, "boolean": isinstance(value, bool), "number": is_number(value)}
    kinds |= {"string": isinstance(value, str), "array": isinstance(value, list)}
    kinds |= {"object": isinstance(value, dict)}
    kinds["integer"] = is_number(value) and is_whole(value)
    return _any(kinds.get(kind) if isinstance(kind, str) else None for kind in wanted)


def _enum(at: _At, values: Any, value: Any) -> Verdict:
    if not isinstance(values, list):
        return None
    if isinstance(value, str):
        return value in values
    at.judge.spend(len(values))
    return identity(value) in map(identity, values)


def _bound(holds: Callable[[Any, Any], bool], size: Callable[[Any], Any]) -> Rule:
    """A rule that compares a value's size, if it has one, with a number."""

    def rule(at: _At, bound: Any, value: Any) -> Verdict:
        measured = size(value)
        if not is_number(bound):
            return None
        return True if measured is None else holds(measured, exact(bound))

    return rule


def _length_of(kind: type[str] | type[list[Any]] | type[dict[str, Any]]) -> Callable[[Any], Any]:
    return lambda value: len(value) if isinstance(value, kind) else None


def _multiple(at: _At, step: Any, value: Any) -> Verdict:
    if not is_number(value):
        return True
    if not is_number(step) or not step:
        return None
    if max(num_digits(step), num_digits(value)) > _MAX_DIVIDED_DIGITS:
        return None
    return Fraction(exact(value)) % Fraction(exact(step)) == 0


def _required(at: _At, names: Any, value: Any) -> Verdict:
    if not isinstance(value, dict):
        return True
    return all(name in value for name in names) if isinstance(names, list) else None


def _properties(at: _At, schemas: Any, value: Any) -> Verdict:
    if not isinstance(value, dict) or not isinstance(schemas, dict):
        return True if isinstance(schemas, dict) else None
    return _all(
        at.verdict(schema, value[name], name) for name, schema in schemas.items() if name in value
    )


def _additional(at: _At, schema: Any, value: Any) -> Verdict:
    if not isinstance(value, dict):
        return True
    declared = at.schema.get("properties", {})
    by_pattern = at.schema.get("patternProperties", {})
    if not isinstance(declared, dict) or not isinstance(by_pattern, dict):
        return None
    if by_pattern and (schema is not False or declared or len(by_pattern) > 1):
        return None  # which names match is not known
    for only in by_pattern.values():
        schema = only
    return _all(
        at.verdict(schema, inner, name) for name, inner in value.items() if name not in declared
    )


def _names(at: _At, schema: Any, value: Any) -> Verdict:
    if not isinstance(value, dict):
        return True
    return _all(at.verdict(schema, name, name) for name in value)


def _items(at: _At, schema: Any, value: Any) -> Verdict:
    if not isinstance(value, list):
        return True
    if isinstance(schema, list):
        return _prefix(at, schema, value)
    before = at.schema.get("prefixItems")
    skipped = len(before) if isinstance(before, list) else 0
    rest = enumerate(value[skipped:], skipped)
    return _all(at.verdict(schema, item, index) for index, item in rest)


def _prefix(at: _At, schemas: Any, value: Any) -> Verdict:
    if not isinstance(value, list) or not isinstance(schemas, list):
        return True if isinstance(schemas, list) else None
    pairs = zip(schemas, value, strict=False)
    return _all(at.verdict(schema, item, index) for index, (schema, item) in enumerate(pairs))


def _unique(at: _At, wanted: Any, value: Any) -> Verdict:
    if wanted is not True or not isinstance(value, list):
        return True
    return len(set(map(identity, value))) == len(value)


def _contains(at: _At, schema: Any, value: Any) -> Verdict:
    if not isinstance(value, list):
        return True
    found = [at.verdict(schema, item, index) for index, item in enumerate(value)]
    least, most = at.schema.get("minContains", 1), at.schema.get("maxContains", math.inf)
    if not is_number(least) or not is_number(most):
        return None
    certain, possible = found.count(True), len(found) - found.count(False)
    if certain > most or possible < least:
        return False
    return True if least <= certain and possible <= most else None


def _dependent_names(at: _At, needs: Any, value: Any) -> Verdict:
    if not isinstance(value, dict) or not isinstance(needs, dict):
        return True if isinstance(needs, dict) else None
    return _all(_required(at, names, value) for name, names in needs.items() if name in value)


def _dependent_schemas(at: _At, needs: Any, value: Any) -> Verdict:
    if not isinstance(value, dict) or not isinstance(needs, dict):
        return True if isinstance(needs, dict) else None
    return _all(at.verdict(schema, value) for name, schema in needs.items() if name in value)


def _dependencies(at: _At, needs: Any, value: Any) -> Verdict:
    """Both in one, as drafts before 2019-09 have it."""
    if not isinstance(value, dict) or not isinstance(needs, dict):
        return True if isinstance(needs, dict) else None
    present = [need for name, need in needs.items() if name in value]
    return _all(
        _required(at, need, value) if isinstance(need, list) else at.verdict(need, value)
        for need in present
    )


def _reference(at: _At, reference: Any, value: Any) -> Verdict:
    target = at.judge.resolved(reference) if isinstance(reference, str) else None
    return None if target is None else at.verdict(target, value)


def _all_of(at: _At, schemas: Any, value: Any) -> Verdict:
    known = isinstance(schemas, list)
    return _all(at.verdict(schema, value) for schema in schemas) if known else None


def _any_of(at: _At, schemas: Any, value: Any) -> Verdict:
    known = isinstance(schemas, list)
    return _any(at.verdict(schema, value) for schema in schemas) if known else None


def _one_of(at: _At, schemas: Any, value: Any) -> Verdict:
    if not isinstance(schemas, list):
        return None
    found = [at.verdict(schema, value) for schema in schemas]
    if found.count(True) > 1:
        return False
    return _any(found) if found.count(None) == 0 or True not in found else None


def _negated(at: _At, schema: Any, value: Any) -> Verdict:
    return _not(at.verdict(schema, value))


def _conditional(at: _At, condition: Any, value: Any) -> Verdict:
    holds = at.verdict(condition, value)
    then = at.verdict(at.schema.get("then", True), value)
    otherwise = at.verdict(at.schema.get("else", True), value)
    if holds is None:
        return then if then is otherwise else None
    return then if holds else otherwise


def _size(value: Any) -> Any:
    return exact(value) if is_number(value) else None


_RULES: dict[str, Rule] = {
    "type": _type,
    "enum": _enum,
    "const": lambda at, wanted, value: identity(value) == identity(wanted),
    "minimum": _bound(lambda size, bound: size >= bound, _size),
    "maximum": _bound(lambda size, bound: size <= bound, _size),
    "exclusiveMinimum": _bound(lambda size, bound: size > bound, _size),
    "exclusiveMaximum": _bound(lambda size, bound: size < bound, _size),
    "multipleOf": _multiple,
    "minLength": _bound(lambda size, bound: size >= bound, _length_of(str)),
    "maxLength": _bound(lambda size, bound: size <= bound, _length_of(str)),
    "minItems": _bound(lambda size, bound: size >= bound, _length_of(list)),
    "maxItems": _bound(lambda size, bound: size <= bound, _length_of(list)),
    "minProperties": _bound(lambda size, bound: size >= bound, _length_of(dict)),
    "maxProperties": _bound(lambda size, bound: size <= bound, _length_of(dict)),
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "items": _items,
    "prefixItems": _prefix,
    "uniqueItems": _unique,
    "contains": _contains,
    "dependentRequired": _dependent_names,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "$ref": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _negated,
    "if": _conditional,
}
_UNKNOWN = frozenset(
    {"pattern", "patternProperties", "additionalItems", "$dynamicRef", "$recursiveRef"}
    | {"unevaluatedProperties", "unevaluatedItems", "format"}
)
"""Keywords that may refuse a value, of which nothing is known here."""
