"""Jobs are found by what their callers know of them."""

from types import SimpleNamespace
from typing import cast

from sessions.turns.intake import Waiting
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lane
from sessions.turns.turn import Turn
from tools_api.requests import CreateRequest


def a_job(stream_id: str | None = None) -> Job:
    lane: Lane[Waiting] = Lane(stream_id)
    return Job(lane=lane, request=CreateRequest(), num_bytes=1, arrival_s=0.0)


def test_a_job_is_found_by_its_lane_and_its_check() -> None:
    jobs, one, other = Jobs(), a_job(), a_job("b")
    other.check_id = "check"
    for job in (one, other):
        jobs.add(job)
    assert jobs.in_lane(None) is one
    assert jobs.in_lane("b") is jobs.of_check("check") is other
    assert jobs.in_lane("c") is jobs.of_check("x") is None
    jobs.remove(one)
    assert jobs.in_lane(None) is None
    assert list(jobs) == [other]


def test_a_request_leads_to_its_job_until_it_is_withdrawn() -> None:
    jobs, job = Jobs(), a_job()
    jobs.sent(job, "r.1")
    jobs.sent(job, "r.2")
    assert jobs.of_request("r.1") is jobs.of_request("r.2") is job
    jobs.withdrawn("r.1")
    jobs.withdrawn("unknown")
    assert jobs.of_request("r.1") is None
    assert jobs.of_request("r.2") is job


def test_jobs_may_be_removed_while_they_are_gone_through() -> None:
    jobs = Jobs()
    for name in "abc":
        jobs.add(a_job(name))
    for job in jobs:
        jobs.remove(job)
    assert list(jobs) == []


def test_a_response_leads_to_the_job_whose_turn_runs_under_it() -> None:
    jobs, waiting, running = Jobs(), a_job(), a_job("b")
    running.turn = cast(Turn, SimpleNamespace(plan=SimpleNamespace(response_id="resp_1")))
    for job in (waiting, running):
        jobs.add(job)
    assert jobs.of_response("resp_1") is running
    assert jobs.of_response("resp_2") is None
