"""Where in a grammar's schemas the value stands that an output is about to write.

Knows how our grammars put schemas and calls into text, and JSON as they space it. Knows no
grammar library.

Always true: a path leads to a schema that is there; where it is not certain it ends earlier.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runtime.grammar.schema_parts import APPLICATORS
from runtime.grammar.schemas import Path, json_blocks, rule_blocks, subschemas
from tools_api.schema_references import Schema, pointed_at

_CALL = re.compile(r'^call_\d+: ("(?:[^"\\]|\\.)*") (\w+) ', re.MULTILINE)
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|"(?:[^"\\]|\\.?)*\Z|[{}\[\],:]')
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of a grammar's schemas, and where in it."""

    block: int
    """Which ``%json`` block, from 0."""
    path: Path


def place_of_value(lark: str, output: str) -> Place | None:
    """The place of the value in which ``output``, written under ``lark``, ends; None where it is
    in no schema."""
    blocks = {_rule_of(lark, block.start): block for block in rule_blocks(lark)}
    rule, text = "value", output.lstrip()
    opened = -1
    for call in _CALL.finditer(lark):
        opening: str = json.loads(call[1])
        at = output.rfind(opening)
        if at > opened:
            rule, text, opened = call[2], output[at + len(opening) :], at
    if rule not in blocks:
        return None
    block = blocks[rule]
    return Place(block=block.number, path=_schema_path(block.schema, _value_path(text)))


def widest_place(lark: str) -> Place | None:
    """The keyword under which most may come next at one point of an output; None without any."""
    widest, most = None, 1
    for block, (_, schema) in enumerate(json_blocks(lark)):
        for path, node in subschemas(schema):
            for keyword, count in _widths(node):
                if count > most:
                    widest, most = Place(block=block, path=(*path, keyword)), count
    return widest


def _widths(node: Schema) -> Iterator[tuple[str, int]]:
    """How many ways to go on the keywords of a schema give."""
    for keyword in ("anyOf", "oneOf", "enum"):
        if isinstance(node.get(keyword), list):
            yield keyword, len(node[keyword])
    properties, required = node.get("properties"), node.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        yield "properties", len(properties.keys() - {n for n in required if isinstance(n, str)})


def _rule_of(lark: str, position: int) -> str:
    return lark[lark.rfind("\n", 0, position) + 1 : position].partition(":")[0]


def _value_path(text: str) -> Path:
    """Names and indices from the root of a value that is being written to where its text ends."""
    path: list[str | int | None] = []
    """One entry for each open container: the name or index whose value is being written; None
    behind an object's bracket or comma, where a name has not been written yet."""
    for piece in _PIECE.findall(text):
        if piece in ("{", "["):
            path.append(None if piece == "{" else 0)
        elif piece in ("}", "]"):
            del path[-1:]
        elif piece == "," and path:
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif piece[0] == '"' and path and path[-1] is None and len(piece) > 1:
            path[-1] = _text_of(piece)
    return tuple(step for step in path if step is not None)


def _text_of(piece: str) -> str | None:
    try:
        return str(json.loads(piece))
    except ValueError:  # cut in the middle
        return None


def _schema_path(root: Any, steps: Path) -> Path:
    """The path in a document to the schema of the value at ``steps``, as far as it is known."""
    node, path = root, Path()
    for step in steps:
        found = _child(root, node, path, step)
        if found is None:
            break
        node, path = found
    return path


def _child(root: Any, node: Any, path: Path, step: str | int, depth: int = 0) -> Any:
    """The schema of a part of what ``node`` describes, with its path; None if it has none."""
    if not isinstance(node, dict) or depth > _MAX_STEPS:
        return None
    for keyword, key in _holders(node, step):
        held = node[keyword] if key is None else node[keyword][key]
        return held, (*path, keyword) if key is None else (*path, keyword, key)
    for keyword in APPLICATORS:
        value = node.get(keyword)
        if keyword == "$ref" and isinstance(value, str):
            there = tuple(value.split("/")[1:])
            found = _child(root, pointed_at(root, value), there, step, depth + 1)
            if found is not None:
                return found
        for index, inner in enumerate(value if isinstance(value, list) else ()):
            found = _child(root, inner, (*path, keyword, index), step, depth + 1)
            if found is not None:
                return found
    return None


def _holders(node: Schema, step: str | int) -> list[tuple[str, str | int | None]]:
    """Under which keyword, and which of its entries, a part of a value is described."""
    if isinstance(step, str):
        properties = node.get("properties")
        if isinstance(properties, dict) and step in properties:
            return [("properties", step)]
        return [("additionalProperties", None)] if "additionalProperties" in node else []
    for keyword in ("prefixItems", "items"):
        listed = node.get(keyword)
        if isinstance(listed, list) and step < len(listed):
            return [(keyword, step)]
    return [("items", None)] if isinstance(node.get("items"), dict) else []
