"""Schemas of bodies: no narrower than what is read, and closed where unknown fields are refused."""

import json
import random

import orjson
import pytest

from sessions.wire.http_dialects import DIALECTS, Body, read_body
from tests.support.openapi import assert_fits
from tests.support.random_requests import request
from tests.support.sessions_rig import make_service
from tools_api.dialects.request_schemas import PREFIX, request_schemas
from tools_api.errors import ApiError

CONTEXT = make_service(lambda: 0.0).read_context

SERVED = {served.path: served for served in DIALECTS}
BODIES = {
    "/v1/responses": "CreateResponse",
    "/v1/chat/completions": "CreateChatCompletion",
    "/v1/messages": "CreateMessage",
}


@pytest.mark.parametrize("path", BODIES)
def test_whatever_is_read_fits(path: str) -> None:
    """Drawn bodies, of which some are spoilt: no schema is narrower than the reader."""
    chance, context = random.Random(path), CONTEXT
    served, read = SERVED[path], 0
    for _ in range(400):
        data = request(chance, path)
        found = read_body(Body(served=served, data=data), context)
        if isinstance(found.read.content, ApiError):
            continue
        read += 1
        assert_fits({"$ref": PREFIX + BODIES[path]}, json.loads(data), path)
    assert read > 100


@pytest.mark.parametrize("path", BODIES)
def test_what_does_not_fit_is_refused(path: str) -> None:
    """What the schemas forbid, the reader does as well."""
    context = CONTEXT
    good = {"model": "m", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    good |= {"max_tokens": 9}
    if path != "/v1/responses":
        del good["input"]
    for spoilt in ({"temperature": "hot"}, {"keepwarm": {"none": 1}}, {"top_p": 7}):
        body = orjson.dumps(good | spoilt)
        with pytest.raises(AssertionError):
            assert_fits({"$ref": PREFIX + BODIES[path]}, json.loads(body), path)
        found = read_body(Body(served=SERVED[path], data=body), context)
        assert isinstance(found.read.content, ApiError)
    found = read_body(Body(served=SERVED[path], data=orjson.dumps(good)), context)
    assert not isinstance(found.read.content, ApiError)


@pytest.mark.parametrize("name", ["CreateChatCompletion", "CreateMessage", "KeepwarmOptions"])
def test_where_an_unknown_field_is_refused_the_schema_is_closed(name: str) -> None:
    assert request_schemas()[name]["additionalProperties"] is False
