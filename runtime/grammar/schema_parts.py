"""The schemas inside a schema that say something of a value; a schema taken out of its document.

Knows where JSON Schema has schemas and references. Knows no grammar.

Always true: definitions by themselves say nothing; nothing that is handed in is changed.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any

from tools_api.schema_references import Schema, pointed_at

APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")
"""Keywords by which other schemas say something of the same value."""
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = frozenset({"properties", "patternProperties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE = frozenset({"items", "additionalItems", "additionalProperties"})
_HOLDING = _MAPS | _LISTS | _SINGLE


def nodes(schema: Any) -> Iterator[Schema]:
    """A schema and all within it; what they refer to is not followed."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield node
        for key in node.keys() & _HOLDING:
            value = node[key]
            if key in _MAPS and isinstance(value, dict):
                pending += value.values()
            elif key in _LISTS and isinstance(value, list):
                pending += value
            elif key in _SINGLE:
                pending.append(value)


def changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """A copy of a schema of which it and all within it went through ``change``, definitions left
    out."""
    if not isinstance(schema, dict):
        return schema
    new: Schema = {}
    for key, value in schema.items():
        if key in _DEFINITIONS:
            continue
        if key in _MAPS and isinstance(value, dict):
            new[key] = {name: changed(inner, change) for name, inner in value.items()}
        elif key in _LISTS and isinstance(value, list):
            new[key] = [changed(inner, change) for inner in value]
        else:
            new[key] = changed(value, change) if key in _SINGLE else value
    return change(new)


def references_to(root: Schema, wanted: Callable[[Schema], bool]) -> frozenset[str]:
    """The references of a document behind which, however far, there is a schema that is wanted."""
    behind: dict[str, list[Schema]] = {}
    pending: list[Any] = [root]
    while pending:
        for node in nodes(pending.pop()):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference not in behind:
                target = pointed_at(root, reference)
                behind[reference] = [*nodes(target)]
                pending.append(target)
    found = {reference for reference, inner in behind.items() if any(map(wanted, inner))}
    while more := {
        reference
        for reference, inner in behind.items()
        if reference not in found and any(node.get("$ref") in found for node in inner)
    }:
        found |= more
    return frozenset(found)


def standalone(
    root: Schema, schema: Schema, change: Callable[[Schema], Schema] = lambda node: node
) -> Schema:
    """A part of the document ``root`` as a document of its own, with what it refers to.

    Args:
        change: every schema goes through it.

    Raises:
        LookupError: a reference leads out of ``root``; the argument is that reference.
    """
    names: dict[str, str] = {}
    pending: list[str] = []

    def renamed(node: Schema) -> Schema:
        node = change(node)
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return node
        if pointed_at(root, reference) is None:
            raise LookupError(reference)
        if reference not in names:
            names[reference] = f"d{len(names)}"
            pending.append(reference)
        return node | {"$ref": f"#/$defs/{names[reference]}"}

    document: Schema = changed(schema, renamed)
    definitions: Schema = {}
    while pending:
        reference = pending.pop()
        definitions[names[reference]] = changed(pointed_at(root, reference), renamed)
    draft = {key: root[key] for key in ("$schema",) if key in root}
    return draft | document | ({"$defs": definitions} if definitions else {})


def circles(root: Schema) -> dict[int, str]:
    """The schemas of a document that say of a value only that it is what they say of it, by
    ``id``: references, and choices among them, that lead back to themselves. With the keyword that
    does."""
    applying = [node for node in _reachable(root) if any(key in node for key in APPLICATORS)]
    open_ends = {id(node): node for node in reversed(applying)}
    while begun := [at for at, node in open_ends.items() if _begins(root, node, open_ends)]:
        for at in begun:
            del open_ends[at]
    return {at: next(k for k in APPLICATORS if k in node) for at, node in open_ends.items()}


def _reachable(root: Schema) -> list[Schema]:
    """The schemas that say something of a value."""
    found: dict[int, Schema] = {}
    pending: list[Any] = [root]
    while pending:
        for node in nodes(pending.pop()):
            if id(node) in found:
                continue
            found[id(node)] = node
            if isinstance(node.get("$ref"), str):
                pending.append(pointed_at(root, node["$ref"]))
    return list(found.values())


def _begins(root: Schema, node: Schema, open_ends: Container[int]) -> bool:
    """Whether what a schema applies leads to one that says something itself."""
    for key in APPLICATORS:
        value = node.get(key)
        if key == "$ref" and isinstance(value, str):
            if id(pointed_at(root, value)) in open_ends:
                return False
        elif isinstance(value, list) and value:
            ends = [id(inner) in open_ends for inner in value]
            if all(ends) if key in ("anyOf", "oneOf") else any(ends):
                return False
    return True
