"""One turn of a scripted server: its answer as the frames that a real server would send.

The events are made by the code that makes a real server's (``sessions.turns.response_events``).
Knows no socket.

Always true: the events are numbered from 0 without a gap, and the last one ends the turn.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keepwarm.scripted.answers import ScriptedCall, ScriptedPart, ScriptedTurn
from sessions.turns.response_events import Piece, ResponseEvents
from tools_api.call_parser import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedReasoning,
    ParsedText,
    ReasoningDone,
    TextDone,
)
from tools_api.events import Event, steer_accepted
from tools_api.responses import ResponseObject, usage

_WHY = {"cancelled": None, "steered": "steered"}
"""By why a turn was cut short, the reason that its response gives, where it is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Prompt, cached and output tokens of a turn."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def to_wire(self) -> dict[str, Any]:
        """The counts as a response's ``usage``."""
        return usage(
            input_tokens=self.input,
            cached_tokens=self.cached,
            cache_write_tokens=self.input - self.cached,
            output_tokens=self.output,
            reasoning_tokens=self.reasoning,
        )


class ScriptedEvents:
    """The events of a turn, as far as they have come; whoever asks for it later gets all."""

    def __init__(
        self,
        response: ResponseObject,
        answer: ScriptedTurn,
        *,
        stream_id: str | None,
        brief: Mapping[str, Any] | None,
        new_id: Callable[[str], str],
        wall_clock: Callable[[], float],
    ) -> None:
        """``brief``: ``response.keepwarm`` before the end; None: there is none."""
        self.response = response
        self.answer = answer
        self._brief = None if brief is None else dict(brief)
        self._wall_clock = wall_clock
        self._events = ResponseEvents(response, stream_id=stream_id, new_id=new_id)
        self.log: list[Event] = []
        self._kept_back: Any = None
        self.over = False
        self.was_cut = False
        """The socket has broken, as the script says."""

    @property
    def output(self) -> list[Any]:
        """The items that are finished."""
        return list(self._events.items)

    def begin(self, counts: Counts | None) -> None:
        """The first events. ``counts``: those of the prompt; None: it fails before it runs."""
        self.log.append(self._events.created(self._brief))
        if counts is None:
            return
        told = {"input": counts.input, "cached": counts.cached}
        recorded: Mapping[str, Any] = (self.answer.keepwarm or {}).get("tokens", {})
        told = {kind: recorded.get(kind, told[kind]) for kind in told}
        brief = None if self._brief is None else self._brief | {"tokens": told}
        self.log.append(self._events.in_progress(brief))

    def write(self, most: int) -> Counts:
        """Write the model's output, ``most`` tokens of it; returns how many it was.

        The last item of a turn that is held stays open.
        """
        counts, answer = [0, 0], self.answer
        for number, part in enumerate(answer.parts):
            left = most - sum(counts)
            last = number + 1 == len(answer.parts)
            whole = len(part.pieces) <= left
            ends = whole and not part.cut
            thought = not isinstance(part, ScriptedCall) and part.thought
            counts[thought] += min(len(part.pieces), left)
            steps = list(_steps(part, left, ends=ends, escaped=self._escaped(part)))
            if last and answer.held:
                self._kept_back = steps.pop()
            for step in steps:
                self.log += self._events.write([Piece(step)], cut=not ends)
            if not whole:
                break
        return Counts(output=sum(counts), reasoning=counts[1])

    def _escaped(self, part: ScriptedPart) -> bool:
        """The model writes the text of that tool's input as JSON."""
        if not isinstance(part, ScriptedCall):
            return False
        tools = [tool for tool in self.response.request.tools if tool.name == part.name]
        return any(tool.custom is not None and not tool.plain for tool in tools)

    def accept(self, id_: str) -> None:
        """Say that the response is steered, by that id."""
        number = self._events.take_number()
        self.log.append(steer_accepted(number, id_, self.response.id))

    def go_on(self) -> None:
        """Write what was held back."""
        if self._kept_back is not None:
            self.log += self._events.write([Piece(self._kept_back)])
            self._kept_back = None

    def end(
        self,
        status: str,
        counts: Mapping[str, Any] | None,
        *,
        reason: str | None,
        error: tuple[str, str] | None,
        keepwarm: Any,
    ) -> None:
        """The last event. ``counts``: the response's ``usage``; None: there is none."""
        self._events.close("incomplete", self.log)
        fields: dict[str, Any] = {}
        if status == "incomplete":
            fields["incomplete_reason"] = _WHY.get(reason or "", "max_output_tokens")
        self.log.append(
            self._events.terminal(
                status,  # type: ignore[arg-type]
                usage=dict(counts) if counts else None,
                error=error,
                completed_at=int(self._wall_clock()),
                keepwarm=keepwarm,
                **fields,
            )
        )
        self.over = True


def _steps(part: ScriptedPart, most: int, *, ends: bool, escaped: bool) -> Iterator[Any]:
    """The events that a parser would find in the part, in ``most`` pieces of it."""
    pieces = part.pieces[:most]
    if not isinstance(part, ScriptedCall):
        yield from map(ParsedReasoning if part.thought else ParsedText, pieces)
        yield ReasoningDone() if part.thought else TextDone()
        return
    yield ParsedCallStart(part.name)
    if escaped:
        yield CallArgumentsDelta('{"input": "')
        pieces = tuple(json.dumps(piece)[1:-1] for piece in pieces)
    yield from map(CallArgumentsDelta, pieces)
    yield CallDone(part.name, "".join(pieces), ends)
