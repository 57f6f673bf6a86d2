"""The questions that a request can wait at, and how one is brought to each.

A place is found by what is asked there; what the request has to be, and what has to be there or
to be missing, is the place's to see to. Knows not how a request ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import FinishReason
from sessions.journal.errors import JournalUnavailable
from sessions.journal.records import TurnRecord
from sessions.turns.effects import Asked, EngineOutputs, ServerReady, SessionTurn, Work
from sessions.turns.jobs import Job
from sessions.turns.wanted import Wanted
from tests.support.places import TENANT, Matches, PlaceRig
from tests.support.sessions_rig import END
from tools_api.grammar import GrammarSpec

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
SESSION = {"session": "s"}
LONG = "word " * 500
Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A question, and how a request comes to wait at it."""

    asks: Matches
    fields: Callable[[PlaceRig, Fields], Fields] = lambda rig, first: {"keepwarm": SESSION}
    """Of the request, given the response of the session's first turn; sees to what is there."""
    own: type[Asked] | None = None
    """Of this kind, which no caller answers."""
    says: Callable[[PlaceRig], Any] = lambda rig: None
    """Has the engine say what it has said by then."""
    fails: Callable[[], Exception] | None = lambda: JournalUnavailable("told to")
    resumes: bool = False
    ended: bool = False
    """The turn has, and waits for its record."""


def wanted(check: Callable[[Wanted], Any], *, running: bool | None = None) -> Matches:
    """The journal is asked for that; ``running``: by a turn, or before there is one."""

    def asks(asked: Asked, job: Job) -> bool:
        fits = running is None or running is (job.turn is not None)
        return fits and isinstance(asked, Wanted) and bool(check(asked))

    return asks


def writes(text: str) -> Callable[[PlaceRig], Any]:
    """One step of the newest turn; it ends with the model's own end."""
    finish = FinishReason.STOP if text.endswith(END) else None
    return lambda rig: rig.emit(text, finish)


def work(name: str) -> Matches:
    return lambda asked, _: isinstance(asked, Work) and asked.call.func.__name__ == name  # type: ignore[attr-defined]


def kind(type_: Any) -> Matches:
    return lambda asked, _: isinstance(asked, type_)


def after_restart(**fields: Any) -> Callable[[PlaceRig, Fields], Fields]:
    """Memory knows nothing; ``fields`` may name the first response and its item."""

    def made(rig: PlaceRig, first: Fields) -> Fields:
        rig.restart()
        names = {"$response": first["id"], "$item": first["output"][0]["id"]}
        return _filled(fields, names | {"$output": first["output"]})

    return made


def _filled(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def without_head(rig: PlaceRig, first: Fields) -> Fields:
    rig.store.tenant(TENANT).responses.clear()
    return {"keepwarm": SESSION}


def without_session(rig: PlaceRig, first: Fields) -> Fields:
    rig.store.tenant(TENANT).forget_session("s")
    return {"previous_response_id": first["id"]}


USER = {"role": "user", "content": "more"}
REFERENCE = {"type": "item_reference", "id": "$item"}
HISTORY = [{"role": "user", "content": "first"}, "$output", USER]


def history(rig: PlaceRig, first: Fields) -> Fields:
    rig.restart()
    return {"input": [HISTORY[0], *first["output"], USER]}


def _without_ground(rig: PlaceRig) -> Fields:
    rig.service.ground.writable = False
    return {"keepwarm": SESSION}


PLACES: dict[str, Place] = {
    "its id": Place(asks=wanted(lambda w: w.request_id)),
    "a turn to resume": Place(
        asks=wanted(lambda w: w.ended),
        fields=after_restart(type="keepwarm:response.resume", response_id="$response"),
        resumes=True,
    ),
    "items": Place(
        asks=wanted(lambda w: w.item_ids),
        fields=after_restart(input=[REFERENCE, USER], keepwarm=SESSION),
    ),
    "the ground": Place(
        asks=kind(ServerReady),
        fields=lambda rig, first: _without_ground(rig),
        fails=lambda: ValueError("told to"),
    ),
    "a long reading": Place(
        asks=work("digested"),
        fields=after_restart(input=[REFERENCE, USER | {"content": LONG}], keepwarm=SESSION),
        fails=lambda: ValueError("told to"),
    ),
    "the parent session": Place(
        asks=wanted(lambda w: w.parent),
        fields=after_restart(keepwarm={"session": "child", "parent_session": "s"}),
    ),
    "its session": Place(asks=wanted(lambda w: w.session), fields=after_restart(keepwarm=SESSION)),
    "its turn in the session": Place(asks=kind(SessionTurn), own=SessionTurn, fails=None),
    "a response": Place(
        asks=wanted(lambda w: w.responses),
        fields=after_restart(previous_response_id="$response"),
    ),
    "a history": Place(asks=wanted(lambda w: w.histories), fields=history),
    "the head": Place(asks=wanted(lambda w: w.responses), fields=without_head),
    "the response's session": Place(asks=wanted(lambda w: w.session), fields=without_session),
    "what to compare with": Place(
        asks=wanted(lambda w: w.responses and not w.owns_first and not w.session),
        fields=after_restart(
            keepwarm={"session": "t"},
            prompt_cache_options={"comparison_response_id": "$response"},
        ),
    ),
    "a long plan": Place(
        asks=work("plan_turn"),
        fields=lambda rig, first: {"input": LONG, "keepwarm": SESSION},
        fails=lambda: ValueError("told to"),
    ),
    "its grammar": Place(
        asks=kind(GrammarSpec),
        fields=lambda rig, first: {
            "keepwarm": SESSION,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        },
        fails=lambda: GrammarRefused("told to"),
    ),
    "shares to start with": Place(asks=wanted(lambda w: w.shares, running=False)),
    "shares of no use": Place(
        asks=wanted(lambda w: w.shares, running=False),
        fields=lambda rig, first: {
            "keepwarm": SESSION | {"budget": {"scope": "turn", "input_uncached": 1}}
        },
    ),
    "the engine": Place(asks=kind(EngineOutputs), own=EngineOutputs),
    "the engine, asked anew": Place(
        asks=kind(EngineOutputs),
        own=EngineOutputs,
        says=PlaceRig.lose_base,
    ),
    "the engine, asked for less": Place(
        asks=kind(EngineOutputs),
        own=EngineOutputs,
        fields=lambda rig, first: {
            "keepwarm": SESSION | {"budget": {"scope": "turn", "cost": 0.0005}},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        },
        says=lambda rig: rig.deliver(rig.engine.output(rig.engine.last, cached=0)),
    ),
    "the engine, in its answer": Place(
        asks=kind(EngineOutputs), own=EngineOutputs, says=writes("some words")
    ),
    "shares to go on with": Place(
        asks=wanted(lambda w: w.shares, running=True), says=writes("x" * 250)
    ),
    "the record of a first turn": Place(
        asks=kind(TurnRecord),
        fields=lambda rig, first: {"keepwarm": {"session": "t"}},
        says=writes("ok" + END),
        ended=True,
    ),
    "its record": Place(asks=kind(TurnRecord), says=writes("ok" + END), ended=True),
}
