"""A short value of a JSON Schema, as text; or the proof that it has none that ends.

Bottom up: a schema has a value as soon as what it requires has one. What is left when nothing
changes any more asks for itself for ever, and that is known, not guessed. Of keywords that are
not understood here the value is not known, but there may be one.

Knows JSON Schema and how our grammars space JSON. Knows no grammar and no vocabulary: a text is
a hint, to be tried before it is believed.

Always true: a schema that is called endless has no finite value.
"""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from runtime.grammar.library_numbers import MAX_DIGITS
from runtime.grammar.number_ranges import Ends, counts, decimal_of, ends_of, places_of, whole_ends
from runtime.grammar.number_rules import KEYWORDS, literal
from runtime.grammar.schemas import string_sample, subschemas
from tools_api.exact_numbers import Number, exact, is_number, num_digits, plain
from tools_api.schema_references import pointed_at

_NUMERIC = frozenset(KEYWORDS)
UNKNOWN = None
"""Stands for a value whose text is not known, if there is one."""
Text = str | None

_MAX_CHARS = 65_536
_MAX_ROUNDS = 64
_MAX_LOOKS = 100_000
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id"}
    | {"$comment", "readOnly", "writeOnly", "deprecated", "discriminator", "x-guidance"}
)
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortValue:
    """A short value of one schema, as far as it is known."""

    endless: bool
    """No finite value satisfies it."""
    text: Text
    """A value that should satisfy it; None where that cannot be told."""


