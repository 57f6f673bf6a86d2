"""Whether a schema tells names of properties apart, so that each may be spelled in one way alone.

The grammar library leaves a declared name out of the undeclared ones as it is written, and would
let it come again as an escape (``"\\u0061"`` for ``"a"``), with a value that the declared schema
forbids: whoever reads the output takes the last. Without the escape ``\\u`` there is one spelling
of each name. A text then has none of the control characters that need it, which is why the escape
stays where a schema seems to ask for one.

Knows JSON Schema and JSON's escapes. Knows no grammar.

Always true: where ``spellings`` answers ``FREE``, no second spelling of a name changes which
schema its value has to satisfy.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from tools_api.exact_json import dumps

ONE_SPELLING = 'nrbtf\\"'
"""The escapes of which none is a second way to write a character."""

NEEDLESS = re.compile(r"\\u(?!00[01]|007[fF])")
"""An escape that the grammar lets through in undeclared names alone."""
_INSTANCES = frozenset({"const", "enum", "default", "examples", "required"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_CONTROLS = re.compile(rb"\\u00(?:[01]|7[fF])|\x7f|\\\\[xucpPv]")
"""A control character in a schema's JSON, or what could stand for one in a pattern."""
_ESCAPED = re.compile("[\x00-\x1f\x7f]")
"""Characters that the library spells in two ways where they need not stand as they are."""


class Spellings(Enum):
    """The ways in which the names of an output may be spelled."""

    FREE = "free"
    ONE = "one"
    CHECKED = "checked"
    """Any spelling; that a name came twice is found when the output is finished."""


def spellings(schema: Any) -> Spellings:
    """How the names in an output of that schema may be spelled."""
    if not any(map(_tells_names_apart, _objects(schema))):
        return Spellings.FREE
    asks_for_controls = _CONTROLS.search(dumps(schema)) is not None
    return Spellings.CHECKED if asks_for_controls else Spellings.ONE


def _tells_names_apart(node: dict[str, Any]) -> bool:
    """Whether a schema leaves room for undeclared names beside those of which it says more."""
    by_pattern = node.get("patternProperties")
    if node.get("additionalProperties") is False:
        listed = (node.get("properties"), node.get("required"))
        # A schema that nobody has checked yet may have anything there.
        names = [name for part in listed if isinstance(part, dict | list) for name in part]
        return bool(by_pattern) and _ESCAPED.search("".join(map(str, names))) is not None
    return bool(node.get("properties") or node.get("required") or by_pattern)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """The objects of a document that could be a schema."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            for key, value in node.items():
                if key in _MAPS and isinstance(value, dict):
                    pending += value.values()
                elif key not in _INSTANCES and not isinstance(value, str):
                    pending.append(value)
        elif isinstance(node, list):
            pending += node
