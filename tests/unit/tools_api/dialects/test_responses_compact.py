"""``POST /v1/responses/compact`` as a body and an answer."""

import pytest

from tools_api.dialects.responses_compact import COMPACT
from tools_api.errors import ApiError


def test_a_body_becomes_a_request_that_only_compacts_and_stores_nothing() -> None:
    create = COMPACT.read({"model": "m", "input": "x"}).create
    assert create["keepwarm:compact"] is True
    assert create["store"] is False


def test_a_stream_is_refused_by_name() -> None:
    with pytest.raises(ApiError) as refused:
        COMPACT.read({"input": "x", "stream": True})
    assert refused.value.param == "stream"


def test_a_response_that_failed_is_an_error() -> None:
    error = {"code": "invalid_prompt", "message": "too long"}
    with pytest.raises(ApiError, match="too long"):
        COMPACT.writer().whole({"status": "failed", "error": error})


def test_messages_get_ids_of_their_own() -> None:
    message = {"type": "message", "role": "user", "content": []}
    response = {
        "id": "resp_7",
        "status": "completed",
        "created_at": 1,
        "usage": {},
        "keepwarm": {"context": {"computed": 5}, "tokens": {}},
        "output": [message, message, {"type": "compaction", "id": "cmp_1"}],
    }
    made = COMPACT.writer().whole(response)
    assert [item["id"] for item in made["output"]] == ["msg_7_0", "msg_7_1", "cmp_1"]
    assert made["keepwarm"] == {"context": {"computed": 5}}