def short_value(schema: Any) -> Generator[None, None, ShortValue]:
    """A short value of ``schema``, as far as it is known. Pauses after each look at one of its
    subschemas."""
    nodes = [node for _, node in subschemas(schema)][::-1]
    values = _Values(schema, nodes)
    for _ in range(min(_MAX_ROUNDS, 2 + _MAX_LOOKS // max(len(nodes), 1))):
        changed = False
        for node in nodes:
            changed |= values.learn(node)
            yield
        if not changed:
            return ShortValue(endless=not values.has(schema), text=values.text(schema))
    return ShortValue(endless=False, text=values.text(schema))


class _Values:
    """The values that are known so far. A node of which nothing is known has no value yet."""

    def __init__(self, root: Any, nodes: list[dict[str, Any]]) -> None:
        self._root = root
        self._looked_at = set(map(id, nodes))
        self._texts: dict[int, Text] = {}

    def has(self, schema: Any) -> bool:
        """Whether a value is known to be there, or cannot be ruled out."""
        if not isinstance(schema, dict):
            return schema is not False
        return id(schema) in self._texts or id(schema) not in self._looked_at

    def text(self, schema: Any) -> Text:
        """The shortest value known; None if none is."""
        return self._texts.get(id(schema)) if isinstance(schema, dict) else "null"

    def learn(self, node: dict[str, Any]) -> bool:
        """Look at a node again; tells whether more is known of it than before."""
        found = list(self._values_of(node))
        if not found:
            return False
        shortest = min((text for text in found if text is not None), key=len, default=UNKNOWN)
        if shortest is not None and len(shortest) > _MAX_CHARS:
            shortest = UNKNOWN
        new = id(node) not in self._texts or _is_shorter(shortest, self._texts[id(node)])
        if new:
            self._texts[id(node)] = shortest
        return new

    def _values_of(self, node: dict[str, Any]) -> Iterator[Text]:
        """A text for each way that is known to satisfy a node, as far as its parts have some."""
        applied = [key for key in _APPLICATORS if key in node]
        own = node.keys() - _ANNOTATIONS - set(applied)
        alternatives = [self._applied(key, node[key]) for key in applied]
        if not all(alternatives):
            return  # of what has to hold one part has no value yet
        if len(alternatives) == 1 and not own:
            yield from alternatives[0]
        elif alternatives:
            yield from [UNKNOWN] if self._typed(node) else []
        else:
            yield from self._typed(node)

    def _applied(self, key: str, value: Any) -> list[Text]:
        """The texts of one applicator's schemas; empty while it cannot be satisfied."""
        if key == "$ref":
            target = pointed_at(self._root, value) if isinstance(value, str) else None
            if target is None:
                return [UNKNOWN]
            return [self.text(target)] if self.has(target) else []
        if not isinstance(value, list):
            return [UNKNOWN]
        if key == "allOf":
            if not all(map(self.has, value)):
                return []
            return [self.text(value[0]) if len(value) == 1 else UNKNOWN]
        return [self.text(schema) for schema in value if self.has(schema)]

    def _typed(self, node: dict[str, Any]) -> list[Text]:
        """The texts of a node's own types; empty while none of them can be satisfied."""
        if "const" in node:
            return [_written(node["const"])]
        if isinstance(node.get("enum"), list):
            return [min(map(_written, node["enum"]), key=len, default=UNKNOWN)]
        types = node.get("type", list(_TYPES))
        found: list[Text] = []
        for kind in types if isinstance(types, list) else [types]:
            if kind == "array":
                found += self._array(node)
            elif kind == "object":
                found += self._object(node)
            else:
                found.append(_scalar(kind, node))
        return found

    def _array(self, node: dict[str, Any]) -> list[Text]:
        count, prefix = _count(node, "minItems"), node.get("prefixItems", [])
        rest = node.get("items", True)
        if isinstance(rest, list):  # as drafts before 2020-12 have it
            prefix, rest = rest, node.get("additionalItems", True)
        if not isinstance(prefix, list) or count > _MAX_CHARS:
            return [UNKNOWN]
        items = (prefix + [rest] * (count - len(prefix)))[:count]
        if not all(map(self.has, items)):
            return []
        return [_joined("[", [self.text(item) for item in items], "]")]

    def _object(self, node: dict[str, Any]) -> list[Text]:
        properties, listed = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, dict) or not isinstance(listed, list):
            return [UNKNOWN]
        required = {name for name in listed if isinstance(name, str)}
        names = [name for name in properties if name in required]
        if not all(self.has(properties[name]) for name in names):
            return []
        if _count(node, "minProperties") > len(names) or len(names) < len(required):
            return [UNKNOWN]
        texts = [self.text(properties[name]) for name in names]
        pairs = [
            None if text is None else f"{_written(name)}: {text}"
            for name, text in zip(names, texts, strict=True)
        ]
        return [_joined("{", pairs, "}")]


def _is_shorter(text: Text, than: Text) -> bool:
    return text is not None and (than is None or len(text) < len(than))


def _joined(opener: str, parts: list[Text], closer: str) -> Text:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or sum(map(len, known)) + 2 * len(known) > _MAX_CHARS:
        return UNKNOWN
    return opener + ", ".join(known) + closer


def _count(node: dict[str, Any], name: str) -> int:
    """A bound that has to be a whole number; 0 where it is none."""
    value = node.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(k)}: {_written(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return literal(value) if is_number(value) else json.dumps(value, ensure_ascii=False)


def _scalar(kind: Any, node: dict[str, Any]) -> Text:
    match kind:
        case "null":
            return "null"
        case "boolean":
            return "true"
        case "integer" | "number":
            return _number(node, whole=kind == "integer")
        case "string":
            return _string(node)
    return UNKNOWN


def _number(node: dict[str, Any], *, whole: bool) -> Text:
    """One of the numbers next to zero and to the bounds."""
    if not node.keys() & _NUMERIC:
        return "0"
    numbers = [node[name] for name in KEYWORDS if is_number(node.get(name))]
    if any(num_digits(value) > MAX_DIGITS for value in numbers):
        return UNKNOWN
    ends, step = ends_of(node), Fraction(abs(exact(_step(node))))
    for digit in (0, 1):
        if _fits(Fraction(digit), ends, step, whole=whole):
            return str(digit)
    candidates = [Fraction(-1), step]
    candidates += [Fraction(n) for n in whole_ends(ends) if n is not None]
    if step:
        candidates += [n * step for n in counts(ends, step) if n is not None]
    for bound in ends:
        if bound is not None:
            value, apart = Fraction(bound.value), Fraction(1, 10 ** (places_of(bound.value) + 1))
            candidates += [value, value + apart, value - apart]
    fits = [value for value in candidates if _fits(value, ends, step, whole=whole)]
    texts = (literal(plain(decimal_of(value))) for value in fits)
    return min(texts, key=len, default=UNKNOWN)


def _step(node: dict[str, Any]) -> Number:
    """The number that a number has to be a multiple of; 0 where that is nothing."""
    step = node.get("multipleOf")
    return step if is_number(step) else 0


def _fits(value: Fraction, ends: Ends, step: Fraction, *, whole: bool) -> bool:
    low, high = ends
    if low is not None and not (value > low.value or (low.included and value == low.value)):
        return False
    if high is not None and not (value < high.value or (high.included and value == high.value)):
        return False
    return (not whole or value.denominator == 1) and (not step or value % step == 0)


def _string(node: dict[str, Any]) -> Text:
    if "pattern" in node or "format" in node:
        sample = string_sample(node)
        too_short = sample is not None and len(sample) < _count(node, "minLength")
        return UNKNOWN if sample is None or too_short else _written(sample)
    length = _count(node, "minLength")
    return UNKNOWN if length > _MAX_CHARS else _written("a" * length)
