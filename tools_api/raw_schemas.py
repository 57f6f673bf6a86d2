"""A schema taken apart for raw text: what its strings look like, and what is JSON of it.

Strings become bodies of terminals; objects and arrays, and numbers where no string may stand, stay
a schema for the library's JSON. Where both may stand JSON wins: no text is a string that would be
read as something else.

Knows JSON Schema as ``schema_dialect`` leaves it, and Lark. Knows no tags.

Always true: what the bodies and the schema together let pass is read, with the types of
``raw_values``, as a value that the schema accepts, as far as a grammar holds a model to it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tools_api.lark_rules import literal, slashed
from tools_api.raw_values import INTEGER, NUMBER, SCALARS, Types, types_of
from tools_api.schema_references import resolved

FREE = "/(?s:.*)/"
_MAX_DEPTH = 16
_STRING_KEYS = frozenset({"pattern", "minLength", "maxLength", "format"})
_NUMBER_KEYS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_COMBINED = ("anyOf", "oneOf")
_SCALAR_TEXTS = {"null": '"null"', "boolean": '"true" | "false"', "integer": f"/{INTEGER}/"}
_PYTHON_TEXTS = {"null": '"null" | "None"', "boolean": '"true" | "false" | "True" | "False"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The forms in which a value may be written."""

    text: str | None
    """The body of a terminal; None: only JSON."""
    may_be_empty: bool
    """The text may be none at all."""
    json: dict[str, Any] | None
    """A schema of the rest; None: there is none."""


def parts_of(root: Any, schema: Any, *, python: bool, read: Types | None = None) -> Parts:
    """A schema, taken apart.

    Args:
        root: the document it stands in, for its references.
        python: ``True``, ``False`` and ``None`` may be written for what JSON has.
        read: the types that a text is read as; None: those of the schema.
    """
    types = types_of(root, schema)
    read = types if read is None else read
    if "string" not in types:
        return _without_strings(root, schema, types, python=python)
    bodies = list(_bodies(root, schema, 0))
    read_otherwise = [f"~({_scalar_text(kind, python)})" for kind in _scalars(read)]
    if read & {"object", "array"}:
        read_otherwise.append(r"~/[{\[](?s:.*)/")
    text = " & ".join([_either(bodies), *read_otherwise])
    scalars = list(_scalar_bodies(root, schema, types, python))
    return Parts(
        text=_either([text, *scalars]) if bodies else _either(scalars),
        may_be_empty=accepts_empty(root, schema),
        json=restricted(root, schema, types & {"object", "array"}),
    )


def strings_of(root: Any, schema: Any) -> str | None:
    """The body of a terminal for the strings of a schema, the empty one included; None: it has
    none."""
    bodies = list(_bodies(root, schema, 0))
    return _either(bodies) if bodies else None


def _without_strings(root: Any, schema: Any, types: Types, *, python: bool) -> Parts:
    """Words are texts where Python's are taken as well; the rest is JSON."""
    words = types & {"boolean", "null"} if python else frozenset[str]()
    bodies = list(_scalar_bodies(root, schema, words, python))
    rest = types - words if bodies else types
    return Parts(
        text=_either(bodies) if bodies else None,
        may_be_empty=False,
        json=restricted(root, schema, rest),
    )


def _either(bodies: Iterable[str]) -> str:
    ways = list(dict.fromkeys(bodies))
    return ways[0] if len(ways) == 1 else "(" + " | ".join(f"({way})" for way in ways) + ")"


def _scalars(types: Types) -> Iterator[str]:
    known = types & SCALARS
    return iter(sorted(known - {"integer"} if "number" in known else known))


def _scalar_text(kind: str, python: bool) -> str:
    if python and kind in _PYTHON_TEXTS:
        return _PYTHON_TEXTS[kind]
    return f"/{NUMBER}/" if kind == "number" else _SCALAR_TEXTS[kind]


def _scalar_bodies(root: Any, schema: Any, types: Types, python: bool) -> Iterator[str]:
    """Texts of numbers and words beside strings: those that are listed, or all of a type of which
    nothing more is said."""
    for part in branches(root, schema, 0):
        allowed = types_of(root, part) & types & SCALARS
        if part.get("allOf"):
            yield from _scalars_of_all(root, part, allowed, python)
            continue
        listed = part.get("enum", [part["const"]] if "const" in part else None)
        if isinstance(listed, list):
            for value in listed:
                if value is None or isinstance(value, bool | int | float):
                    yield from _listed_scalar(value, allowed, python)
        elif not part.keys() & _NUMBER_KEYS:
            yield from (_scalar_text(kind, python) for kind in _scalars(allowed))
        else:
            words = frozenset(allowed) & {"boolean", "null"}
            yield from (_scalar_text(kind, python) for kind in _scalars(words))


def _scalars_of_all(root: Any, schema: dict[str, Any], types: Types, python: bool) -> Iterator[str]:
    """Texts that fit the schema and each of its ``allOf``."""
    own = {key: value for key, value in schema.items() if key != "allOf"}
    found = [list(_scalar_bodies(root, each, types, python)) for each in (own, *schema["allOf"])]
    if all(found):
        yield " & ".join(f"({_either(bodies)})" for bodies in found)


def _listed_scalar(value: object, allowed: Types, python: bool) -> Iterator[str]:
    from_json = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        kind = "null" if value is None else "boolean"
        if kind in allowed:
            yield literal(from_json[value])
            if python:
                yield literal(str(value))
    elif allowed & {"integer", "number"}:
        yield literal(str(value))


