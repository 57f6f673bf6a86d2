"""Request heads beyond what h11 checks, answers, and errors in their API's words."""

import base64
from http import HTTPStatus
from urllib.parse import parse_qs

import h11
import orjson
import pytest

from sessions.http.framing import HttpFraming
from sessions.http.message import (
    MAX_HEADERS,
    MAX_PARAMETERS,
    HttpError,
    HttpRequest,
    HttpResponse,
    basic_password,
    bearer_token,
    http_error,
    json_response,
    read_request,
    refusal,
)
from tools_api import errors
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError

HOST = "Host: localhost"


def read(*lines: str) -> HttpRequest:
    framing = HttpFraming()
    framing.receive(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head = framing.next_event()
    assert isinstance(head, h11.Request)
    return read_request(head)


def authorized(value: str) -> HttpRequest:
    return read("GET / HTTP/1.1", HOST, f"Authorization: {value}")


def test_a_head_gives_method_path_query_and_headers_of_any_case() -> None:
    request = read("GET /v1/responses?a=/b&c=&a=d HTTP/1.1", "Host: h:1", "X-Y: 1 ")
    assert (request.method, request.path) == ("GET", "/v1/responses")
    assert request.target == "/v1/responses?a=/b&c=&a=d"
    assert [request.query(name) for name in ("a", "c", "x")] == ["d", "", None]
    assert request.header("hOST") == "h:1"
    assert request.header("x-y") == "1"
    assert request.header("absent") is None


@pytest.mark.parametrize(
    "host",
    ["", "h", "a-b_c.example:8080", "h:", "[::1]:80", "[fe80::1%eth0]", "127.0.0.1", "a%20b"],
)
def test_a_host_is_a_name_or_an_address_and_perhaps_a_port(host: str) -> None:
    assert read("GET / HTTP/1.1", f"Host: {host}").header("Host") == host


def test_a_query_of_the_most_parameters_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = []

    def parsed(query: str, **options: bool) -> dict[str, list[str]]:
        parses.append(query)
        return parse_qs(query, **options)

    monkeypatch.setattr("sessions.http.message.parse_qs", parsed)
    query = "&".join(f"p{number}=&p{number}=x" for number in range(MAX_PARAMETERS // 2))
    request = read(f"GET /?{query} HTTP/1.1", HOST)
    assert len(request.parameters()) == MAX_PARAMETERS // 2
    assert {request.query(name) for name in request.parameters()} == {"x"}
    assert {tuple(request.queries(name)) for name in request.parameters()} == {("", "x")}
    assert len(parses) == 1


def test_a_header_sent_twice_has_no_single_value() -> None:
    request = read("GET / HTTP/1.1", HOST, "Origin: a", "Origin: b")
    assert request.header("Origin") is None


def test_a_header_that_means_one_thing_may_come_twice_alike_and_not_otherwise() -> None:
    alike = read("GET / HTTP/1.1", HOST, "X-Session-Id: a", "x-session-id: a")
    assert (alike.one_value("X-Session-Id"), alike.one_value("X")) == ("a", None)
    with pytest.raises(ApiError, match="more than one value") as caught:
        read("GET / HTTP/1.1", HOST, "X-Session-Id: a", "X-Session-Id: b").one_value("X-Session-Id")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("plain", "plain"),
        ("n\xc3\xa9", "n\xe9"),
        ("n\xe9", "n\xe9"),
        ("\xe4\xb8\xad\xf0\x9f\x98\x80", "\u4e2d\U0001f600"),
        ("\xff", "\xff"),
    ],
)
def test_a_name_in_a_header_is_the_one_that_a_body_would_tell(sent: str, name: str) -> None:
    assert read("GET / HTTP/1.1", HOST, f"X-Session-Id: {sent}").one_value("X-Session-Id") == name


@pytest.mark.parametrize("path", ["/", "/v1/responses", "/a?b=http://c/d", "/?x", "//a"])
@pytest.mark.parametrize("host", ["localhost:8080", "[::1]:1", "evil.example"])
def test_a_target_may_be_a_url_whose_host_counts_instead_of_the_headers(
    path: str, host: str
) -> None:
    request = read(f"GET http://{host}{path} HTTP/1.1", HOST)
    assert (request.target, request.header("Host")) == (path, host)
    bare = read(f"GET HTTPS://{host}?x HTTP/1.1", HOST)
    assert (bare.target, bare.path, bare.header("Host")) == ("/?x", "/", host)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET /"], 400),
        (["GET  / HTTP/1.1", HOST], 400),
        (["GET / HTTP/1.0"], 505),
        (["GET / HTTP/2.0", HOST], 505),
        (["GET / HTTP/2", HOST], 400),
        (["G\x00T / HTTP/1.1", HOST], 400),
        (["GET ftp://elsewhere/ HTTP/1.1", HOST], 400),
        (["GET http:/// HTTP/1.1", HOST], 400),
        (["GET http://me@localhost/ HTTP/1.1", HOST], 400),
        (["GET / HTTP/1.1", "Host: me@localhost"], 400),
        (["GET / HTTP/1.1", "Host: localhost:abc"], 400),
        (["GET / HTTP/1.1", "Host: localhost/x"], 400),
        (["GET / HTTP/1.1", "Host: a b"], 400),
        (["GET / HTTP/1.1", "Host: [::1"], 400),
        (["GET / HTTP/1.1", "Host: ::1"], 400),
        (["GET / HTTP/1.1", "Host: http://localhost"], 400),
        (["GET http://localhost:x/ HTTP/1.1", HOST], 400),
        (["GET /?" + "a&" * MAX_PARAMETERS + " HTTP/1.1", HOST], 400),
        (["CONNECT localhost:80 HTTP/1.1", HOST], 400),
        (["OPTIONS * HTTP/1.1", HOST], 400),
        (["GET /\xe9 HTTP/1.1", HOST], 400),
        (["GET / HTTP/1.1", HOST, "no colon"], 400),
        (["GET / HTTP/1.1", HOST, "Bad Name: x"], 400),
        (["GET / HTTP/1.1", " folded: x", HOST], 400),
        (["GET / HTTP/1.1", HOST, "X: a\x00b"], 400),
        (["GET / HTTP/1.1", HOST, "X: a\x01b"], 400),
        (["GET / HTTP/1.1", "Host: local\x7fhost"], 400),
        (["GET / HTTP/1.1"], 400),
        (["GET / HTTP/1.1", HOST, HOST], 400),
        (["GET / HTTP/1.1", HOST, "Content-Length: 5"], 400),
        (["GET / HTTP/1.1", HOST, "Transfer-Encoding: chunked"], 400),
        (["DELETE / HTTP/1.1", HOST, "Content-Length: 5"], 400),
        (["POST / HTTP/1.1", HOST, "Content-Length: 5", "Content-Length: 6"], 400),
        (["POST / HTTP/1.1", HOST, "Content-Length: -1"], 400),
        (["POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip"], 501),
        (["POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked", "Content-Length: 5"], 400),
        (["GET / HTTP/1.1", HOST, *["X: y"] * MAX_HEADERS], 431),
    ],
)
def test_a_malformed_head_is_refused(lines: list[str], status: int) -> None:
    with pytest.raises(HttpError) as caught:
        read(*lines)
    assert caught.value.status == status


