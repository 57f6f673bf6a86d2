"""Checks of a session's arguments before anything is sent: their kinds and names.

A mistake is one line that names what was given and says what to give instead. What only a server
knows (which models there are) is the server's to say.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tools_api.sdk.options import Budget, meant

_SCOPES = ("tree", "session", "turn")


def of_kind(what: str, value: object, kind: Any, instead: str) -> None:
    """Whether ``value`` is of that kind, or None.

    Raises:
        TypeError: it is not; ``instead`` says what to give.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{what} is of type {type(value).__name__}: give {instead}")


def check_name(name: object) -> None:
    """Whether it can be a session's name, or None.

    Raises:
        TypeError, ValueError: it cannot.
    """
    of_kind("name", name, str, "a string")
    if name is not None and not 1 <= len(str(name)) <= 256:
        raise ValueError("name has 1 to 256 characters: leave it out for a session without one")


def check_labels(labels: object) -> None:
    """Whether they can be a session's labels, or None.

    Raises:
        TypeError: they cannot.
    """
    instead = "a dict of strings, such as {'team': 'search'}"
    of_kind("labels", labels, Mapping, instead)
    for name, value in labels.items() if isinstance(labels, Mapping) else ():
        of_kind(f"labels[{name!r}]", value, str, "a string")
        of_kind(f"the label's name {name!r}", name, str, "a string")


def check_budget(budget: object) -> None:
    """Whether it can be a budget, or None.

    Raises:
        TypeError, ValueError: it cannot; a kind like the one that was typed is told.
    """
    of_kind("budget", budget, Mapping, "a dict, such as {'output': 5000}")
    if not isinstance(budget, Mapping):
        return
    known: Collection[str] = Budget.__optional_keys__
    for kind in budget:
        if kind not in known:
            hint = meant(str(kind), known) or f": it bounds {', '.join(sorted(known))}"
            raise TypeError(f"a budget has no {kind!r}{hint}")
    scope = budget.get("scope", "tree")
    if scope not in _SCOPES:
        raise ValueError(f"the budget's scope {scope!r} is none of {', '.join(_SCOPES)}")


def check_input(input: object) -> None:
    """Whether it can be a turn's input.

    Raises:
        TypeError: it cannot.
    """
    instead = "a string, or a list of items"
    if isinstance(input, Mapping) or not isinstance(input, Sequence):
        of_kind("input", input, type(None), instead)
        raise TypeError(f"input is None: give {instead}")
    if isinstance(input, str):
        return
    for number, item in enumerate(input):
        if not (isinstance(item, Mapping) or _is_ours(item)):
            kind = type(item).__name__
            raise TypeError(f"input[{number}] is of type {kind}: an item is a dict, or one of ours")


def check_outputs(outputs: object) -> None:
    """Whether they can answer calls.

    Raises:
        TypeError: they cannot.
    """
    instead = "a list of outputs, such as FunctionCallOutput(call_id=..., output=...)"
    if isinstance(outputs, str | Mapping) or not isinstance(outputs, Sequence):
        raise TypeError(f"outputs is of type {type(outputs).__name__}: give {instead}")
    for number, item in enumerate(outputs):
        wire = item if isinstance(item, Mapping) else item.to_wire() if _is_ours(item) else {}
        if not isinstance(wire.get("call_id", wire.get("id")), str):
            kind = type(item).__name__
            raise TypeError(
                f"outputs[{number}] is of type {kind} and has no call_id: give {instead}"
            )


def _is_ours(item: object) -> bool:
    return hasattr(item, "to_wire")
