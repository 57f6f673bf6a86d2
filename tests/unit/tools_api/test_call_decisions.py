"""What a client may say about a call: every fault by its name."""

from typing import Any

import pytest

from tools_api.call_decisions import MAX_NAME, MAX_OUTPUT, MAX_REASON, read_decision
from tools_api.errors import ApiError


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ({"decision": "approve"}, "missing_required_parameter", "call_id"),
        ({"call_id": "c"}, "missing_required_parameter", "decision"),
        ({"call_id": "", "decision": "approve"}, "invalid_value", "call_id"),
        ({"call_id": "c", "decision": "run"}, "invalid_value", "decision"),
        ({"call_id": "c", "decision": "begin"}, "missing_required_parameter", "holder"),
        ({"call_id": "c", "decision": "end", "output": "x"}, "missing_required_parameter", None),
        (
            {"call_id": "c", "decision": "end", "holder": "h"},
            "missing_required_parameter",
            "output",
        ),
        ({"call_id": "c", "decision": "approve", "by": "a\n"}, "invalid_value", "by"),
        ({"call_id": "c", "decision": "approve", "by": 3}, "invalid_type", "by"),
        ({"call_id": "c" * (MAX_NAME + 1), "decision": "approve"}, "invalid_value", "call_id"),
        (
            {"call_id": "c", "decision": "reject", "reason": "r" * (MAX_REASON + 1)},
            "invalid_value",
            "reason",
        ),
        (
            {"call_id": "c", "decision": "end", "holder": "h", "output": "o" * (MAX_OUTPUT + 1)},
            "invalid_value",
            "output",
        ),
    ],
)
def test_a_fault_is_named(raw: dict[str, Any], code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        read_decision(raw)
    assert caught.value.code == code
    assert param is None or caught.value.param == param


def test_at_its_bounds_a_decision_is_read() -> None:
    read = read_decision(
        {
            "call_id": "c" * MAX_NAME,
            "decision": "end",
            "holder": "h" * MAX_NAME,
            "output": "o" * MAX_OUTPUT,
            "by": None,
            "what else": 1,
        }
    )
    assert (len(read.output or ""), read.by, read.session) == (MAX_OUTPUT, "", None)