def test_as_many_headers_as_allowed_are_read() -> None:
    request = read("GET / HTTP/1.1", HOST, *["X: y"] * (MAX_HEADERS - 1))
    assert len(request.headers.get_all("X")) == MAX_HEADERS - 1


@pytest.mark.parametrize(
    ("lines", "has_body", "length"),
    [
        ([], False, 0),
        (["Content-Length: 0"], False, 0),
        (["Content-Length: 5"], True, 5),
        (["Transfer-Encoding: chunked"], True, 0),
    ],
)
def test_a_post_says_whether_it_has_a_body(lines: list[str], has_body: bool, length: int) -> None:
    request = read("POST / HTTP/1.1", HOST, *lines)
    assert (request.has_body, request.body_bytes) == (has_body, length)


@pytest.mark.parametrize(
    ("kind", "is_json"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/jsonx", False),
        ("text/plain", False),
        ("", False),
    ],
)
def test_json_is_known_by_its_type(kind: str, is_json: bool) -> None:
    assert read("POST / HTTP/1.1", HOST, f"Content-Type: {kind}").is_json is is_json


@pytest.mark.parametrize(
    ("codings", "is_coded"),
    [
        ([], False),
        ([""], False),
        (["Identity"], False),
        (["gzip"], True),
        (["identity, zstd"], True),
        (["identity", "br"], True),
    ],
)
def test_a_compressed_body_is_known_by_its_header(codings: list[str], is_coded: bool) -> None:
    lines = [f"Content-Encoding: {coding}" for coding in codings]
    assert read("POST / HTTP/1.1", HOST, *lines).is_coded is is_coded


def test_an_answer_says_its_type_and_length() -> None:
    response = HttpResponse(
        status=HTTPStatus.OK, content_type="text/plain", body=b"abc", headers=(("X-A", "b"),)
    )
    fields = dict(response.fields())
    assert fields.keys() >= {"Date", "Cache-Control", "X-Content-Type-Options"}
    assert (fields["Content-Type"], fields["Content-Length"]) == ("text/plain", "3")
    assert fields["X-A"] == "b"


def test_json_is_written_once() -> None:
    assert json_response(b'{"a": 1}').body == b'{"a": 1}'
    assert json_response({"a": 1}).body == b'{"a":1}'


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "invalid_request_error"), (503, "server_error")]
)
def test_a_refusal_has_all_keys_of_an_error(status: int, kind: str) -> None:
    response = refusal(http_error(HTTPStatus(status), "why", code="c"))
    assert response.status == status
    assert orjson.loads(response.body) == {
        "error": {"message": "why", "type": kind, "param": None, "code": "c"}
    }


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (errors.overloaded("x"), "1"),
        (errors.rate_limited("x", retry_after_s=12.1), "13"),
        (errors.runs_elsewhere(), "1"),
        (errors.request_id_reused(), None),
        (errors.internal_error(), None),
        (errors.missing_parameter("input"), None),
    ],
)
def test_who_is_turned_away_for_now_is_told_when_to_come_back(
    error: ApiError, wait_s: str | None
) -> None:
    for dialect in (RESPONSES, CHAT_COMPLETIONS, MESSAGES):
        assert dict(refusal(error, dialect).headers).get("Retry-After") == wait_s


def test_an_overloaded_server_has_the_status_that_each_apis_clients_know() -> None:
    error = errors.overloaded("x")
    assert refusal(error).status == refusal(error, CHAT_COMPLETIONS).status == 503
    assert refusal(error, MESSAGES).status == 529


@pytest.mark.parametrize(
    ("value", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", "")],
)
def test_the_bearer_token_is_read(value: str, token: str | None) -> None:
    assert bearer_token(authorized(value)) == token


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
    assert basic_password(authorized(value)) == password


def test_without_authorization_there_is_neither() -> None:
    request = read("GET / HTTP/1.1", HOST)
    assert bearer_token(request) is None
    assert basic_password(request) is None
