"""Values that are written as raw text: a string's text as it is, else JSON.

The schema says which types a value may have, and so how its text is read: JSON of a type that is
allowed wins, then text; what is neither stays as text, so that nothing is lost.

Knows JSON Schema as ``schema_dialect`` leaves it. Knows no tags.

Always true: reading depends on the text and on the types alone.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tools_api import exact_json
from tools_api.chat_format import to_json
from tools_api.schema_references import resolved

Types = frozenset[str]
SCALARS = frozenset({"integer", "number", "boolean", "null"})
ALL_TYPES: Types = SCALARS | {"string", "object", "array"}
PYTHON_WORDS = {
    "True": ("boolean", "true"),
    "False": ("boolean", "false"),
    "None": ("null", "null"),
}
"""Python's words for them, their type and JSON's words."""
INTEGER = r"-?(?:0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_MAX_DEPTH = 16


def types_of(root: Any, schema: Any, depth: int = 0) -> Types:
    """The types that a value may have. All of them, where that is not plain to see."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ALL_TYPES
    types = _named(schema.get("type"))
    if "const" in schema:
        types &= {_type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        types &= {_type_of(value) for value in schema["enum"]}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types &= _union(types_of(root, part, depth + 1) for part in schema[key])
    for part in schema.get("allOf") or ():
        types &= types_of(root, part, depth + 1)
    return types


def argument_types(parameters: Mapping[str, Any]) -> dict[str, Types]:
    """The types of a tool's arguments by their names."""
    root = dict(parameters)
    return {
        name: types_of(root, schema)
        for part in object_parts(root, root)
        for name, schema in part.get("properties", {}).items()
    }


def object_parts(root: Any, schema: Any, depth: int = 0) -> list[dict[str, Any]]:
    """A schema and those that it is put together of."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return []
    parts = [schema] if isinstance(schema.get("properties", {}), dict) else []
    for key in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(key) or ():
            parts += object_parts(root, part, depth + 1)
    return parts


def json_of(text: str, types: Types, *, python: bool) -> str:
    """The JSON of a value that was written as ``text``.

    Args:
        python: ``True``, ``False`` and ``None`` are values too.
    """
    if python and text.strip() in PYTHON_WORDS:
        kind, word = PYTHON_WORDS[text.strip()]
        if kind in types:
            return word
    known = _json_type(text if "string" in types else text.strip())
    if known is not None and known in types:
        return text.strip()
    if "string" in types or known is None:
        return to_json(text)
    return text.strip()


def _json_type(text: str) -> str | None:
    """The type of a JSON text; None if it is none, or has white space around it."""
    if not text or text != text.strip() or text[0] == '"':
        return None
    if re.fullmatch(NUMBER, text):  # also one that no float is as large as
        return "integer" if re.fullmatch(INTEGER, text) else "number"
    try:
        value = exact_json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _type_of(value)


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"


def _named(types: Any) -> Types:
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list):
        return ALL_TYPES
    named = frozenset(name for name in names if isinstance(name, str))
    return named | {"integer"} if "number" in named else named


def _union(parts: Iterable[Types]) -> Types:
    return frozenset().union(*parts)


def begun_json_of(text: str, types: Types, *, python: bool) -> str:
    """The beginning of the JSON of a value that was cut."""
    if not text:
        return ""
    is_json = text[0] in "{[" and types & {"object", "array"}
    if python and not is_json:
        for word, (kind, known) in PYTHON_WORDS.items():
            if kind in types and "string" not in types and word.startswith(text):
                return text.lower() if known.startswith(text.lower()) else known[: len(text)]
    return text if is_json or "string" not in types else to_json(text)[:-1]
