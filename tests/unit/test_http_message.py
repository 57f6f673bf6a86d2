"""Request heads are read strictly, answers are whole."""

import base64
from http import HTTPStatus

import orjson
import pytest

from sessions.http_message import (
    MAX_HEADERS,
    HttpError,
    HttpResponse,
    basic_password,
    bearer_token,
    error_response,
    parse_request,
)


def head(*lines: str) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def authorized(value: str) -> bytes:
    return head("GET / HTTP/1.1", f"Authorization: {value}")


def test_a_head_gives_method_path_and_headers_of_any_case() -> None:
    request = parse_request(head("GET /v1/responses?a=/b HTTP/1.1", "Host: h:1", "X-Y: 1 "))
    assert (request.method, request.path) == ("GET", "/v1/responses")
    assert request.target == "/v1/responses?a=/b"
    assert request.header("hOST") == "h:1"
    assert request.header("x-y") == "1"
    assert request.header("absent") is None


def test_a_header_sent_twice_has_no_single_value() -> None:
    request = parse_request(head("GET / HTTP/1.1", "Host: a", "Host: b"))
    assert request.header("Host") is None


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET /"], 400),
        (["GET  / HTTP/1.1"], 400),
        (["GET / HTTP/1.0"], 505),
        (["GET / HTTP/2"], 505),
        (["G\x00T / HTTP/1.1"], 400),
        (["GET http://elsewhere/ HTTP/1.1"], 400),
        (["GET /\xe9 HTTP/1.1"], 400),
        (["GET / HTTP/1.1", "no colon"], 400),
        (["GET / HTTP/1.1", "Bad Name: x"], 400),
        (["GET / HTTP/1.1", " folded: x"], 400),
        (["GET / HTTP/1.1", "X: a\x00b"], 400),
        (["GET / HTTP/1.1", "X: a\nY: b"], 400),
        (["GET / HTTP/1.1", "Content-Length: 5"], 400),
        (["GET / HTTP/1.1", "Content-Length: 0", "Content-Length: 0"], 400),
        (["GET / HTTP/1.1", "Transfer-Encoding: chunked"], 400),
        (["GET / HTTP/1.1", *["X: y"] * (MAX_HEADERS + 1)], 431),
    ],
)
def test_a_malformed_head_is_refused(lines: list[str], status: int) -> None:
    with pytest.raises(HttpError) as caught:
        parse_request(head(*lines))
    assert caught.value.status == status


def test_as_many_headers_as_allowed_are_read() -> None:
    request = parse_request(head("GET / HTTP/1.1", *["X: y"] * MAX_HEADERS))
    assert len(request.headers.get_all("X")) == MAX_HEADERS


def test_an_announced_body_is_no_fault_where_a_method_has_one() -> None:
    assert parse_request(head("POST / HTTP/1.1", "Content-Length: 5")).method == "POST"


def test_an_answer_says_its_length_and_ends_the_connection() -> None:
    response = HttpResponse(
        status=HTTPStatus.OK, content_type="text/plain", body=b"abc", headers=(("X-A", "b"),)
    )
    head_bytes, _, body = response.serialize().partition(b"\r\n\r\n")
    lines = head_bytes.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert {"Content-Length: 3", "Connection: close", "X-A: b"} <= set(lines)
    assert body == b"abc"


def test_an_answer_to_head_has_the_length_but_not_the_body() -> None:
    response = HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=b"abc")
    raw = response.serialize(with_body=False)
    assert b"Content-Length: 3\r\n" in raw
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "invalid_request_error"), (503, "server_error")]
)
def test_a_refusal_has_all_keys_of_an_error(status: int, kind: str) -> None:
    response = error_response(HTTPStatus(status), "why", code="c")
    assert orjson.loads(response.body) == {
        "error": {"message": "why", "type": kind, "param": None, "code": "c"}
    }


@pytest.mark.parametrize(
    ("value", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", "")],
)
def test_the_bearer_token_is_read(value: str, token: str | None) -> None:
    assert bearer_token(parse_request(authorized(value))) == token


@pytest.mark.parametrize(
    ("value", "password"),
    [
        ("Basic " + base64.b64encode(b"anyone:k:e:y").decode(), "k:e:y"),
        ("basic " + base64.b64encode(b":key").decode(), "key"),
        ("Basic " + base64.b64encode(b"nocolon").decode(), ""),
        ("Basic " + base64.b64encode(b"\xff:x").decode(), None),
        ("Basic ???", None),
        ("Bearer abc", None),
    ],
)
def test_the_basic_password_is_read(value: str, password: str | None) -> None:
    assert basic_password(parse_request(authorized(value))) == password


def test_without_authorization_there_is_neither() -> None:
    request = parse_request(head("GET / HTTP/1.1"))
    assert bearer_token(request) is None
    assert basic_password(request) is None
