"""JSON instances written as a grammar wants them: properties in the order of the schema.

A grammar fixes the order of properties and the separators; JSON does not. An instance of a
data set is therefore written anew before it is judged: in the order in which the schema
declares its properties, undeclared ones last, in their own order.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema

Schema = dict[str, Any]

_MAX_DEPTH = 64


def write(instance: Any, schema: Any) -> str:
    """The instance as text, ordered by the schema."""
    return json.dumps(_ordered(instance, [schema], schema, 0), ensure_ascii=False)


def accepts(schema: Any, instance: Any) -> bool:
    """Whether the reference implementation takes the instance; formats are not asserted."""
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        return bool(validator(schema).is_valid(instance))
    except Exception:
        # A schema out of its own order (a reference to nowhere) accepts nothing.
        return False


def _ordered(instance: Any, schemas: list[Any], root: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return instance
    nodes = [node for schema in schemas for node in _applying(schema, instance, root, 0)]
    if isinstance(instance, dict):
        declared: dict[str, list[Any]] = {}
        for node in nodes:
            for name, sub in _mapping(node.get("properties")):
                declared.setdefault(name, []).append(sub)
        names = [n for n in declared if n in instance] + [n for n in instance if n not in declared]
        schemas_of = {n: declared.get(n) or _undeclared(nodes, n) for n in names}
        return {n: _ordered(instance[n], schemas_of[n], root, depth + 1) for n in names}
    if isinstance(instance, list):
        return [
            _ordered(item, [_item_schema(n, i) for n in nodes], root, depth + 1)
            for i, item in enumerate(instance)
        ]
    return instance


def _undeclared(nodes: list[Schema], name: str) -> list[Any]:
    """The schema of a property that is not declared: by patterns, else for all others."""
    found: list[Any] = []
    for node in nodes:
        matching = [
            sub for pattern, sub in _mapping(node.get("patternProperties")) if _fits(pattern, name)
        ]
        found += matching or [node.get("additionalProperties")]
    return found


def _fits(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _item_schema(node: Schema, index: int) -> Any:
    prefix = node.get("prefixItems")
    items = node.get("items")
    if isinstance(items, list):
        prefix, items = items, node.get("additionalItems")
    return prefix[index] if isinstance(prefix, list) and index < len(prefix) else items


def _applying(schema: Any, instance: Any, root: Any, depth: int) -> Iterator[Schema]:
    """The schema and those it includes, in order; of alternatives the first that fits."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    yield schema
    if isinstance(schema.get("$ref"), str):
        yield from _applying(_resolve(schema["$ref"], root), instance, root, depth + 1)
    for sub in schema.get("allOf") or ():
        yield from _applying(sub, instance, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        for sub in schema.get(keyword) or ():
            if accepts(_with_definitions(sub, root), instance):
                yield from _applying(sub, instance, root, depth + 1)
                break


def _with_definitions(schema: Any, root: Any) -> Any:
    if not isinstance(schema, dict) or not isinstance(root, dict):
        return schema
    named = {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
    return named | schema


def _resolve(reference: str, root: Any) -> Any:
    """The target of a reference inside the document; None for any other."""
    if not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        if not part:
            continue
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _mapping(value: Any) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, dict) else ()
