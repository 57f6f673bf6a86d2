"""What a schema says of lists, which values it lists, and whether the grammar library refuses it.

Knows JSON Schema as ``schema_dialect`` leaves it. Knows no syntax.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools_api.exact_json import written
from tools_api.schema_dialect import REFUSED
from tools_api.schema_references import resolved

_LIST_KEYS = frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"})
_MAX_DEPTH = 8
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_INSTANCES = frozenset({"const", "enum", "default", "examples"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForm:
    """The items that a list may have."""

    first: Sequence[Any]
    """Schemas of the first ones."""
    rest: Any
    """Schema of those behind them; False: there may be none."""
    least: int
    most: int | None


def list_form(root: Any, schema: dict[str, Any]) -> ListForm | None:
    """The form of a list; None where it is not plain to see."""
    parts = [schema, *(part for part in _all_of(root, schema, 0) if part.keys() & _LIST_KEYS)]
    starts = [start for start in map(_first_items, parts) if start]
    if len(starts) > 1:
        return None
    others = [each for part in parts if (each := _other_items(part)) is not True]
    rest: Any = others[0] if len(others) == 1 else {"allOf": others} if others else True
    least = max(_count(part, "minItems", 0) for part in parts)
    limits = [part["maxItems"] for part in parts if isinstance(part.get("maxItems"), int)]
    start = starts[0] if starts else []
    most = min(limits) if limits else None
    if False in others:
        rest, most = False, min([len(start), *limits])
    return ListForm(first=start[:most], rest=rest, least=least, most=most)


def listed_values(root: Any, schema: dict[str, Any]) -> list[Any] | None:
    """The values that a schema lists, in its ``allOf`` too; None: it lists none."""
    parts = [schema, *_all_of(root, schema, 0)]
    listed = [part.get("enum", [part["const"]] if "const" in part else None) for part in parts]
    found = [values for values in listed if isinstance(values, list)]
    if not found:
        return None
    others = [{written(value) for value in values} for values in found[1:]]
    return [value for value in found[0] if all(written(value) in other for other in others)]


def times(least: int, most: int | None) -> str:
    """How often something comes, as Lark says it."""
    if most is None:
        return "*" if not least else f"{{{least},}}"
    return f"{{{least},{most}}}"


def has_refused(node: Any, *, names: bool = False) -> bool:
    """Whether the library will refuse a schema by name; ``names``: it is a mapping of names."""
    if isinstance(node, list):
        return any(map(has_refused, node))
    if not isinstance(node, dict):
        return False
    if not names and REFUSED.keys() & node.keys():
        return True
    return any(
        has_refused(inner, names=not names and key in _MAPS)
        for key, inner in node.items()
        if names or key not in _INSTANCES
    )


def only_empty(schema: Any) -> bool:
    """Whether no string but the empty one satisfies a schema, as far as it is plain to see."""
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    texts = [each for each in listed or () if isinstance(each, str)]
    return (bool(texts) and not any(texts)) or schema.get("maxLength") == 0


def _all_of(root: Any, schema: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """The schemas of ``allOf``, one inside the other."""
    for each in schema.get("allOf") or () if depth < _MAX_DEPTH else ():
        part = resolved(root, each)
        if isinstance(part, dict):
            yield part
            yield from _all_of(root, part, depth + 1)


def _first_items(schema: dict[str, Any]) -> list[Any]:
    items = schema.get("prefixItems", schema.get("items"))
    return items if isinstance(items, list) else []


def _other_items(schema: dict[str, Any]) -> Any:
    items = schema.get("items", True)
    return schema.get("additionalItems", True) if isinstance(items, list) else items


def _count(schema: dict[str, Any], key: str, default: int) -> int:
    value = schema.get(key, default)
    return value if isinstance(value, int) else default
