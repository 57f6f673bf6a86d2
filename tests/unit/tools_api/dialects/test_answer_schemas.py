"""Schemas of answers: what is written fits, and nothing else does."""

from typing import Any

import pytest

from tests.support.openapi import assert_fits
from tools_api import errors
from tools_api.dialects.answer_schemas import answer_schemas
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.request_schemas import ref
from tools_api.dialects.responses_http import RESPONSES
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject, usage

USAGE = usage(input_tokens=3, cached_tokens=1, cache_write_tokens=0, output_tokens=2)
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "hi", "logprobs": []}]}


def response() -> dict[str, Any]:
    made = ResponseObject(
        id="resp_1", request=CreateRequest(), model="m", created_at=1, previous_response_id=None
    )
    return made.wire(status="completed", output=[MESSAGE], usage=USAGE, completed_at=2)


WRITTEN = {
    "Response": response(),
    "ChatCompletion": CHAT_COMPLETIONS.writer(usage=True, logprobs=False).whole(response()),
    "Message": MESSAGES.writer(thinking_shown=True, generates=True).whole(response()),
    "Error": RESPONSES.error(errors.overloaded("it is full")),
    "MessagesError": MESSAGES.error(errors.overloaded("it is full")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_fits_and_with_one_field_more_or_less_it_does_not(name: str) -> None:
    written = WRITTEN[name]
    assert_fits(ref(name), written, name)
    for spoilt in (written | {"more": 1}, dict(list(written.items())[1:])):
        with pytest.raises(AssertionError):
            assert_fits(ref(name), spoilt, name)


def test_every_object_of_an_answer_is_closed() -> None:
    for name, schema in answer_schemas().items():
        for each in schema.get("anyOf", [schema]):
            assert each["additionalProperties"] is False, name
