"""Arguments that are written one by one: which there may be, and in which orders.

Arguments come in any order, each once and all that are required, up to eight of them; where there
are more, or many tools, so many at a time in the schema's order.

Knows objects of JSON Schema as ``schema_dialect`` leaves them, and Lark. Knows no syntax.

Always true: what the rules let pass has every required name and none twice, but for names that
the schema does not declare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools_api.lark_rules import LarkRules
from tools_api.schema_references import resolved

_MOST_IN_ANY_ORDER = 8
_ORDER_CHARS = 60_000
_MAX_WAYS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One of the forms that a tool's arguments may have."""

    properties: dict[str, Any]
    required: frozenset[str]
    more: Any
    """Schema of arguments that are not declared; False: there may be none."""


def group_size(tools: int) -> int:
    """How many arguments may come in any order, so that the rules stay short."""
    size = _MOST_IN_ANY_ORDER
    while size > 2 and max(tools, 1) * size * 2**size * 4 > _ORDER_CHARS:
        size -= 1
    return size


def ordered(
    lark: LarkRules,
    prefix: str,
    named: Sequence[tuple[str, bool]],
    *,
    more: str,
    group: int,
    separator: str = "",
    one_at_least: bool = False,
    more_last: bool = False,
) -> str:
    """Rules, each at most once and the needed ones surely, in any order within groups.

    Args:
        named: the rules, and whether they are needed.
        more: a rule that may come as often as it likes; "" if there is none.
        separator: Lark that stands between two of them.
        one_at_least: one has to come, of which there are some.
        more_last: ``more`` comes behind the others.
    """
    assert named or more or not one_at_least, "there are none"
    tells_fresh = one_at_least or bool(separator)
    orders = _Orders(lark, prefix, more, separator, tells_fresh=tells_fresh, more_last=more_last)
    groups = [named[start : start + group] for start in range(0, len(named), group)] or [()]
    ends = {False: '""', True: "" if one_at_least else '""'}
    for number in range(len(groups) - 1, -1, -1):
        if more_last and number < len(groups) - 1:
            orders.more = ""
        ends = orders.add(number, groups[number], ends)
    return ends[tells_fresh]


class _Orders:
    """One rule for each set of those that were written."""

    def __init__(
        self,
        lark: LarkRules,
        prefix: str,
        more: str,
        separator: str,
        *,
        tells_fresh: bool,
        more_last: bool,
    ) -> None:
        self._lark = lark
        self._prefix = prefix
        self.more = more
        """What may come in the groups that are added next."""
        self._more_last = more_last
        self._separator = separator
        self._tells_fresh = tells_fresh
        """Whether nothing was written yet makes a difference."""

    def add(
        self, number: int, named: Sequence[tuple[str, bool]], behind: dict[bool, str]
    ) -> dict[bool, str]:
        """The rules of a group; gives its entry, by whether nothing was written before.

        Args:
            behind: the entries of the next group.
        """
        needed = sum(1 << at for at, (_, is_needed) in enumerate(named) if is_needed)
        whole = (1 << len(named)) - 1
        for done in range(whole, -1, -1):
            for fresh in (False, True) if self._tells_fresh and not done else (False,):
                before = "" if fresh else self._separator
                ways = [
                    f"{before} {rule} {self._state(number, done | 1 << at)}"
                    for at, (rule, _) in enumerate(named)
                    if not done >> at & 1
                ]
                is_enough = done & needed == needed
                if self.more and (is_enough or not self._more_last):
                    ways.append(f"{before} {self.more} {self._state(number, done)}")
                if is_enough and behind[fresh]:
                    ways.append(behind[fresh])
                body = " | ".join(way.strip() for way in ways)
                self._lark.rule(self._state(number, done, fresh=fresh), body)
        return {fresh: self._state(number, 0, fresh=fresh) for fresh in (False, True)}

    def _state(self, number: int, done: int, *, fresh: bool = False) -> str:
        return f"{self._prefix}{'f' if fresh else 's'}{number}_{done}"


def object_ways(root: Any, schema: Any = None) -> list[Way]:
    """The forms that an object may have; none, where that is not plain to see.

    Args:
        schema: a part of the document ``root``; None: all of it.
    """
    try:
        ways = _ways(root, root if schema is None else schema, 0)
    except _Unclear:
        return []
    return ways if len(ways) <= _MAX_WAYS else []


class _Unclear(Exception):
    """An object whose content is not plain to see."""


def _ways(root: Any, schema: Any, depth: int) -> list[Way]:
    schema = resolved(root, schema)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or depth > 8 or schema.get("patternProperties"):
        raise _Unclear
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _Unclear
    if "enum" in schema or "const" in schema or schema.keys() & {"minProperties", "maxProperties"}:
        raise _Unclear
    ways = [
        Way(
            properties=properties,
            required=frozenset(required),
            more=schema.get("additionalProperties", True),
        )
    ]
    for part in schema.get("allOf") or ():
        ways = [_both(one, other) for one in ways for other in _ways(root, part, depth + 1)]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            inner = [way for part in schema[key] for way in _ways(root, part, depth + 1)]
            ways = [_both(one, other) for one in ways for other in inner]
            if len(ways) > _MAX_WAYS:
                raise _Unclear
    return [_with_required(way) for way in ways] if depth == 0 else ways


def _both(one: Way, other: Way) -> Way:
    """A schema that both of them are satisfied by."""
    shared = one.properties.keys() & other.properties.keys()
    properties: dict[str, Any] = {}
    for way, beside in ((one, other), (other, one)):
        for key, schema in way.properties.items():
            if key not in beside.properties and beside.more is not True:
                schema = False if beside.more is False else {"allOf": [schema, beside.more]}
            properties.setdefault(key, schema)
    for key in shared:
        if one.properties[key] != other.properties[key]:
            properties[key] = {"allOf": [one.properties[key], other.properties[key]]}
    more = other.more if one.more is True else one.more
    if one.more not in (True, False) and other.more not in (True, False):
        more = {"allOf": [one.more, other.more]}
    if False in (one.more, other.more):
        more = False
    return Way(properties=properties, required=one.required | other.required, more=more)


def _with_required(way: Way) -> Way:
    """Arguments with every required name declared. Raises ``_Unclear``: one of them may not be
    there."""
    properties = dict(way.properties)
    for name in sorted(way.required - properties.keys()):
        properties[name] = way.more
    if any(properties[name] is False for name in way.required):
        raise _Unclear
    return Way(properties=properties, required=way.required, more=way.more)
