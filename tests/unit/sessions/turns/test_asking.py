"""Questions of a connection have ids of their own, and no part of it is handed another's method."""

import ast

import pytest

from sessions.durable.store import ConnectionStore
from sessions.durable.turn_logs import EventLog
from sessions.turns.asking import Asking
from sessions.turns.effects import Outbox, Question, ServerReady, SessionGranted, SessionTurn
from sessions.turns.jobs import EarlyEnd, EndedEarly, Job
from sessions.turns.lanes import Lane, Waiting
from tests.support.architecture import ROOT
from tests.support.clock import FakeClock
from tests.support.sessions_rig import make_service
from tools_api.events import ResumeTurn


class Bench:
    def __init__(self) -> None:
        service = make_service(FakeClock(1000.0))
        visible = ConnectionStore(
            service.store, tenant=service.store.tenant("t"), connection_id="c"
        )
        self.outbox = Outbox()
        self.asking = Asking(
            connection_id="c", visible=visible, service=service, outbox=self.outbox
        )


def test_no_two_questions_have_one_id_and_tickets_name_the_connection() -> None:
    asking = Bench().asking
    first, second = asking.question(SessionTurn()), asking.question(ServerReady())
    assert first.id != second.id
    assert asking.ticket(first) == ("c", first.id)


def test_who_has_a_ticket_is_woken_and_nobody_else() -> None:
    bench = Bench()
    bench.asking.wake(None)
    assert not bench.outbox.others
    question = bench.asking.question(SessionTurn())
    bench.asking.wake(bench.asking.ticket(question))
    assert bench.outbox.others == [SessionGranted("c", question.id)]


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_request_whose_id_a_newer_one_bears_gets_no_answer(overtaken: bool) -> None:
    asking = Bench().asking
    asked = ResumeTurn(response_id=None, request_id="r", after_sequence=-1, stream_id=None)
    waiting = Waiting(asked, 1, 0.0)
    job = Job(
        lane=Lane(None),
        frame=waiting,
        log=EventLog(tenant="t", owner="c", request_id="r"),
    )
    assert job.log is not None
    job.log.follower = None if overtaken else job
    life = asking.ask(job, ServerReady())
    asked = life.send(None)
    assert isinstance(asked, Question)
    with pytest.raises(EndedEarly if overtaken else StopIteration) as end:
        life.send(True)
    if overtaken:
        assert isinstance(end.value, EndedEarly)
        assert str(end.value) == EarlyEnd.NEWER_REQUEST.name


def handed_out(source: str) -> list[str]:
    """Methods of its own that a class hands to what it keeps, when it is made: both then hold each
    other, and wait for the collector of cyclic garbage."""
    found = []
    for cls in (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef)):
        methods = {
            each.name: each
            for each in cls.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        parts = list(ast.walk(methods["__init__"])) if "__init__" in methods else []
        called = {id(each.func) for each in parts if isinstance(each, ast.Call)}
        found += [
            f"{cls.name}.{each.attr}"
            for each in parts
            if isinstance(each, ast.Attribute)
            and ast.unparse(each.value) == "self"
            and each.attr in methods
            and id(each) not in called
        ]
    return found


def test_the_search_finds_a_method_that_is_handed_out() -> None:
    init = "def __init__(self):\n  self.b = B(self.go)\n  self.go()"
    assert handed_out(f"class A:\n {init}\n def go(self): ...") == ["A.go"]


def test_no_part_of_a_connection_is_handed_a_method_of_who_keeps_it() -> None:
    sources = sorted((ROOT / "sessions" / "turns").glob("*.py"))
    assert len(sources) > 20
    found = [each for path in sources for each in handed_out(path.read_text(encoding="utf-8"))]
    assert not found
