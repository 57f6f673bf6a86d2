"""Parsed events of a stream added up, and whether a call's arguments are valid.

Shared by the benchmarks that make models write calls. Knows events and ``jsonschema``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks import instances
from tools_api.parsed_events import CallArgumentsDelta, CallDone, ParsedCallStart, ParsedEvent

MAX_SHORTEST_TOKENS = 600
"""Tools whose known shortest call is longer, or not known, are left out; they would take most of
the time."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The sum of a stream of events."""

    started: tuple[str, ...]
    deltas: str
    done: tuple[tuple[str, str, bool], ...]
    other: int


def added_up(events: Iterable[ParsedEvent]) -> Whole:
    events = list(events)
    started = tuple(e.name for e in events if isinstance(e, ParsedCallStart))
    deltas = "".join(e.text for e in events if isinstance(e, CallArgumentsDelta))
    done = tuple((e.name, e.arguments, e.complete) for e in events if isinstance(e, CallDone))
    known = ParsedCallStart | CallArgumentsDelta | CallDone
    return Whole(started, deltas, done, sum(not isinstance(e, known) for e in events))


def is_valid(arguments: str, schema: dict[str, Any]) -> bool:
    """Whether the arguments are an object that the schema accepts."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    return isinstance(value, dict) and instances.accepts(schema, value)
