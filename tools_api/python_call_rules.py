"""Calls as Python writes them, as rules of a grammar.

Knows ``PythonCalls`` and schemas. Always true: see ``tools_api.call_rules``.
"""

from collections.abc import Sequence
from typing import Any

from tools_api import errors
from tools_api.argument_orders import Way, group_size, object_ways, ordered
from tools_api.call_rules import CallRules, closed_parameters
from tools_api.lark_rules import LarkRules, literal, regex_escaped
from tools_api.python_calls import PythonCalls
from tools_api.raw_schemas import document_of
from tools_api.tools import FunctionTool

_NAME = "/[A-Za-z_][A-Za-z0-9_]*/"


class PythonCallRules(CallRules):
    """Calls with keyword arguments."""

    def __init__(self, lark: LarkRules, syntax: PythonCalls, limit: int) -> None:
        super().__init__(lark, syntax, limit)
        self._before, self._after = syntax.before, syntax.after
        self._blocks = 0
        self._group = 1

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        self._group = group_size(sum(tool.name in chosen for tool in tools))
        self._lark.closes(((")", False),))
        super().add_tools(tools, chosen)

    def _plain_head(self, name: str) -> str:
        return literal(f"{name}\n")

    def _call(self, i: int, tool: FunctionTool) -> str:
        self._blocks = 0
        root = self._lark.in_dialect(closed_parameters(tool.parameters))
        ways = object_ways(root)
        place = f"{tool.place or f'tools[{i}]'}.parameters"
        if not ways:
            raise errors.unsupported_parameter(
                place,
                "this model writes each argument by its name; the schema has to be one of an "
                "object whose properties are plain to see",
            )
        bodies = [self._arguments(i, n, place, root, way) for n, way in enumerate(ways)]
        return f'{literal(tool.name + "(")} ({" | ".join(bodies)}) ")"'

    def _arguments(self, i: int, n: int, place: str, root: Any, way: Way) -> str:
        prefix = f"a{i}" if n == 0 else f"a{i}_{n}"
        named: list[tuple[str, bool]] = []
        for key, schema in way.properties.items():
            if schema is False:
                continue
            if not key or key != key.strip() or key[0] in "),\"'" or "=" in key or "\n" in key:
                raise errors.unsupported_parameter(
                    place, f"this model cannot write the name {key!r} as a keyword"
                )
            self._lark.opens(((f"{key}=", False),))
            body = f"{literal(key + '=')} {self._value(i, root, schema)}"
            rule = self._lark.rule(f"{prefix}k{len(named)}", body)
            named.append((rule, key in way.required))
        more = ""
        if way.more is not False:
            others = [_NAME, *(f"~/{regex_escaped(key)}/" for key in way.properties)]
            name = self._lark.terminal(" & ".join(others), "NAME")
            body = f'{name} "=" {self._value(i, root, way.more)}'
            more = self._lark.rule(f"{prefix}more", body)
        return ordered(self._lark, prefix, named, more=more, group=self._group, separator='", "')

    def _value(self, i: int, root: Any, schema: Any) -> str:
        name = f"arguments_{i}_{self._blocks}"
        self._blocks += 1
        part = schema if isinstance(schema, dict) else {}
        return self._lark.dialect_rule(name, document_of(root, part))
