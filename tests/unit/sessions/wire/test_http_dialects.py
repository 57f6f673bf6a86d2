"""The table of APIs, and bodies read with the session that a header names."""

from typing import Any

import orjson
import pytest

from sessions.wire.http_dialects import DIALECTS, Body, Served, read_body
from tests.support.reading import CONTEXT
from tools_api.errors import ApiError
from tools_api.requests import CreateRequest

BY_PATH = {served.path: served for served in DIALECTS}
RESPONSES = BY_PATH["/v1/responses"]


def read(
    fields: Any, served: Served = RESPONSES, session: str | None = None, counted: bool = False
) -> Any:
    body = Body(served=served, data=orjson.dumps(fields), session=session, counted=counted)
    return read_body(body, CONTEXT)


@pytest.mark.parametrize(
    ("fields", "name", "by_header"),
    [
        ({}, "header", True),
        ({"keepwarm": {"session": "own"}}, "own", False),
        ({"metadata": {"keepwarm.session": "meta"}}, "meta", False),
    ],
)
def test_a_header_names_the_session_where_the_body_names_none(
    fields: dict[str, Any], name: str, by_header: bool
) -> None:
    found = read({"input": "hi"} | fields, session="header")
    assert isinstance(found.read.content, CreateRequest)
    assert (found.read.content.keepwarm.session, found.style.by_header) == (name, by_header)


def test_a_body_is_streamed_and_written_as_it_asks() -> None:
    chat = BY_PATH["/v1/chat/completions"]
    fields = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    style = read(fields | {"stream_options": {"include_usage": True}}, chat).style
    assert (style.streamed, style.settings) == (True, {"usage": True, "logprobs": False})
    counted = read({"input": "hi"}, counted=True)
    assert (counted.style.streamed, counted.style.settings) == (False, {})


@pytest.mark.parametrize(
    ("fields", "code", "understood"),
    [([], "invalid_json", False), ({"stream": 1}, "invalid_type", False),
     ({"input": 1}, "invalid_type", True), ({"input": "a", "model": "x"}, "model_not_found", True)],
)  # fmt: skip
def test_a_faulty_body_gives_its_error(fields: Any, code: str, understood: bool) -> None:
    found = read(fields)
    assert isinstance(found.read.content, ApiError)
    assert found.read.content.code == code
    assert (found.style is not None) == understood
