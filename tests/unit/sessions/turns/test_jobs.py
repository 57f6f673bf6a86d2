"""Jobs live from question to question, and are found by what their callers know of them."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sessions.turns.effects import Outbox, Question, SessionTurn, Work
from sessions.turns.jobs import EarlyEnd, EndedEarly, Job, Jobs
from sessions.turns.lanes import Lane, Waiting
from sessions.turns.turn import Turn
from tools_api.requests import CreateRequest


def a_job(stream_id: str | None = None) -> Job:
    lane: Lane[Waiting] = Lane(stream_id)
    return Job(lane=lane, frame=Waiting(CreateRequest(), 1, 0.0))


class Life:
    """Asks two questions and notes what it hears."""

    def __init__(self, first: Any = None) -> None:
        self.heard: list[Any] = []
        self.first = first or Work(dict)

    async def live(self, job: Job) -> None:
        for number, asked in enumerate((self.first, Work(list))):
            try:
                self.heard.append(await Question(f"{job.lane.stream_id}.{number}", asked))
            except (Exception, EndedEarly) as error:
                self.heard.append(repr(error))
                if isinstance(error, EndedEarly):
                    return


def begun(jobs: Jobs, stream_id: str | None = None, first: Any = None) -> tuple[Job, Life]:
    job, life = a_job(stream_id), Life(first)
    jobs.start(job, life.live(job))
    return job, life


def test_a_life_goes_on_with_each_answer_and_an_exception_is_raised_there() -> None:
    outbox = Outbox()
    jobs = Jobs(outbox)
    job, life = begun(jobs, "a")
    assert [question.id for question in outbox.questions] == ["a.0"]
    assert not jobs.answer("unknown", 1)
    assert jobs.answer("a.0", 1)
    assert not jobs.answer("a.0", 2), "it is answered once"
    assert list(jobs) == [job]
    assert jobs.answer("a.1", KeyError("x"))
    assert life.heard == [1, "KeyError('x')"]
    assert list(jobs) == []
    assert job.life is None
    assert outbox.withdrawn == []


@pytest.mark.parametrize("way", EarlyEnd)
def test_who_is_ended_early_hears_how_and_its_question_is_withdrawn(way: EarlyEnd) -> None:
    outbox = Outbox()
    jobs = Jobs(outbox)
    job, life = begun(jobs, "a")
    jobs.end_early(job, way)
    assert life.heard == [f"EndedEarly('{way.name}')"]
    assert outbox.withdrawn == ["a.0"]
    assert len(jobs) == 0
    assert not jobs.answer("a.0", 1)


def test_a_question_that_no_caller_answers_is_not_told_of() -> None:
    outbox = Outbox()
    jobs = Jobs(outbox)
    job, _ = begun(jobs, "a", SessionTurn())
    jobs.end_early(job, EarlyEnd.CANCELLED)
    assert outbox.collect(None).questions == outbox.collect(None).withdrawn == ()


def test_a_life_that_breaks_is_over() -> None:
    async def breaks() -> None:
        raise KeyError("x")

    jobs, job = Jobs(Outbox()), a_job()
    with pytest.raises(KeyError):
        jobs.start(job, breaks())
    assert len(jobs) == 0


@pytest.mark.parametrize("early", [False, True])
def test_what_a_job_held_is_gone_with_it(early: bool) -> None:
    """No ring of a job, its life and an exception is left for the garbage collector."""
    gc.disable()
    try:
        jobs = Jobs(Outbox())
        job, life = begun(jobs, "a")
        left = weakref.ref(life)
        if early:
            jobs.end_early(job, EarlyEnd.CANCELLED)
        else:
            jobs.answer("a.0", ValueError("no"))
            jobs.answer("a.1", None)
        del job, life
        assert left() is None
    finally:
        gc.enable()


def test_a_job_is_found_by_its_lane() -> None:
    jobs = Jobs(Outbox())
    one, _ = begun(jobs)
    other, _ = begun(jobs, "b")
    assert jobs.in_lane(None) is one
    assert jobs.in_lane("b") is other
    assert jobs.in_lane("c") is None
    other.displaced = True
    assert jobs.in_lane("b") is None
    assert list(jobs) == [one, other]


def test_a_request_leads_to_its_job_until_it_is_withdrawn() -> None:
    jobs, job = Jobs(Outbox()), a_job()
    jobs.submitted(job, "r.1")
    jobs.submitted(job, "r.2")
    assert jobs.by_request("r.1") is jobs.by_request("r.2") is job
    jobs.withdrawn("r.1")
    jobs.withdrawn("unknown")
    assert jobs.by_request("r.1") is None
    assert jobs.by_request("r.2") is job


def test_jobs_may_end_while_they_are_gone_through() -> None:
    jobs = Jobs(Outbox())
    for name in "abc":
        begun(jobs, name)
    for job in jobs:
        jobs.end_early(job, EarlyEnd.CLIENT_GONE)
    assert list(jobs) == []


def test_a_response_leads_to_the_job_whose_turn_runs_under_it() -> None:
    jobs = Jobs(Outbox())
    begun(jobs)
    running, _ = begun(jobs, "b")
    running.turn = cast(Turn, SimpleNamespace(plan=SimpleNamespace(answers="resp_1")))
    assert jobs.by_response("resp_1") is running
    assert jobs.by_response("resp_2") is None
