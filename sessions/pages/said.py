"""A turn's question and answer in a few words, and which tools it called.

The first words alone, for a row of a page; whole items are shown at ``/dashboard/items/{id}``. Only
for eyes of the session's own tenant: the caller sees to that.
"""

from collections.abc import Iterable
from typing import Any

from tools_api.built_in_items import BuiltInCall
from tools_api.items import CallOutput, CustomToolCall, FunctionCall, Item, Message

MAX_CHARS = 200
"""Characters of a text that is shown."""
MAX_CALLS = 8
"""Calls of a turn that are named."""


def turn_words(given: Iterable[Item], made: Iterable[Item]) -> dict[str, Any]:
    """The row's words.

    Args:
        given: items that came with the request.
        made: items that the turn wrote.

    Returns:
        ``asked`` and ``answered``: the first words, None where there were none; ``results``: how
        many tool outputs came; ``calls``: names of the tools that were called, ``more_calls``: how
        many more than are named.
    """
    given, made = tuple(given), tuple(made)
    calls = [each.full_name for each in made if isinstance(each, FunctionCall | BuiltInCall)]
    calls += [each.name for each in made if isinstance(each, CustomToolCall)]
    return {
        "asked": _last(given, {"user", "system", "developer"}),
        "results": sum(isinstance(each, CallOutput) for each in given),
        "answered": _last(made, {"assistant"}),
        "calls": [name[:MAX_CHARS] for name in calls[:MAX_CALLS]],
        "more_calls": max(len(calls) - MAX_CALLS, 0),
    }


def _last(items: tuple[Item, ...], roles: set[str]) -> str | None:
    texts = [each.text for each in items if isinstance(each, Message) and each.role in roles]
    return first_words(texts[-1]) if texts else None


def first_words(text: str) -> str:
    """At most ``MAX_CHARS`` characters in one line."""
    line = " ".join(text[: 4 * MAX_CHARS].split())
    cut = len(line) > MAX_CHARS or len(text) > 4 * MAX_CHARS
    return line[: MAX_CHARS - 1] + "…" if cut else line
