"""Random schemas as tools have them and beyond: wide, deep, recursive, circular, with lists,
patterns, lengths and numbers of any size."""

import random
from collections.abc import Callable
from typing import Any

from tests.support.exact_schemas import some_number

Schema = dict[str, Any]
_WORDS = ("id", "name", "city", "status", "price", "created_at", "tags", "note", "count", "url")
_PATTERNS = (
    "^[a-z]{2,8}$",
    "^v[0-9]+(\\.[0-9]+){0,2}$",
    "^[A-Z]{3}-[0-9]{4}$",
    "a|bc",
    "^.{0,40}$",
)
_FORMATS = ("date", "date-time", "email", "uuid", "ipv4", "uri", "time", "colour")


def wide_schema(rng: random.Random) -> Schema:
    """More than a thousand properties, of which some have to come."""
    names = [f"{rng.choice(_WORDS)}_{at}" for at in range(rng.randint(1001, 3000))]
    kinds: list[Schema] = [{"type": "string"}, {"type": "integer"}, {"type": ["null", "boolean"]}]
    schema: Schema = {"type": "object", "properties": {name: rng.choice(kinds) for name in names}}
    schema["required"] = rng.sample(names, rng.choice((0, 0, 1, 3, 20)))
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    if rng.random() < 0.3:
        schema = {"type": "object", "properties": {"rows": {"type": "array", "items": schema}}}
    return schema


class Generator:
    """Draws schemas; one for each document."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, Any] = {}
        self._kinds: list[Callable[[int], Any]] = [
            *(self._string, self._string, self._number, self._number, self._listed),
            *(self._plain, self._object, self._object, self._array, self._choice),
            *(self._both, self._recursive, self._map, self._circle),
        ]

    def document(self) -> Schema:
        """A schema that describes an object."""
        schema: Schema = self._object(self._rng.randint(1, 6))
        if self._definitions:
            schema["$defs"] = self._definitions
        return schema

    def _any(self, depth: int) -> Any:
        kinds = self._kinds if depth > 0 else self._kinds[:6]
        return self._rng.choice(kinds)(depth - 1)

    def _plain(self, depth: int) -> Any:
        return self._rng.choice(({"type": "boolean"}, {"type": "null"}, {}, True))

    def _string(self, depth: int) -> Schema:
        rng, schema = self._rng, Schema(type="string")
        match rng.randrange(5):
            case 0:
                schema["pattern"] = rng.choice(_PATTERNS)
            case 1:
                schema["format"] = rng.choice(_FORMATS)
            case 2:
                schema["minLength"] = rng.randint(0, 40)
                schema["maxLength"] = rng.choice((40, 64, 255, 4096))
        return schema

    def _number(self, depth: int) -> Schema:
        rng = self._rng
        schema: Schema = {"type": rng.choice(("integer", "number", ["number", "null"]))}
        if rng.random() < 0.5:
            schema[rng.choice(("minimum", "exclusiveMinimum"))] = some_number(rng)
        if rng.random() < 0.3:
            schema[rng.choice(("maximum", "exclusiveMaximum"))] = some_number(rng)
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice((1, 2, 5, 10, 0.01, 0.5, 0.25, 7, 1000, 0.07))
        return schema

    def _listed(self, depth: int) -> Schema:
        rng = self._rng
        if rng.random() < 0.2:
            return {"const": rng.choice((some_number(rng), "fixed", None, {"k": [1, "b"]}))}
        size = rng.choice((1, 3, 10, 200))
        words = [f"{rng.choice(_WORDS)} {at}" for at in range(size)]
        return {"enum": rng.choice((words, [*words[:3], some_number(rng), None, True]))}

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(_WORDS, rng.randint(0, 5))
        schema: Schema = {"properties": {name: self._any(depth) for name in names}}
        schema["type"] = "object"
        schema["required"] = [name for name in names if rng.random() < 0.4]
        rest = rng.random()
        if rest < 0.5:
            schema["additionalProperties"] = False
        elif rest < 0.6:
            schema["additionalProperties"] = self._any(depth - 1)
        return schema

    def _array(self, depth: int) -> Schema:
        rng, schema = self._rng, Schema(type="array", items=self._any(depth))
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, 3)
        if rng.random() < 0.5:
            schema["maxItems"] = rng.choice((3, 5, 50))
        if rng.random() < 0.2:
            schema["prefixItems"] = [self._any(depth) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.2:
            schema["uniqueItems"] = True
        return schema

    def _choice(self, depth: int) -> Schema:
        keyword = self._rng.choice(("anyOf", "anyOf", "oneOf"))
        return {keyword: [self._any(depth) for _ in range(self._rng.randint(1, 4))]}

    def _both(self, depth: int) -> Schema:
        return {"allOf": [self._object(depth) for _ in range(self._rng.randint(1, 2))]}

    def _map(self, depth: int) -> Schema:
        if self._rng.random() < 0.5:
            return {"type": "object", "additionalProperties": self._any(depth)}
        by_name = {"^x-": self._any(depth)}
        return {"type": "object", "patternProperties": by_name, "additionalProperties": False}

    def _recursive(self, depth: int) -> Schema:
        """A definition that holds itself, maybe by way of another one."""
        name = f"node{len(self._definitions)}"
        itself = {"$ref": f"#/$defs/{name}"}
        schema = self._definitions[name] = self._object(depth)
        inner: list[Any] = [
            {"type": "array", "items": itself},
            itself,
            {"anyOf": [itself, {"type": "null"}]},
            {"type": "object", "additionalProperties": itself},
        ]
        schema["properties"]["more"] = self._rng.choice(inner)
        if self._rng.random() < 0.1:
            schema["required"].append("more")
        return itself

    def _circle(self, depth: int) -> Schema:
        """A reference that leads back to itself, and says nothing on the way."""
        if self._rng.random() < 0.7:
            return self._recursive(depth)
        name = f"circle{len(self._definitions)}"
        itself = {"$ref": f"#/$defs/{name}"}
        self._definitions[name] = self._rng.choice(
            (itself, {"anyOf": [itself, itself]}, {"allOf": [itself, {"type": "object"}]})
        )
        return self._rng.choice((itself, {"anyOf": [itself, {"type": "string"}]}))
