"""Nothing is reachable without a row in the table, nor without the access the row names."""

import base64
from http import HTTPStatus

import orjson
import pytest

from sessions.front_door import Access, FrontDoor, OriginPolicy, Route, is_loopback
from sessions.http_message import HttpRequest, HttpResponse, parse_request
from sessions.tenants import ApiKey, Principal, Tenants

ACME = ApiKey(key="key-of-acme", principal=Principal(tenant="acme", operator=False))
BOSS = ApiKey(key="key-of-boss", principal=Principal(tenant="boss", operator=True))
OPEN_POLICY = OriginPolicy(allowed_origins=frozenset({"https://ok.example"}), check_host=True)
KEYED_POLICY = OriginPolicy(allowed_origins=frozenset({"https://ok.example"}), check_host=False)


def shown(principal: Principal) -> HttpResponse:
    body = principal.tenant.encode()
    return HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=body)


ROUTES = [
    Route(path="/socket", access=Access.TENANT, page=None),
    Route(path="/public", access=Access.PUBLIC, page=shown),
    Route(path="/mine", access=Access.TENANT, page=shown, for_browsers=True),
    Route(path="/all", access=Access.OPERATOR, page=shown),
]


def request(path: str, method: str = "GET", **headers: str) -> HttpRequest:
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in ({"Host": "127.0.0.1:1"} | headers).items()]
    return parse_request(("\r\n".join(lines) + "\r\n\r\n").encode())


def keyed() -> FrontDoor:
    return FrontDoor(routes=ROUTES, tenants=Tenants([ACME, BOSS]), origins=KEYED_POLICY)


def unkeyed() -> FrontDoor:
    return FrontDoor(routes=ROUTES, tenants=Tenants([]), origins=OPEN_POLICY)


def status(door: FrontDoor, asked: HttpRequest) -> int:
    verdict = door.answer(asked)
    return 101 if isinstance(verdict, Principal) else verdict.status


def bearer(key: ApiKey) -> str:
    return f"Bearer {key.key}"


def basic(key: ApiKey) -> str:
    return "Basic " + base64.b64encode(f"me:{key.key}".encode()).decode()


@pytest.mark.parametrize(
    "path", ["/", "/socket/", "/Socket", "//socket", "/x/../socket", "/%73ocket"]
)
def test_what_has_no_row_is_not_there(path: str) -> None:
    assert status(keyed(), request(path, Authorization=bearer(BOSS))) == 404


@pytest.mark.parametrize(
    ("path", "authorization", "expected"),
    [
        ("/public", "", 200),
        ("/mine", "", 401),
        ("/mine", "Bearer wrong-key", 401),
        ("/mine", bearer(ACME), 200),
        ("/mine", basic(ACME), 200),
        ("/mine", "Basic " + base64.b64encode(b"key-of-acme:").decode(), 401),
        ("/all", "", 401),
        ("/all", bearer(ACME), 403),
        ("/all", bearer(BOSS), 200),
        ("/all", basic(BOSS), 401),
        ("/socket", "", 401),
        ("/socket", basic(ACME), 401),
        ("/socket", bearer(ACME), 426),
    ],
)
def test_each_route_asks_for_its_access(path: str, authorization: str, expected: int) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    assert status(keyed(), request(path, **headers)) == expected


def test_a_handshake_with_a_key_goes_on_for_its_tenant() -> None:
    asked = request("/socket?x=1", Upgrade="WebSocket", Authorization=bearer(ACME))
    assert keyed().answer(asked) == ACME.principal


def test_a_page_is_made_for_the_tenant_of_the_key() -> None:
    verdict = keyed().answer(request("/mine", Authorization=bearer(ACME)))
    assert isinstance(verdict, HttpResponse)
    assert verdict.body == b"acme"


@pytest.mark.parametrize(("path", "scheme"), [("/mine", "Basic"), ("/socket", "Bearer")])
def test_a_refused_key_says_how_to_send_one(path: str, scheme: str) -> None:
    verdict = keyed().answer(request(path))
    assert isinstance(verdict, HttpResponse)
    assert dict(verdict.headers)["WWW-Authenticate"] == f'{scheme} realm="keepwarm"'
    assert orjson.loads(verdict.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        ("/mine", "HEAD", 200),
        ("/mine", "POST", 405),
        ("/socket", "POST", 405),
        ("/socket", "HEAD", 405),
        ("/socket", "GET", 426),
        ("/nowhere", "POST", 404),
    ],
)
def test_other_methods_are_refused(path: str, method: str, expected: int) -> None:
    assert status(unkeyed(), request(path, method)) == expected


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:3000", True),
        ("http://[::1]:3000", True),
        ("https://ok.example", True),
        ("https://ok.example:444", False),
        ("http://ok.example", False),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost@evil.example", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("http://[", False),
    ],
)
@pytest.mark.parametrize("path", ["/socket", "/mine", "/public"])
def test_a_foreign_page_is_refused(path: str, origin: str, allowed: bool) -> None:
    asked = request(path, Upgrade="websocket", Origin=origin)
    assert (status(unkeyed(), asked) != 403) is allowed


def test_a_page_of_the_server_itself_is_allowed_under_any_name() -> None:
    headers = {"Host": "box.lan:8080", "Upgrade": "websocket", "Authorization": bearer(ACME)}
    assert status(keyed(), request("/socket", Origin="http://box.lan:8080", **headers)) == 101
    assert status(keyed(), request("/socket", Origin="http://box.lan:8081", **headers)) == 403


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("localhost", True),
        ("[::1]:8080", True),
        ("agent.localhost:80", True),
        ("ok.example", True),
        ("evil.example:8080", False),
        ("", False),
        ("[", False),
    ],
)
def test_without_a_key_a_foreign_host_name_is_refused(host: str, allowed: bool) -> None:
    rebound = request("/mine", Host=host, Origin=f"http://{host}")
    plain = request("/mine", Host=host)
    assert (status(unkeyed(), plain) == 200) is allowed
    if not allowed:
        assert status(unkeyed(), rebound) == 403


def test_with_a_key_the_host_name_does_not_matter() -> None:
    asked = request("/mine", Host="evil.example", Authorization=bearer(ACME))
    assert status(keyed(), asked) == 200


def test_a_request_needs_one_host() -> None:
    without = parse_request(b"GET /public HTTP/1.1\r\n\r\n")
    double = parse_request(b"GET /public HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    assert status(unkeyed(), without) == status(unkeyed(), double) == 400


@pytest.mark.parametrize(
    ("name", "expected"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("", False)],
)
def test_loopback_is_known_by_name_and_number(name: str, expected: bool) -> None:
    assert is_loopback(name) is expected
