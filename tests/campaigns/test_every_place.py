"""Every question that a request can wait at, ended there in every way: nothing is held afterwards.

Real connections over a simulated engine and a journal in a file that other servers may share. A
request is brought to the question, alone or with others behind it in its lane and its session;
there its client goes, cancels it, sends another one with its id; the server drains, the engine
dies, or who is to answer fails. What the journal gave meanwhile comes late. Then all is played
out: every request is answered once, those behind it have their turns, and no lane, ticket, place,
memory, money, share, id or branch is held, nor a request's life kept.

Which release each of these hangs on is tried by ``test_a_release_left_out_is_noticed``: each is
taken out of the code in turn, and the campaign has to fail.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import ErrorKind
from sessions.durable.session import SessionState
from sessions.journal.errors import JournalUnavailable
from sessions.journal.records import TurnRecord
from sessions.turns.effects import Asked, EngineOutputs, SessionTurn, Work
from sessions.turns.jobs import Job
from sessions.turns.wanted import Wanted
from tests.support.places import TENANT, Matches, PlaceRig, answers, held, lives
from tests.support.sessions_rig import END, Client
from tools_api.grammar import GrammarSpec

__all__ = ["lives"]

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
    says: str = ""
    """What the engine has written before."""
    fails: Callable[[], Exception] | None = lambda: JournalUnavailable("told to")
    resumes: bool = False


def wanted(check: Callable[[Wanted], Any], *, running: bool | None = None) -> Matches:
    """The journal is asked for that; ``running``: by a turn, or before there is one."""

    def asks(asked: Asked, job: Job) -> bool:
        fits = running is None or running is (job.turn is not None)
        return fits and isinstance(asked, Wanted) and bool(check(asked))

    return asks


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
    rig.store.tenant_responses(TENANT).clear()
    return {"keepwarm": SESSION}


def without_session(rig: PlaceRig, first: Fields) -> Fields:
    rig.store.forget_session(TENANT, "s")
    return {"previous_response_id": first["id"]}


USER = {"role": "user", "content": "more"}
REFERENCE = {"type": "item_reference", "id": "$item"}
HISTORY = [{"role": "user", "content": "first"}, "$output", USER]


def history(rig: PlaceRig, first: Fields) -> Fields:
    rig.restart()
    return {"input": [HISTORY[0], *first["output"], USER]}


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
    "the engine": Place(asks=kind(EngineOutputs), own=EngineOutputs),
    "the engine, in its answer": Place(
        asks=kind(EngineOutputs), own=EngineOutputs, says="some words"
    ),
    "shares to go on with": Place(asks=wanted(lambda w: w.shares, running=True), says="x" * 250),
    "its record": Place(asks=kind(TurnRecord), says="ok" + END),
}

COMPANY = {"alone": (False, False), "lane": (True, False), "session": (False, True)}
COMPANY["both"] = (True, True)


class Case:
    """One request at a place, and who is with it."""

    def __init__(self, rig: PlaceRig, place: Place, company: str) -> None:
        self.rig, self.place = rig, place
        self.in_lane, self.in_session = COMPANY[company]
        first = rig.connect().turn("hello" + END, input="first", keepwarm=SESSION)
        self.fields = place.fields(rig, first)
        self.holder: Client | None = None
        self.one, self.other = rig.connect(), rig.connect()
        self.others = [self.other] if self.in_session else []

    def reach(self, **more: Any) -> None:
        """Bring the request to its place, and those that are to wait behind it."""
        if self.place.own is SessionTurn:
            self.holder = self.rig.connect()
            self.holder.create(input="holds it", keepwarm=SESSION)
        elif self.place.own is None:
            self.rig.stop_at = self.place.asks
        self.one.send(**self.asked(**more))
        if self.place.says:
            self.rig.emit_some(self.place.says)
        if self.place.own is None:
            assert self.rig.stopped is not None, "it does not come there"
        question = self.rig.job_of(self.one).question
        assert question is not None
        assert self.place.asks(question.asked, self.rig.job_of(self.one))
        if self.in_lane:
            self.one.create(input="behind it", keepwarm={"session": "u"})
        if self.in_session:
            self.other.create(input="behind it", keepwarm=SESSION)

    def asked(self, **more: Any) -> Fields:
        """The request."""
        if self.place.resumes:
            return self.fields
        options = {"request_id": "r"} | self.fields.get("keepwarm", {}) | more
        return {"type": "response.create", "input": "hi"} | self.fields | {"keepwarm": options}


# The ways in which it may end there, and how its client is answered then. None: it is gone.

Way = Callable[[Case], None]
WAYS: dict[str, Way] = {}


def way(end: Way) -> Way:
    WAYS[end.__name__] = end
    return end


@way
def answered(case: Case) -> None:
    """As ever."""


@way
def gone(case: Case) -> None:
    case.one.disconnect()


@way
def cancelled(case: Case) -> None:
    case.one.send(type="response.cancel")


@way
def cancelled_by_another(case: Case) -> None:
    """By the response's id, which is known once there is a turn."""
    turn = case.rig.job_of(case.one).turn
    if turn is not None:
        case.other.send(type="response.cancel", response_id=turn.plan.response_id)


