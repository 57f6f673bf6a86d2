"""How a plan is put to the engine."""

from dataclasses import replace

import pytest

from sessions.durable.branches import Branches
from sessions.turns.planning import Lineage, plan_turn
from sessions.turns.turn_plan import TurnPlan
from tests.support.sessions_rig import Rig
from tools_api.item_reading import parse_items
from tools_api.requests import CreateRequest, KeepwarmOptions, TextFormat


def a_plan(**fields: object) -> TurnPlan:
    rig = Rig()
    request = CreateRequest.model_validate({"input": parse_items("hi"), **fields})
    return plan_turn(
        request,
        Lineage(parent=None, session=None, session_name="s", items=request.input),
        service=rig.service,
        tenant=rig.store.tenant("acme"),
        seal=rig.model.seal.of("acme"),
        response_id="resp_1",
        grammar=None,
        arrival_s=10.0,
    )


@pytest.mark.parametrize(
    ("asked", "used", "priority"),
    [
        ("auto", "default", 0),
        ("scale", "default", 0),
        ("flex", "flex", -10),
        ("fast", "priority", 10),
        ("priority", "priority", 10),
    ],
)
def test_the_service_tier_in_use_is_a_priority(asked: str, used: str, priority: int) -> None:
    plan = a_plan(service_tier=asked)
    claim = Branches().claim(None)
    request = plan.generation_request(request_id="r", claim=claim, limit=5, now=10.0)
    assert (plan.service_tier, request.priority) == (used, priority)


@pytest.mark.parametrize(("waited_s", "left_s"), [(0.0, 1.5), (1.0, 0.5), (9.0, 0.0)])
def test_time_waited_here_counts_against_the_deadline(waited_s: float, left_s: float) -> None:
    plan = a_plan(keepwarm=KeepwarmOptions(deadline_ms=1500))
    request = plan.generation_request(
        request_id="r", claim=Branches().claim(None), limit=5, now=10.0 + waited_s
    )
    assert request.deadline_s == left_s


def test_the_seed_follows_from_the_response_id() -> None:
    plan = a_plan()
    assert plan.sampling() == plan.sampling()
    assert plan.sampling().seed != replace(plan, response_id="resp_2").sampling().seed


def test_top_p_and_temperature_of_zero_are_not_taken_for_absent() -> None:
    sampling = a_plan(temperature=0.0, top_p=0.0).sampling()
    assert (sampling.temperature, sampling.top_p) == (0.0, 0.0)


@pytest.mark.parametrize(("generate", "warned"), [(True, 1), (False, 0)])
def test_a_plan_carries_what_its_schemas_leave_open(generate: bool, warned: int) -> None:
    schema = {"type": "array", "uniqueItems": True}
    text_format = TextFormat(type="json_schema", name="v", schema=schema)
    plan = a_plan(text_format=text_format, generate=generate)
    assert len(plan.warnings) == warned
    assert plan.warnings == plan.checks.warnings()


def test_a_request_says_where_others_will_begin() -> None:
    """Behind instructions and tools; and a fork, where it leaves its branch."""
    plan = a_plan(instructions="You keep the books of a shop. " * 3)
    header = len(plan.header.ids)
    assert 0 < header < plan.prompt_tokens
    branches = Branches()
    claim = branches.claim(None)
    request = plan.generation_request(request_id="r", claim=claim, limit=5, now=10.0)
    assert request.resume_points == (header,)
    parent = object()
    branches.place(claim, parent, header + 4)
    branches.claim(parent)
    fork = branches.claim(parent)
    assert fork.branch_id != fork.base_branch_id
    request = plan.generation_request(request_id="r", claim=fork, limit=5, now=10.0)
    assert request.resume_points == (header, header + 3)


def test_a_position_that_is_not_inside_the_prompt_is_not_named() -> None:
    plan = a_plan()
    claim = Branches().claim(None)
    far = replace(claim, base_branch_id="b", base_offset=plan.prompt_tokens + 9)
    for each in (claim, far):
        request = plan.generation_request(request_id="r", claim=each, limit=5, now=10.0)
        assert all(0 < point < plan.prompt_tokens for point in request.resume_points)
    bare = replace(plan, header=replace(plan.header, ids=plan.header.ids[:0]))
    request = bare.generation_request(request_id="r", claim=claim, limit=5, now=10.0)
    assert request.resume_points == ()
