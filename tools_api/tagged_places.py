"""What a schema says of the places in a call's arguments: which types a value may have there.

Where tags are named after keys, and strings stand as they are, a text means what the schema allows
at its place. Reader and rules ask the same place, so they agree on what a text is. Where a schema
has alternatives a place knows all of them: which one holds is not known while a call is read.

Knows JSON Schema as clients write it. Knows no tags.

Always true: a place depends on the names on the way to it alone.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from tools_api.call_reader import SPACE
from tools_api.chat_format import to_json
from tools_api.exact_json import written
from tools_api.raw_values import SCALARS, Types, json_of, types_of
from tools_api.schema_references import resolved

_MAX_DEPTH = 16
_COMBINED = ("anyOf", "oneOf")
_AS_TEXT = SCALARS | {"string"}


class Place:
    """One place: the document, and the schema that holds there. Not changed once it is made."""

    def __init__(self, root: Any, schema: Any) -> None:
        self._root = root
        self.schema = schema
        """True: nothing is said of it."""

    @cached_property
    def types(self) -> Types:
        """The types that a value may have."""
        return types_of(self._root, self.schema)

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names of members that the schema tells of."""
        return frozenset(_declared(self._root, self.schema, 0))

    def member(self, name: str) -> "Place":
        """The place of an object's member. Of alternatives that say nothing of a name that others
        declare nothing is taken."""
        declared = name in self.declared
        return self._inner(_member(self._root, self.schema, name, declared, 0))

    @cached_property
    def item(self) -> "Place":
        """The place of an array's items, all of them alike."""
        return self._inner(_item(self._root, self.schema, 0))

    def _inner(self, schema: Any) -> "Place":
        return Place(self._root, schema if isinstance(schema, dict) else True)


def leaf_json(text: str, types: Types) -> str:
    """The JSON of a value that was written as text, without a tag in it.

    Where a string may stand, text is one unless it is a number or a word of JSON that may stand
    there. Nothing at all is an empty array or an empty object where no string may be.
    """
    if "string" in types:
        return json_of(text, types & _AS_TEXT, python=False)
    if not text.strip(SPACE):
        for kind, empty in (("array", "[]"), ("object", "{}"), ("null", "null")):
            if kind in types:
                return empty
    return json_of(text, types, python=False)


def may_be_empty(kind: str, types: Types) -> bool:
    """Whether an array or an object (``kind``) with nothing in it is read as one."""
    return leaf_json("", types) == ("[]" if kind == "array" else "{}")


def reads_back(value: Any, place: Place) -> bool:
    """Whether a value, written with a tag for each member and item, is read as the same value."""
    types = place.types
    match value:
        case str():
            return leaf_json(value, types) == to_json(value)
        case list():
            if not value:
                return may_be_empty("array", types)
            return "array" in types and all(reads_back(each, place.item) for each in value)
        case dict():
            if not value:
                return may_be_empty("object", types)
            if "array" in types and "item" in value:
                return False
            return "object" in types and all(
                reads_back(inner, place.member(name)) for name, inner in value.items()
            )
    return leaf_json(written(value), types) == written(value)


def _member(root: Any, schema: Any, name: str, declared: bool, depth: int) -> Any:
    """The schema of a member; False: there can be none; None: nothing is said here."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None if declared else True
    silent = declared and name not in _declared(root, schema, depth)
    if silent or "object" not in types_of(root, schema):
        return None
    properties, more = schema.get("properties"), schema.get("additionalProperties", True)
    if schema.get("patternProperties"):
        more = True
    own = properties.get(name, more) if isinstance(properties, dict) else more
    listed = _listed(schema, dict)
    if listed is not None:
        own = {"enum": [value[name] for value in listed if name in value]}
    return _together(schema, own, lambda part: _member(root, part, name, declared, depth + 1))


def _item(root: Any, schema: Any, depth: int) -> Any:
    """The schema of an item; False: there can be none; None: no array may stand here."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return True
    if "array" not in types_of(root, schema):
        return None
    items = schema.get("items", True)
    first = items if isinstance(items, list) else schema.get("prefixItems", [])
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    own = _either([*(first if isinstance(first, list) else ()), rest])
    listed = _listed(schema, list)
    if listed is not None:
        own = {"enum": [each for value in listed for each in value]}
    return _together(schema, own, lambda part: _item(root, part, depth + 1))


def _together(schema: dict[str, Any], own: Any, inner: Callable[[Any], Any]) -> Any:
    """What a schema says itself, and what those say that it is put together of."""
    said = [inner(part) for part in schema.get("allOf") or ()]
    parts = [own, *(part for part in said if part is not None)]
    for key in _COMBINED:
        if isinstance(schema.get(key), list):
            parts.append(_either(inner(part) for part in schema[key]))
    if any(part is False for part in parts):
        return False
    kept = _distinct(part for part in parts if part is not True)
    return kept[0] if len(kept) == 1 else {"allOf": kept} if kept else True


def _either(ways: Iterable[Any]) -> Any:
    """One of the schemas; those that nothing satisfies left out."""
    found = [way for way in ways if way is not None and way is not False]
    if any(not isinstance(way, dict) for way in found):
        return True
    flat = [each for way in found for each in (way["anyOf"] if way.keys() == {"anyOf"} else [way])]
    kept = _distinct(flat)
    return kept[0] if len(kept) == 1 else {"anyOf": kept} if kept else False


def _distinct(schemas: Iterable[Any]) -> list[Any]:
    return list({written(schema): schema for schema in schemas}.values())


def _listed(schema: dict[str, Any], kind: type) -> list[Any] | None:
    """The values of that kind that a schema lists; None: it lists none of any kind."""
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(listed, list):
        return None
    return [value for value in listed if isinstance(value, kind)]


def _declared(root: Any, schema: Any, depth: int) -> Iterator[str]:
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    if isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    required = schema.get("required")
    yield from required if isinstance(required, list) else ()
    for value in _listed(schema, dict) or ():
        yield from value
    for key in ("allOf", *_COMBINED):
        for part in schema.get(key) or ():
            yield from _declared(root, part, depth + 1)
