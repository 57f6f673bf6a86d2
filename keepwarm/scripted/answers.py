"""Answers of a script: what becomes of one turn, in the words of a test.

A text, a call, a list of both, or a ``ScriptedTurn`` made by one of the functions here. Knows no
frames and no sessions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tools_api.errors import ApiError

_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedText:
    """A message, or reasoning, in the pieces in which it streams."""

    pieces: tuple[str, ...]
    thought: bool = False
    cut: bool = False
    """It breaks off behind the last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A call of a function, or of a custom tool, whose arguments stream in pieces."""

    name: str
    """As the model calls it: with its namespace, where it has one."""
    pieces: tuple[str, ...]
    """Pieces of the arguments, which are JSON, or of a custom tool's input as it is."""
    cut: bool = False
    """It breaks off behind the last piece."""


ScriptedPart = ScriptedText | ScriptedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """All that becomes of one turn."""

    parts: tuple[ScriptedPart, ...] = ()
    status: str = "completed"
    """``completed``, ``incomplete`` or ``failed``."""
    reason: str | None = None
    """``keepwarm.reason``: why it did not complete."""
    error: tuple[str, str] | None = None
    """Code and message of one that failed."""
    refusal: ApiError | None = None
    """Instead of all this: the request is refused."""
    cut_after: int | None = None
    """Events behind which the socket breaks, once; the turn goes on and is told to who asks
    again."""
    held: bool = False
    """Its end waits for a cancel, or for ``ScriptedServer.go_on``."""
    usage: Mapping[str, Any] | None = None
    """As a real server counted; None: counted here, a token for each piece."""
    keepwarm: Mapping[str, Any] | None = None
    """Fields of ``response.keepwarm`` at its end, in place of those that are made here."""


def say(text: str) -> ScriptedText:
    """A message, a word at a time."""
    return ScriptedText(pieces=_pieces(text))


def think(text: str) -> ScriptedText:
    """Reasoning, a word at a time."""
    return ScriptedText(pieces=_pieces(text), thought=True)


def call(name: str, /, **arguments: Any) -> ScriptedCall:
    """A call of the function ``name``. Arguments that are no Python names, or none that fit, go
    through ``call_text``."""
    return call_text(name, json.dumps(arguments, ensure_ascii=False))


def call_text(name: str, text: str) -> ScriptedCall:
    """A call whose arguments, or whose input, are that text."""
    return ScriptedCall(name=name, pieces=_pieces(text))


def refuse(code: str, message: str = "refused by the script", *, status: int = 400) -> ScriptedTurn:
    """The request is refused before it starts: an ``ApiError`` of that code and status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return ScriptedTurn(refusal=ApiError(message, code=code, status=status, type=kind))


def fail(
    code: str = "server_error", message: str = "failed by the script", *answers: Any
) -> ScriptedTurn:
    """The turn ends ``failed``, behind what it had said: a ``TurnFailed``."""
    return replace(_broken_off(list(answers)), status="failed", error=(code, message))


def stop(answer: Any, reason: str = "max_output_tokens") -> ScriptedTurn:
    """The turn breaks off behind ``answer`` and ends ``incomplete``."""
    return replace(_broken_off(answer), status="incomplete", reason=reason)


def cut(answer: Any, *, after: int = 3) -> ScriptedTurn:
    """The socket breaks behind so many events of the turn, which goes on without it."""
    return replace(turn_of(answer), cut_after=after)


def hold(answer: Any) -> ScriptedTurn:
    """All but the last event comes; that waits for a cancel, for ``ScriptedServer.go_on``, or for
    a steer, which the script's next answer has heard."""
    return replace(turn_of(answer), held=True)


def turn_of(answer: Any) -> ScriptedTurn:
    """An answer as a ``ScriptedTurn``.

    Raises:
        TypeError: it is none.
    """
    if isinstance(answer, ScriptedTurn):
        return answer
    several = [answer] if isinstance(answer, str | ScriptedText | ScriptedCall) else answer
    if not isinstance(several, Sequence):
        raise TypeError(
            f"a script answers with a text, call(...), a list of them, or one of the functions of "
            f"keepwarm.testing, not with {type(answer).__name__}"
        )
    parts = [say(part) if isinstance(part, str) else part for part in several]
    for part in parts:
        if not isinstance(part, ScriptedText | ScriptedCall):
            raise TypeError(f"a part of an answer is {type(part).__name__}: give a text or call()")
    return ScriptedTurn(parts=tuple(parts))


def _broken_off(answer: Any) -> ScriptedTurn:
    turn = turn_of(answer)
    last = tuple(replace(part, cut=True) for part in turn.parts[-1:])
    return replace(turn, parts=(*turn.parts[:-1], *last))


def _pieces(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text)) or ((text,) if text else ())
