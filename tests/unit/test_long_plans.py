"""Which turns are planned beside the event loop, and in which order."""

from dataclasses import replace

import pytest

from sessions.turns.long_plans import LongPlans
from sessions.turns.turn_plan import TurnPlan
from tests.support.sessions_rig import END, Rig, call, tool
from tools_api.limits import Limits

LIMITS = Limits()


def work() -> TurnPlan:
    raise NotImplementedError


def test_one_plan_is_out_at_a_time_and_the_first_come_is_first() -> None:
    plans: LongPlans[str] = LongPlans("conn")
    assert plans.take() is None
    for key in "abc":
        plans.add(key, work)
    first = plans.take()
    assert first is not None
    assert plans.take() is None
    assert plans.returned("conn.plan9") is None
    assert plans.returned(first.planning_id) == "a"
    assert plans.returned(first.planning_id) is None
    second = plans.take()
    assert second is not None
    assert second.planning_id != first.planning_id
    assert plans.returned(second.planning_id) == "b"


def test_what_is_withdrawn_is_not_handed_out() -> None:
    plans: LongPlans[str] = LongPlans("conn")
    plans.add("a", work)
    plans.withdraw("a")
    plans.withdraw("never known")
    assert plans.take() is None


def test_what_is_withdrawn_while_it_is_out_comes_back_to_nobody_and_lets_the_next_go() -> None:
    plans: LongPlans[str] = LongPlans("conn")
    plans.add("a", work)
    given = plans.take()
    assert given is not None
    plans.add("b", work)
    plans.withdraw("a")
    assert plans.take() is None
    assert plans.returned(given.planning_id) is None
    after = plans.take()
    assert after is not None
    assert plans.returned(after.planning_id) == "b"


@pytest.fixture
def rig() -> Rig:
    rig = Rig(limits=replace(LIMITS, max_inline_bytes=1000), max_context_tokens=100_000)
    rig.plans_at_once = False
    return rig


FRAME = len('{"type": "response.create", "input": ""}')


@pytest.mark.parametrize(("length", "waits"), [(1000 - FRAME, 0), (1001 - FRAME, 1)])
def test_the_first_turn_is_judged_by_its_frame(rig: Rig, length: int, waits: int) -> None:
    rig.connect().create(input="x" * length)
    assert len(rig.plannings) == waits


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"input": "x" * 1000}, 0),
        ({"input": "x" * 1001}, 1),
        ({"input": "hi", "metadata": {str(n): "x" * 200 for n in range(10)}}, 0),
        ({"input": "hi", "instructions": "x" * 1000}, 1),
        ({"input": "hi", "tools": [tool("f", **{"x" * 1000: {}})]}, 1),
        ({"input": "hi", "truncation": "auto"}, 0),
    ],
    ids=["at the limit", "new text", "no text", "instructions", "tools", "truncation"],
)
def test_a_later_turn_is_judged_by_what_is_new(
    rig: Rig, fields: dict[str, object], waits: int
) -> None:
    client = rig.connect()
    before = client.turn(input="hi")
    client.create(previous_response_id=before["id"], **fields)
    assert len(rig.plannings) == waits


def test_a_resent_history_is_judged_by_what_follows_it(rig: Rig) -> None:
    client = rig.connect()
    said = {"role": "user", "content": "x" * 900}
    answer = client.turn(input=[said], instructions=None)["output"][0]
    client.create(input=[said, answer, {"role": "user", "content": "y" * 900}])
    assert rig.plannings == []
    assert client.response["previous_response_id"] is not None


def test_a_long_chain_that_may_be_cut_short_is_planned_later(rig: Rig) -> None:
    client = rig.connect()
    client.create(input="x" * 2000)
    rig.plan_next()
    rig.reply("ok<|im_end|>")
    before = client.response
    client.create(input="hi", previous_response_id=before["id"], truncation="auto")
    assert len(rig.plannings) == 1


@pytest.mark.parametrize(("length", "waits"), [(100, 0), (900, 1)])
def test_an_output_behind_a_long_warm_up_is_planned_later(
    rig: Rig, length: int, waits: int
) -> None:
    """It may stand in front of what was warmed, which then is tokenised again."""
    client = rig.connect()
    first = client.turn(call("f") + "\n" + call("f") + END, input="hi", tools=[tool("f")])
    one, other = (item["call_id"] for item in first["output"])
    answer = {"type": "function_call_output", "output": "x" * length}
    warm = client.turn(
        "",
        input=[answer | {"call_id": other}],
        previous_response_id=first["id"],
        tools=[tool("f")],
        generate=False,
    )
    fields = {"previous_response_id": warm["id"], "tools": [tool("f")]}
    client.create(input="no output", stream_id="a", generate=False, **fields)
    assert rig.plannings == []
    client.create(input=[answer | {"call_id": one, "output": "1"}], **fields)
    assert len(rig.plannings) == waits
