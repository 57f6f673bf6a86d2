"""An output in harmony as rules of a grammar: which messages may come, and how a call is closed.

The whole output is bound, from its first header on: the model can leave neither the channels nor
the form of a call. What a message says is free.

Knows harmony's tokens and schemas. Always true: see ``tools_api.call_rules``.
"""

from collections.abc import Sequence

from tools_api.call_rules import closed_parameters, nested_lark
from tools_api.harmony import (
    ANALYSIS,
    CALL,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    END,
    FINAL,
    MESSAGE,
    NAMESPACE,
    START,
)
from tools_api.lark_rules import LarkRules, literal
from tools_api.tools import FunctionTool

_MOST_MESSAGES = 64
"""Most messages before the last one."""


class HarmonyRules:
    """The rules of one output in Harmony's form."""

    def __init__(self, lark: LarkRules) -> None:
        self._lark = lark
        self._calls: list[str] = []

    def add_tools(self, tools: Sequence[FunctionTool], chosen: frozenset[str]) -> None:
        """One rule for each callable tool, numbered by its place in ``tools``."""
        special = self._lark.special
        for i, tool in enumerate(tools):
            if tool.name not in chosen:
                continue
            recipient = f"{COMMENTARY} to={NAMESPACE}{tool.name} "
            if tool.custom is not None and tool.plain:
                body = self._lark.rule(f"input_{i}", f"%lark {{\n{nested_lark(tool.custom)}\n}}")
                kind = ""
            else:
                schema = closed_parameters(tool.parameters)
                body = self._lark.json_rule(f"arguments_{i}", schema)
                kind = f'{special(CONSTRAIN)} "json"'
            kinds = ((CONSTRAIN, True), ("json", False)) if kind else ()
            self._lark.opens(((recipient, False), *kinds, (MESSAGE, True)))
            head = f"{literal(recipient)} {kind} {special(MESSAGE)}"
            self._calls.append(self._lark.rule(f"call_{i}", f"{head} {body} {special(CALL)}"))

    def output(self, *, value: str | None, required: bool) -> str:
        """The whole of it.

        Args:
            value: rule of what the last message has to be; None: any text.
            required: a call has to come.
        """
        special = self._lark.special
        self._lark.closes(((CALL, True),))
        self._lark.closes(((END, True),))
        if not required:
            self._lark.opens(((FINAL, False), (MESSAGE, True)))
        text = self._lark.terminal("/(?s:.+)/")
        free = self._lark.rule("message", f"{special(MESSAGE)} {text}? {special(END)}")
        again = f'{special(START)} "assistant" {special(CHANNEL)}'
        # What is said beside a value would stand in front of it.
        channels = f'("{ANALYSIS}" | "{COMMENTARY}")' if value is None else f'"{ANALYSIS}"'
        thought = self._lark.rule("thought", f"{channels} {free} {again}")
        last = [] if required else [self._last(value, text)]
        ways = " | ".join([*self._calls, *last])
        return f"{special(CHANNEL)} {thought}{{0,{_MOST_MESSAGES}}} ({ways})"

    def _last(self, value: str | None, text: str) -> str:
        special = self._lark.special
        body = f"{text}?" if value is None else value
        return self._lark.rule("last", f'"{FINAL}" {special(MESSAGE)} {body}')
