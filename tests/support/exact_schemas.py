"""Random schemas whose numbers have many digits, each with values that satisfy it; and a validator
that compares numbers to the last digit, written by others."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema

from tools_api.exact_json import written
from tools_api.exact_numbers import Number, exact, is_whole, plain

_LONG_EXPONENT = re.compile(r"([eE][-+]?[0-9]{6})[0-9]+")
Draw = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Drawn:
    """A schema, and how to draw a value that satisfies it."""

    schema: Any
    draw: Draw


@dataclass
class Schemas:
    """Draws schemas from one generator of random numbers."""

    rng: random.Random
    definitions: dict[str, Any] = field(default_factory=dict)
    depth: int = 3

    def document(self) -> Drawn:
        """A whole schema: an object, as tools have it."""
        drawn = self._object(self.depth)
        definitions = {"$defs": self.definitions} if self.definitions else {}
        return Drawn(drawn.schema | definitions, drawn.draw)

    def any(self, depth: int) -> Drawn:
        """A schema of any kind, at most so deep."""
        leaves = (self.number, self.number, self.constant, self._listed, self._text)
        inner = (self._object, self._array, self._choice, self._both, self._reference)
        if depth <= 0 or self.rng.random() < 0.4:
            return self.rng.choice(leaves)()
        return self.rng.choice(inner)(depth - 1)

    def number(self) -> Drawn:
        """Numbers within bounds."""
        rng = self.rng
        whole = rng.random() < 0.5
        low, high = sorted((some_number(rng), some_number(rng)), key=exact)
        if rng.random() < 0.4:
            high = plain(exact(low) + rng.choice((0, 1, 2, 5)) * Decimal(rng.choice((1, "0.1"))))
        schema: dict[str, Any] = {"type": "integer" if whole else "number"}
        low_name = rng.choice(("minimum", "minimum", "exclusiveMinimum", None))
        high_name = rng.choice(("maximum", "maximum", "exclusiveMaximum", None))
        schema |= {} if low_name is None else {low_name: low}
        schema |= {} if high_name is None else {high_name: high}
        values = [value for value in _near(low, high) if _fits(value, schema)]
        if not values:
            return Drawn({"const": low}, lambda rng: low)
        if rng.random() < 0.2:
            del schema["type"]
        return Drawn(schema, lambda rng: rng.choice(values))

    def constant(self) -> Drawn:
        """One value."""
        value = some_value(self.rng, 2)
        return Drawn({"const": value}, lambda rng: value)

    def _listed(self) -> Drawn:
        values = [some_value(self.rng, 1) for _ in range(self.rng.randint(1, 4))]
        return Drawn({"enum": values}, lambda rng: rng.choice(values))

    def _text(self) -> Drawn:
        kind = self.rng.choice(("null", "boolean", "string"))
        values = {"null": [None], "boolean": [True, False], "string": ["", "a", "1"]}[kind]
        return Drawn({"type": kind}, lambda rng: rng.choice(values))

    def _object(self, depth: int) -> Drawn:
        names = [f"p{at}" for at in range(self.rng.randint(0, 3))]
        inner = {name: self.any(depth) for name in names}
        required = [name for name in names if self.rng.random() < 0.6]
        schema: dict[str, Any] = {"type": "object", "required": required}
        schema["properties"] = {name: drawn.schema for name, drawn in inner.items()}
        other = self.any(depth - 1) if self.rng.random() < 0.3 else None
        schema["additionalProperties"] = False if other is None else other.schema

        def draw(rng: random.Random) -> dict[str, Any]:
            chosen = [name for name in names if name in required or rng.random() < 0.5]
            value = {name: inner[name].draw(rng) for name in chosen}
            if other is not None:
                value |= {f"other {n}": other.draw(rng) for n in range(rng.randint(0, 2))}
            return value

        return Drawn(schema, draw)

    def _array(self, depth: int) -> Drawn:
        first = [self.any(depth) for _ in range(self.rng.randint(0, 2))]
        rest = self.any(depth)
        least = self.rng.randint(0, 3)
        most = least + self.rng.randint(0, 3)
        schema = {"type": "array", "items": rest.schema, "minItems": least, "maxItems": most}
        schema |= {"prefixItems": [drawn.schema for drawn in first]} if first else {}

        def draw(rng: random.Random) -> list[Any]:
            size = rng.randint(least, most)
            return [d.draw(rng) for d in (first + [rest] * size)[:size]]

        return Drawn(schema, draw)

    def _choice(self, depth: int) -> Drawn:
        options = [self.any(depth) for _ in range(self.rng.randint(1, 3))]
        schema = {"anyOf": [drawn.schema for drawn in options]}
        return Drawn(schema, lambda rng: rng.choice(options).draw(rng))

    def _both(self, depth: int) -> Drawn:
        """Two objects in one, or a number within two ranges."""
        one, other = self._object(depth), self.number()
        if self.rng.random() < 0.5:
            beside = {"properties": {"q": other.schema}, "required": ["q"]}
            first = {key: one.schema[key] for key in ("type", "properties", "required")}
            return Drawn(
                {"allOf": [first, beside], "description": "both"},
                lambda rng: _declared(one.draw(rng)) | {"q": other.draw(rng)},
            )
        return Drawn({"allOf": [other.schema, {"type": "number"}]}, other.draw)

    def _reference(self, depth: int) -> Drawn:
        """A definition of its own; it may hold itself."""
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {}
        inner = self.any(depth)
        reference = {"$ref": f"#/$defs/{name}"}
        self.definitions[name] |= {
            "anyOf": [
                inner.schema,
                {"type": "array", "items": reference, "maxItems": 2, "minItems": 1},
            ]
        }

        def draw(rng: random.Random) -> Any:
            return [draw(rng)] if rng.random() < 0.3 else inner.draw(rng)

        return Drawn(reference, draw)


def _declared(value: dict[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if not name.startswith("other")}


def some_number(rng: random.Random) -> Number:
    """A number of any size and any number of digits."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randint(-100, 100)
    if kind == 1:
        return rng.choice((-1, 1)) * 10 ** rng.randint(0, 25) + rng.randint(-2, 2)
    if kind == 2:
        return rng.choice((-1, 1)) * 2 ** rng.randint(50, 70) + rng.randint(-2, 2)
    if kind == 3:
        return rng.uniform(-1, 1) * 10 ** rng.randint(-9, 12)
    if kind == 4:
        digits = rng.randint(-(10**30), 10**30)
        return plain(Decimal(f"{digits}e-{rng.randint(0, 40)}"))
    if kind == 5:
        return round(rng.uniform(-1000, 1000), rng.randint(0, 3))
    return rng.choice((0, 1, -1, 0.1, 0.5, -0.5, 1.0, 1e22, 1e23, 1e-7, 5e-324, 1.5))


