"""Of all who begin a call one is let, and what was decided is not decided otherwise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.durable.call_states import CallState, decided, decoded
from tools_api.call_decisions import read_decision
from tools_api.errors import ApiError

HOLDERS = ("a", "b", "c")
STEPS = st.one_of(
    st.fixed_dictionaries(
        {"decision": st.sampled_from(("approve", "reject")), "by": st.sampled_from(HOLDERS)}
    ),
    st.fixed_dictionaries(
        {
            "decision": st.just("begin"),
            "holder": st.sampled_from(HOLDERS),
            "needs_approval": st.booleans(),
        }
    ),
    st.fixed_dictionaries(
        {
            "decision": st.just("end"),
            "holder": st.sampled_from(HOLDERS),
            "output": st.sampled_from(("x", "y")),
        }
    ),
)


def after(state: CallState, **fields: Any) -> CallState | str | None:
    """The state after a decision, or the code with which it is refused."""
    asked = read_decision({"call_id": state.call_id, **fields})
    try:
        return decided(state, asked, key="k", now_s=1.0)
    except ApiError as error:
        return error.code if error.status == 409 else None


@given(st.lists(STEPS, max_size=12))
def test_one_run_begins_and_no_decision_is_taken_back(steps: list[dict[str, Any]]) -> None:
    state, begun_by, judged = CallState(call_id="c"), set[str](), set[str]()
    for step in steps:
        found = after(state, **step)
        if isinstance(found, CallState):
            if step["decision"] == "begin":
                begun_by.add(step["holder"])
                first = state.state != "begun"  # or it is said again, by the run that was let
                assert found.decided_s is not None or not (first and step["needs_approval"])
            elif step["decision"] in ("approve", "reject") and found.decided_s is not None:
                judged.add(step["decision"])
            assert (state.decided_s or found.decided_s) == found.decided_s
            assert decoded("c", found.encoded()) == found
            state = found
    assert len(begun_by) <= 1
    assert len(judged) <= 1
    assert not ("reject" in judged and begun_by)


@pytest.mark.parametrize(
    ("steps", "last", "expected"),
    [
        ([], {"decision": "approve", "by": "ana"}, "approved"),
        ([{"decision": "approve"}], {"decision": "approve", "by": "bob"}, "approved"),
        ([{"decision": "approve"}], {"decision": "reject"}, "call_decided"),
        ([{"decision": "reject"}], {"decision": "approve"}, "call_decided"),
        ([{"decision": "reject"}], {"decision": "begin", "holder": "a"}, "call_decided"),
        ([], {"decision": "begin", "holder": "a"}, "call_not_approved"),
        ([], {"decision": "begin", "holder": "a", "needs_approval": False}, "begun"),
        ([], {"decision": "end", "holder": "a", "output": "x"}, "ended"),
    ],
)
def test_what_may_follow_what(steps: list[dict[str, Any]], last: Any, expected: str) -> None:
    state = CallState(call_id="c")
    for step in steps:
        found = after(state, **step)
        assert isinstance(found, CallState)
        state = found
    got = after(state, **last)
    assert (got.state if isinstance(got, CallState) else got) == expected


def test_what_is_begun_is_begun_again_by_the_same_run_or_where_it_may_run_twice() -> None:
    begun = after(CallState(call_id="c"), decision="begin", holder="a", needs_approval=False)
    assert isinstance(begun, CallState)
    assert after(begun, decision="begin", holder="a") == begun
    assert after(begun, decision="begin", holder="b") == "call_decided"
    again = after(begun, decision="begin", holder="b", again=True)
    assert isinstance(again, CallState)
    assert again.holder == "b"
    assert after(again, decision="end", holder="a", output="x") == "call_decided"
    ended = after(again, decision="end", holder="b", output="x")
    assert isinstance(ended, CallState)
    assert (ended.state, ended.output) == ("ended", "x")
    assert after(ended, decision="end", holder="b", output="y") == ended
    assert after(ended, decision="begin", holder="c", again=True) == "call_decided"


def test_a_state_is_told_without_what_has_not_happened() -> None:
    assert CallState(call_id="c").to_wire() == {"call_id": "c", "state": "pending"}
    approved = after(CallState(call_id="c"), decision="approve", by="ana", reason="fine")
    assert isinstance(approved, CallState)
    told = {"by": "ana", "key": "k", "reason": "fine", "decided_at": 1.0}
    assert approved.to_wire() == {"call_id": "c", "state": "approved"} | told