@way
def newer_id(case: Case) -> None:
    case.others.append(case.rig.connect())
    case.others[-1].send(**case.asked())


@way
def drained(case: Case) -> None:
    case.rig.tell_all(lambda connection: connection.drain())


@way
def drained_in_vain(case: Case) -> None:
    """The time for it is over."""
    drained(case)
    case.rig.tell_all(lambda connection: connection.engine_died())


@way
def engine_lost(case: Case) -> None:
    case.rig.kill_engine()


@way
def failed(case: Case) -> None:
    """Who is to answer does so with an error."""
    rig = case.rig
    if case.place.own is EngineOutputs:
        rig.deliver(rig.engine.refuse(rig.engine.last, ErrorKind.INTERNAL))
    elif case.place.fails is not None:
        rig.answer(case.place.fails())


@way
def lost_session(case: Case) -> None:
    """Another server has taken it, or somebody deleted it, and then it is answered."""
    case.rig.store.forget_session(TENANT, "s")


def ends(place: Place) -> Iterator[str]:
    for name in WAYS:
        if place.resumes and name in ("cancelled", "cancelled_by_another", "newer_id"):
            continue
        if place.fails is None and name == "failed":
            continue
        yield name


CASES = [
    (place, name, company)
    for place in PLACES
    for name in ends(PLACES[place])
    for company in COMPANY
]


def play(folder: Path, lives: list[Any], place: str, name: str, company: str) -> None:
    """One case, and what has to hold after it."""
    gc.disable()
    try:
        lives.clear()
        rig = PlaceRig(folder, lives)
        try:
            _play(rig, Case(rig, PLACES[place], company), name)
        finally:
            rig.journal.close()
    finally:
        gc.enable()


def _play(rig: PlaceRig, case: Case, name: str) -> None:
    rig.gives = name != "failed"
    case.reach()
    ran = [client for client in case.others if rig.runs(client)]
    WAYS[name](case)
    rig.play_out()
    assert held(rig) == {}
    told, drains = answers(case.one), name.startswith("drained")
    if name != "gone":
        assert len(told) == 1 + case.in_lane, told
        assert drains or not case.in_lane or told[-1] == "completed", told
    for client in case.others:
        (end,) = answers(client)
        fails = drains or (name == "engine_lost" and client in ran)
        assert end == "completed" or fails or _may_lose(case, name), end
    again = rig.connect()
    again.create(input="again", keepwarm=SESSION)
    rig.play_out()
    assert answers(again) == ["completed"]
    assert rig.store.session(TENANT, "s").state is SessionState.IDLE
    assert held(rig) == {}


def _may_lose(case: Case, name: str) -> bool:
    """Of two that share an id the one whose answer came first; a turn whose share of a budget
    another one used that began while it waited."""
    shared = case.place in (PLACES["its id"], PLACES["shares to go on with"])
    return name == "newer_id" and shared


@pytest.mark.parametrize("place", PLACES)
def test_a_request_that_ends_anywhere_holds_nothing(
    place: str, tmp_path: Path, lives: list[Any]
) -> None:
    for at, name, company in CASES:
        if at == place:
            folder = tmp_path / f"{name} {company}"
            folder.mkdir()
            try:
                play(folder, lives, place, name, company)
            except BaseException as error:
                error.add_note(f"at {place!r}, {name}, {company}")
                raise