def some_value(rng: random.Random, depth: int) -> Any:
    """A JSON value with such numbers in it."""
    kind = rng.randrange(8)
    if kind == 0 and depth:
        return [some_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 1 and depth:
        return {f"k{at}": some_value(rng, depth - 1) for at in range(rng.randint(0, 3))}
    if kind == 2:
        return rng.choice((None, True, False, "", "1190000000000000001", 'a"\\\n'))
    return some_number(rng)


def parsed(text: str) -> Any:
    """JSON with every number as an ``int`` or a ``Decimal``; exponents that are too long for one
    are cut, which no bound and no constant of these schemas would notice."""
    return json.loads(text, parse_float=lambda digits: Decimal(_LONG_EXPONENT.sub(r"\1", digits)))


def _number_type(checker: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _integer_type(checker: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool) and is_whole(value)


def _multiple(validator: object, step: Any, value: Any, schema: object) -> Any:
    if _number_type(None, value) and Fraction(value) % Fraction(step):
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


_EXACT = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"multipleOf": _multiple},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "number", _number_type
    ).redefine("integer", _integer_type),
)


def satisfies(schema: Any, text: str) -> bool:
    """Whether JSON text satisfies a schema, whatever the digits."""
    return bool(_EXACT(parsed(written(schema))).is_valid(parsed(text)))


def _near(low: Number, high: Number) -> list[Number]:
    ends = [exact(low), exact(high)]
    steps = [Decimal(step) for step in ("0", "1", "-1", "0.5", "0.001")]
    found = [end + step for end in ends for step in steps] + [Decimal(0)]
    return [plain(value) for value in found]


def _fits(value: Number, schema: dict[str, Any]) -> bool:
    return satisfies(schema, written(value))
