"""What a page of another origin is let do: asked before, and told with the answer."""

from http import HTTPStatus

import pytest
from websockets.datastructures import Headers

from sessions.http.cross_origin import is_preflight, preflight, readable
from sessions.http.message import HttpRequest

OURS = "https://ok.example"


def request(method: str = "OPTIONS", **headers: str) -> HttpRequest:
    given = Headers()
    for name, value in headers.items():
        given[name.replace("_", "-")] = value
    return HttpRequest(method=method, target="/", headers=given)


def asked(**headers: str) -> HttpRequest:
    return request(Origin=OURS, Access_Control_Request_Method="POST", **headers)


def test_a_preflight_is_told_what_may_be_sent_and_has_no_body() -> None:
    names = "authorization,content-type,x-stainless-lang"
    response = preflight(asked(Access_Control_Request_Headers=names), ("GET", "POST"))
    assert (response.status, response.body) == (HTTPStatus.NO_CONTENT, b"")
    fields = dict(response.fields())
    del fields["Date"]
    assert fields == {
        "Access-Control-Allow-Origin": OURS,
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": names,
        "Access-Control-Expose-Headers": "Retry-After, X-Request-Id, Request-Id",
        "Access-Control-Max-Age": "600",
        "Cache-Control": "no-store",
        "Vary": "Origin",
    }


@pytest.mark.parametrize("names", ["", "a b", "a,", "x: y", "ä", "a;b", "*"])
def test_names_of_headers_that_are_none_are_not_repeated(names: str) -> None:
    response = preflight(asked(Access_Control_Request_Headers=names), ("GET",))
    assert "Access-Control-Allow-Headers" not in dict(response.headers)


def test_only_a_browser_that_asks_for_a_page_makes_a_preflight() -> None:
    assert is_preflight(asked())
    assert not is_preflight(request(Origin=OURS))
    assert not is_preflight(request("POST", Access_Control_Request_Method="POST"))


def test_without_a_page_nothing_is_said() -> None:
    assert readable(request("GET")) == ()
