"""What can be answered at once is."""

from http import HTTPStatus

import pytest

from sessions.http.exchange import Call, at_once
from sessions.http.message import HttpResponse
from tests.support.exchange import KeptExchange, make_call
from tools_api import errors
from tools_api.errors import ApiError


def test_an_answer_that_needs_no_wait_ends_the_exchange() -> None:
    def echo(call: Call) -> HttpResponse:
        body = call.argument.encode()
        return HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=body)

    exchange = KeptExchange()
    assert at_once(echo)(make_call("a"), exchange) is None
    assert exchange.over
    assert exchange.answered is not None
    assert exchange.answered.body == b"a"


def test_an_error_is_left_to_the_connection() -> None:
    def refuse(call: Call) -> HttpResponse:
        raise errors.no_such_response(call.argument)

    exchange = KeptExchange()
    with pytest.raises(ApiError):
        at_once(refuse)(make_call("a"), exchange)
    assert not exchange.over
