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
import json
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import ErrorKind
from sessions.durable.session import SessionState
from sessions.journal import ownership
from sessions.turns.effects import Effects, EngineOutputs, Question, SessionTurn
from sessions.turns.jobs import Job, Jobs
from sessions.turns.turn import Turn
from tests.support.places import TENANT, PlaceRig, answers, held
from tests.support.questions import PLACES, SESSION, Fields, Place
from tests.support.releases import RELEASES, Release, left_out
from tests.support.sessions_rig import END, Client

COMPANY = {"alone": (False, False), "lane": (True, False), "session": (False, True)}
COMPANY["both"] = (True, True)


class Case:
    """One request at a place, and who is with it."""

    def __init__(self, rig: PlaceRig, place: Place, company: str) -> None:
        self.rig, self.place = rig, place
        self.in_lane, self.in_session = COMPANY[company]
        first = rig.connect().turn("hello" + END, input="first", keepwarm=SESSION)
        self.fields = place.fields(rig, first)
        self.turn: Turn | None = None
        """What the request has become at its place."""
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
        self.place.says(self.rig)
        if self.place.own is None:
            assert self.rig.stopped is not None, "it does not come there"
        question = self.rig.job_of(self.one).question
        assert question is not None
        assert self.place.asks(question.asked, self.rig.job_of(self.one))
        self.turn = self.rig.job_of(self.one).turn
        if self.in_lane:
            self.one.create(input="behind it", keepwarm={"session": "u"})
        if self.in_session:
            self.other.create(input="behind it", keepwarm=SESSION)

    def still_runs(self) -> bool:
        """The turn that the request had become does."""
        turn = self.turn
        return turn is not None and self.one.connection.running(turn.plan.response_id) is not None

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
    case.rig.clock.advance(0.001)
    case.others.append(case.rig.connect())
    case.others[-1].send(**case.asked())


@way
def newer_id_unnoticed(case: Case) -> None:
    """The answer comes before the notice."""
    rig, newer = case.rig, case.rig.connect()
    rig.clock.advance(0.001)
    case.others.append(newer)
    effects = newer.connection.receive(json.dumps(case.asked()))
    rig.carry(newer, effects._replace(others=()))
    if rig.stopped is not None:
        rig.answer()
    rig.carry(newer, Effects(others=effects.others))


@way
def newer_gone(case: Case) -> None:
    """With another one that has its id, and goes at once."""
    newer_id(case)
    case.others.pop().disconnect()


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
    case.rig.store.tenant(TENANT).forget_session("s")


LATE = ", before it was read"
"""Of a question that the journal reads only after its request has ended."""


def ends(place: Place) -> Iterator[str]:
    for name in WAYS:
        if place.resumes and name.startswith(("cancelled", "newer")):
            continue
        if place.fails is None and name == "failed":
            continue
        yield name
        if place.own is None and name in ("gone", "cancelled", "newer_id", "drained"):
            yield name + LATE


WHOLE = os.environ.get("KEEPWARM_EVERY_PLACE") == "1"
CASES = [
    (place, name, company)
    for place in PLACES
    for name in ends(PLACES[place])
    for company in (COMPANY if WHOLE else ("alone", "both"))
]


def play(folder: Path, lives: list[Any], place: str, name: str, company: str) -> None:
    """One case, and what has to hold after it."""
    gc.disable()
    try:
        lives.clear()
        folder.mkdir(parents=True)
        rig = PlaceRig(folder, lives)
        try:
            _play(rig, Case(rig, PLACES[place], company), name)
        finally:
            rig.journal.close()
    finally:
        gc.enable()


def _play(rig: PlaceRig, case: Case, name: str) -> None:
    name, late, _ = name.partition(LATE)
    rig.gives = name != "failed" and not late
    case.reach()
    ran = [client for client in case.others if rig.runs(client)]
    WAYS[name](case)
    if name in ("gone", "newer_gone") and not case.place.ended:
        assert not case.still_runs(), "nobody is there for the turn"
    rig.play_out()
    assert held(rig) == {}
    told, drains = answers(case.one), name.startswith("drained")
    if name != "gone":
        assert len(told) == 1 + case.in_lane, told
        assert drains or not case.in_lane or told[-1] == "completed", told
    if name.startswith("newer_id"):
        assert told[0] == "response_followed_elsewhere", told
    for client in case.others:
        (end,) = answers(client)
        fails = drains or (name == "engine_lost" and client in ran)
        assert end == "completed" or fails or case.place is PLACES["shares of no use"], end
    again = rig.connect()
    again.create(input="again", keepwarm=SESSION)
    rig.play_out()
    assert answers(again) == ["completed"]
    assert rig.store.tenant(TENANT).session("s").state is SessionState.IDLE
    assert held(rig) == {}


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list["weakref.ref[Any]"]:
    """Every request's life from now on; none is kept by this."""
    found: list[weakref.ref[Any]] = []
    begin = Jobs.start

    def begun(jobs: Jobs, job: Job, life: Coroutine[Question, Any, None]) -> None:
        found.append(weakref.ref(life))
        begin(jobs, job, life)

    monkeypatch.setattr(Jobs, "start", begun)
    # A server lives, however long a test takes.
    monkeypatch.setattr(ownership, "DEAD_MS", 10**9)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_request_that_ends_anywhere_holds_nothing(
    place: str, tmp_path: Path, lives: list[Any]
) -> None:
    for at, name, company in CASES:
        if at == place:
            try:
                play(tmp_path / f"{name} {company}", lives, place, name, company)
            except BaseException as error:
                error.add_note(f"at {place!r}, {name}, {company}")
                raise


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_release_left_out_is_noticed(
    release: Release, tmp_path: Path, lives: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert release.case in CASES
    play(tmp_path / "whole", lives, *release.case)
    left_out(release, monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        play(tmp_path / "without", lives, *release.case)