def branches(root: Any, schema: Any, depth: int) -> Iterator[dict[str, Any]]:
    """A schema's alternatives, one inside the other, each with what is said beside them."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        if schema is not False:
            yield {}
        return
    for key in _COMBINED:
        if isinstance(schema.get(key), list):
            beside = {name: value for name, value in schema.items() if name not in _COMBINED}
            for way in schema[key]:
                for part in branches(root, way, depth + 1):
                    yield _merged(beside, part)
            return
    yield schema


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both; where they say two things of one keyword, both hold."""
    if not (one.keys() & other.keys()) - {"title", "description", "default"}:
        return one | other
    return {"allOf": [one, other]} | ({"enum": other["enum"]} if "enum" in other else {})


def _bodies(root: Any, schema: Any, depth: int) -> Iterator[str]:
    """The bodies of the strings of a schema; none if it has none."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        if schema is not False:
            yield FREE
        return
    if "string" not in types_of(root, schema):
        return
    conditions = list(_own_conditions(schema))
    for part in schema.get("allOf") or ():
        conditions.append(_either(_bodies(root, part, depth + 1)))
    for key in _COMBINED:
        if isinstance(schema.get(key), list):
            ways = [body for part in schema[key] for body in _bodies(root, part, depth + 1)]
            conditions.append(_either(ways))
    conditions = [each for each in dict.fromkeys(conditions) if each != FREE]
    yield " & ".join(conditions) if conditions else FREE


def _own_conditions(schema: dict[str, Any]) -> Iterator[str]:
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(listed, list):
        texts = [text for text in listed if isinstance(text, str)]
        yield _either(json_literal(text) for text in texts)
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if isinstance(least, int) and (least > 0 or isinstance(most, int)):
        yield f"/(?s:.{{{least},{most if isinstance(most, int) else ''}}})/"
    if isinstance(schema.get("pattern"), str):
        yield f"/{slashed(whole(schema['pattern']))}/"


def json_literal(text: str) -> str:
    """A literal, the empty one included."""
    return literal(text) or '""'


def whole(pattern: str) -> str:
    """A regular expression for all texts in which ``pattern`` is found, anchors at the ends of its
    alternatives left out."""
    return "|".join(_unanchored(way) for way in _alternatives(pattern))


def _unanchored(way: str) -> str:
    start, end = "(?s:.*)", "(?s:.*)"
    while way.startswith("^"):
        way, start = way[1:], ""
    while re.search(r"(?<!\\)(?:\\\\)*\$\Z", way):
        way, end = way[:-1], ""
    return f"{start}(?:{way}){end}"


def _alternatives(pattern: str) -> list[str]:
    """The pattern cut at the bars that stand in no group and in no class."""
    ways, depth, in_class, i = [""], 0, False, 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            ways[-1] += pattern[i : i + 2]
            i += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        if char == "|" and depth == 0 and not in_class:
            ways.append("")
        else:
            ways[-1] += char
        i += 1
    return ways


def accepts_empty(root: Any, schema: Any, depth: int = 0) -> bool:
    """Whether the empty string is certainly a value of it."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema is not False and depth <= _MAX_DEPTH
    if "string" not in types_of(root, schema):
        return False
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [""])
    if (isinstance(listed, list) and "" not in listed) or schema.get("minLength", 0):
        return False
    if "pattern" in schema and not _finds(schema["pattern"], ""):
        return False
    inner: Callable[[Any], bool] = lambda part: accepts_empty(root, part, depth + 1)  # noqa: E731
    return all(map(inner, schema.get("allOf") or ())) and all(
        any(map(inner, schema[key])) for key in _COMBINED if isinstance(schema.get(key), list)
    )


def _finds(pattern: Any, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except (re.error, TypeError, OverflowError):
        return False


def restricted(root: Any, schema: Any, types: Types, depth: int = 0) -> dict[str, Any] | None:
    """The schema for those types alone; None if nothing is left."""
    inner = resolved(root, schema)
    left = types_of(root, inner) & types
    if not left or depth > _MAX_DEPTH:
        return None
    if left == types_of(root, inner) and isinstance(schema, dict):
        return schema
    if not isinstance(inner, dict):
        inner = {}
    narrow = {key: value for key, value in inner.items() if key not in _STRING_KEYS}
    for key in _COMBINED:
        if isinstance(narrow.get(key), list):
            ways = [restricted(root, part, left, depth + 1) for part in narrow[key]]
            narrow[key] = [way for way in ways if way is not None]
    if isinstance(narrow.get("enum"), list):
        narrow["enum"] = [v for v in narrow["enum"] if types_of(root, {"const": v}) & left]
    elif not any(key in narrow for key in (*_COMBINED, "const", "allOf")):
        narrow["type"] = sorted(left - {"integer"} if "number" in left else left)
    return narrow


def document_of(root: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a document as a document of its own: what it refers to comes with it."""
    if '"$ref"' not in repr(schema).replace("'", '"'):
        return schema
    pointing: dict[str, Any] = _pointing(schema)
    return pointing | {"$defs": {"document": _pointing(root)}}


def _pointing(schema: Any) -> Any:
    """References that lead to the same places of the document below ``$defs/document``."""
    if isinstance(schema, list):
        return [_pointing(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _pointing(value) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = "#/$defs/document" + reference[1:]
    return moved


def string_schemas(root: Any, schema: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Rules for strings that are not free: a pattern, or the texts themselves."""
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    for text in [*(schema.get("enum") or ()), schema.get("const")]:
        if isinstance(text, str):
            yield {"const": text}
    if isinstance(schema.get("pattern"), str):
        yield {"pattern": schema["pattern"]}
    for key in (*_COMBINED, "allOf"):
        for part in schema.get(key) or ():
            yield from string_schemas(root, part, depth + 1)
