"""Nothing is reachable without a row in the table, nor without the access the row names."""

import base64
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_network

import orjson
import pytest
from websockets.datastructures import Headers

from sessions.http.exchange import Call
from sessions.http.front_door import Access, Admission, FrontDoor, OriginPolicy, Route, is_loopback
from sessions.http.message import HttpRequest, HttpResponse
from sessions.tenants import ApiKey, Principal, Role, Tenants
from tools_api.dialects.dialect import DialectRequest
from tools_api.errors import ApiError

ACME_KEY, BOSS_KEY = "key-of-acme", "key-of-boss"
ACME = ApiKey.of(ACME_KEY, tenant="acme")
BOSS = ApiKey.of(BOSS_KEY, tenant="boss", role=Role.OPERATOR)
WATCH_KEY = "key-of-watch"
WATCH = ApiKey.of(WATCH_KEY, tenant="acme", role=Role.READ_ONLY)
OPEN_POLICY = OriginPolicy(allowed_origins=frozenset({"https://ok.example"}), check_host=True)
KEYED_POLICY = OriginPolicy(allowed_origins=frozenset({"https://ok.example"}), check_host=False)


def shown(principal: Principal) -> HttpResponse:
    body = principal.tenant.encode()
    return HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=body)


async def handle(call: Call) -> HttpResponse | None:
    raise NotImplementedError


class Terse:
    """A dialect of few words."""

    def read(self, body: object) -> DialectRequest:
        raise NotImplementedError

    def status(self, error: ApiError) -> int:
        return error.status

    def error(self, error: ApiError) -> dict[str, object]:
        return {"terse": error.status}

    def error_event(self, error: ApiError) -> bytes:
        raise NotImplementedError


ROUTES = [
    Route(path="/socket", access=Access.TENANT, websocket=True),
    Route(path="/both", access=Access.TENANT, websocket=True, calls={"POST": handle}),
    Route(path="/things/{id}", access=Access.TENANT, calls={"GET": handle, "DELETE": handle}),
    Route(path="/things/{id}/parts", access=Access.TENANT, calls={"GET": handle}),
    Route(path="/things/special", access=Access.TENANT, calls={"POST": handle}),
    Route(path="/names/{name}", access=Access.TENANT, calls={"GET": handle}),
    Route(path="/terse", access=Access.TENANT, calls={"POST": handle}, dialect=Terse()),
    Route(path="/public", access=Access.PUBLIC, page=shown),
    Route(path="/mine", access=Access.TENANT, page=shown, for_browsers=True),
    Route(path="/all", access=Access.OPERATOR, page=shown),
]


def request(path: str, method: str = "GET", **headers: str) -> HttpRequest:
    given = Headers()
    for name, value in ({"Host": "127.0.0.1:1"} | headers).items():
        given[name.replace("_", "-")] = value
    return HttpRequest(method=method, target=path, headers=given)


def keyed() -> FrontDoor:
    return FrontDoor(routes=ROUTES, tenants=Tenants([ACME, BOSS, WATCH]), origins=KEYED_POLICY)


def unkeyed() -> FrontDoor:
    return FrontDoor(routes=ROUTES, tenants=Tenants([]), origins=OPEN_POLICY)


def answered(door: FrontDoor, asked: HttpRequest) -> HttpResponse | Admission:
    """With the page made, if it is one."""
    verdict = door.answer(asked)
    return (isinstance(verdict, Admission) and verdict.page_made()) or verdict


def status(door: FrontDoor, asked: HttpRequest) -> int:
    verdict = answered(door, asked)
    if isinstance(verdict, Admission):
        return 101 if verdict.handler is None else 100
    return verdict.status


def bearer(key: str) -> str:
    return f"Bearer {key}"


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"me:{key}".encode()).decode()


@pytest.mark.parametrize(
    "path", ["/", "/socket/", "/Socket", "//socket", "/x/../socket", "/%73ocket"]
)
def test_what_has_no_row_is_not_there(path: str) -> None:
    assert status(keyed(), request(path, Authorization=bearer(BOSS_KEY))) == 404


@pytest.mark.parametrize(
    ("path", "authorization", "expected"),
    [
        ("/public", "", 200),
        ("/mine", "", 401),
        ("/mine", "Bearer wrong-key", 401),
        ("/mine", bearer(ACME_KEY), 200),
        ("/mine", basic(ACME_KEY), 200),
        ("/mine", "Basic " + base64.b64encode(b"key-of-acme:").decode(), 401),
        ("/all", "", 401),
        ("/all", bearer(ACME_KEY), 403),
        ("/all", bearer(BOSS_KEY), 200),
        ("/all", basic(BOSS_KEY), 401),
        ("/socket", "", 401),
        ("/socket", basic(ACME_KEY), 401),
        ("/socket", bearer(ACME_KEY), 426),
    ],
)
def test_each_route_asks_for_its_access(path: str, authorization: str, expected: int) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    assert status(keyed(), request(path, **headers)) == expected


def test_a_handshake_with_a_key_goes_on_for_its_tenant() -> None:
    asked = request("/socket?x=1", Upgrade="WebSocket", Authorization=bearer(ACME_KEY))
    verdict = keyed().answer(asked)
    assert isinstance(verdict, Admission)
    assert (verdict.principal, verdict.handler) == (ACME.principal, None)


def test_a_page_is_made_for_the_tenant_of_the_key() -> None:
    verdict = answered(keyed(), request("/mine", Authorization=bearer(ACME_KEY)))
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
    headers = {"Host": "box.lan:8080", "Upgrade": "websocket", "Authorization": bearer(ACME_KEY)}
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
    asked = request("/mine", Host="evil.example", Authorization=bearer(ACME_KEY))
    assert status(keyed(), asked) == 200


def test_a_request_needs_one_host() -> None:
    double = request("/public", Host="localhost")
    double.headers["Host"] = "localhost"
    without = HttpRequest(method="GET", target="/public", headers=Headers())
    assert status(unkeyed(), without) == status(unkeyed(), double) == 400


@pytest.mark.parametrize(
    ("name", "expected"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("", False)],
)
def test_loopback_is_known_by_name_and_number(name: str, expected: bool) -> None:
    assert is_loopback(name) is expected


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("/things/a", "a"),
        ("/things/a%2Fb?x=/", "a%2Fb"),
        ("/things/a/parts", "a"),
        ("/things/parts", "parts"),
        ("/things/{id}", "{id}"),
        ("/names/a/b", "a/b"),
        ("/things/", None),
        ("/things//parts", None),
        ("/things/a/b/parts", None),
        ("/things/a/parts/", None),
        ("/names/", None),
    ],
)
def test_what_stands_in_braces_is_handed_over(path: str, argument: str | None) -> None:
    verdict = unkeyed().answer(request(path))
    found = verdict.argument if isinstance(verdict, Admission) else None
    assert found == argument


def test_a_path_of_its_own_comes_before_one_with_braces() -> None:
    assert status(unkeyed(), request("/things/special")) == 405
    assert status(unkeyed(), request("/things/special", "POST")) == 100


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/mine", "POST", "GET, HEAD"),
        ("/socket", "PUT", "GET"),
        ("/both", "PUT", "GET, POST"),
        ("/things/a", "POST", "GET, HEAD, DELETE"),
        ("/things/special", "GET", "POST"),
        ("/things/special", "OPTIONS", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(path: str, method: str, allowed: str) -> None:
    verdict = unkeyed().answer(request(path, method))
    assert isinstance(verdict, HttpResponse)
    assert verdict.status == 405
    assert dict(verdict.headers)["Allow"] == allowed


@pytest.mark.parametrize(
    ("path", "method", "kind"),
    [
        ("/nothing", "GET", "not_found_error"),
        ("/socket", "PUT", "authentication_error"),
        ("/public", "POST", "invalid_request_error"),
    ],
)
def test_who_speaks_anthropics_api_is_told_errors_in_its_words(
    path: str, method: str, kind: str
) -> None:
    answer = keyed().answer(request(path, method, anthropic_version="2023-06-01"))
    assert isinstance(answer, HttpResponse)
    told = orjson.loads(answer.body)
    assert (told["type"], told["error"]["type"]) == ("error", kind)


def test_a_route_with_words_of_its_own_keeps_them() -> None:
    answer = unkeyed().answer(request("/terse", "PUT", anthropic_version="2023-06-01"))
    assert isinstance(answer, HttpResponse)
    assert orjson.loads(answer.body) == {"terse": 405}


def test_a_path_may_open_a_websocket_and_answer_posts() -> None:
    assert status(unkeyed(), request("/both", Upgrade="websocket")) == 101
    assert status(unkeyed(), request("/both", "POST")) == 100
    assert status(unkeyed(), request("/both")) == 426
    assert status(unkeyed(), request("/both", "POST", Upgrade="h2c")) == 100


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Content_Length": "5", "Content_Type": "application/json"}, 100),
        ({"Content_Length": "5", "Content_Type": "text/plain"}, 415),
        ({"Content_Length": "5"}, 415),
        ({"Transfer_Encoding": "chunked"}, 415),
        ({"Content_Length": "0"}, 100),
        ({}, 100),
    ],
)
def test_a_body_has_to_be_json(headers: dict[str, str], expected: int) -> None:
    assert status(unkeyed(), request("/both", "POST", **headers)) == expected


def test_a_compressed_body_is_refused_by_that_name() -> None:
    coded = {"Content_Length": "5", "Content_Type": "application/json", "Content_Encoding": "gzip"}
    answer = unkeyed().answer(request("/both", "POST", **coded))
    assert isinstance(answer, HttpResponse)
    assert (answer.status, dict(answer.headers)) == (415, {"Accept-Encoding": "identity"})
    assert b"Content-Encoding" in answer.body


@pytest.mark.parametrize("path", ["/both", "/things/a", "/mine", "/public", "/all"])
@pytest.mark.parametrize("door", [keyed, unkeyed])
def test_a_browser_may_ask_for_a_page_of_an_allowed_origin_without_a_key(
    path: str, door: Callable[[], FrontDoor]
) -> None:
    asks = {"Access_Control_Request_Method": "POST", "Host": "localhost"}
    allowed = request(path, "OPTIONS", Origin="https://ok.example", **asks)
    verdict = door().answer(allowed)
    assert isinstance(verdict, HttpResponse)
    assert verdict.status == 204
    assert dict(verdict.headers)["Access-Control-Allow-Origin"] == "https://ok.example"
    assert dict(door().readable_by_page(allowed))["Vary"] == "Origin"
    for origin in ("https://evil.example", "null", "https://ok.example.evil.example"):
        foreign = request(path, "OPTIONS", Origin=origin, **asks)
        refused = door().answer(foreign)
        assert isinstance(refused, HttpResponse)
        assert refused.status == 403
        assert not any(name.startswith("Access-Control") for name, _ in refused.headers)
        assert door().readable_by_page(foreign) == ()


def test_a_post_of_a_foreign_page_is_refused_whatever_it_holds() -> None:
    headers = {"Origin": "https://evil.example", "Content_Type": "application/json"}
    assert status(unkeyed(), request("/both", "POST", **headers)) == 403


def test_the_key_may_come_as_other_clients_send_it_but_not_from_browsers() -> None:
    assert status(keyed(), request("/both", "POST", X_Api_Key=ACME_KEY)) == 100
    assert status(keyed(), request("/both", "POST", X_Api_Key="wrong-key")) == 401
    assert status(keyed(), request("/mine", X_Api_Key=ACME_KEY)) == 401


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("POST", {}, 401),
        ("GET", {"Authorization": f"Bearer {ACME_KEY}"}, 405),
        ("POST", {"Origin": "https://evil.example"}, 403),
        ("POST", {"Authorization": f"Bearer {ACME_KEY}", "Content_Length": "1"}, 415),
    ],
)
def test_errors_are_told_in_the_words_of_the_paths_own_api(
    method: str, headers: dict[str, str], expected: int
) -> None:
    verdict = keyed().answer(request("/terse", method, **headers))
    assert isinstance(verdict, HttpResponse)
    assert orjson.loads(verdict.body) == {"terse": expected}


@pytest.mark.parametrize(
    ("path", "method", "headers", "expected"),
    [
        ("/things/a", "GET", {}, 100),
        ("/things/a", "HEAD", {}, 100),
        ("/things/a", "DELETE", {}, 403),
        ("/both", "POST", {}, 403),
        ("/both", "GET", {"Upgrade": "websocket"}, 403),
        ("/both", "GET", {}, 426),
        ("/mine", "GET", {}, 200),
        ("/mine", "PATCH", {}, 403),
        ("/all", "GET", {}, 403),
        ("/public", "GET", {}, 200),
    ],
)
def test_a_read_only_key_shows_its_tenants_things_and_does_nothing_else(
    path: str, method: str, headers: dict[str, str], expected: int
) -> None:
    asked = request(path, method, Authorization=bearer(WATCH_KEY), **headers)
    assert status(keyed(), asked) == expected


def said(door: FrontDoor, path: str) -> str:
    """The words of a refusal."""
    answer = door.answer(request(path, Authorization=bearer(ACME_KEY)))
    assert isinstance(answer, HttpResponse)
    assert answer.status == 404
    return str(orjson.loads(answer.body)["error"]["message"])


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/responses", "/v1/responses"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/v1/responses/", "/v1/responses"),
        ("//v1//responses", "/v1/responses"),
        ("/openai/v2/responses", "/v1/responses"),
        ("/responses/abc/input_items", "/v1/responses/abc/input_items"),
        ("/v1/public", "/public"),
        ("/nowhere", None),
        ("/", None),
        ("/" * 50, None),
    ],
)
def test_a_path_that_ends_like_one_of_ours_is_answered_with_that(
    path: str, meant: str | None
) -> None:
    routes = [
        *ROUTES,
        Route(path="/v1/responses", access=Access.TENANT, calls={"POST": handle}),
        Route(path="/v1/responses/{id}/input_items", access=Access.TENANT, calls={"GET": handle}),
    ]
    door = FrontDoor(routes=routes, tenants=Tenants([ACME]), origins=KEYED_POLICY)
    told = said(door, path)
    if meant is None:
        assert told == "There is nothing at this path; GET / lists what there is."
    else:
        assert f"is {meant} meant?" in told
        assert "the base URL ends with /v1" in told


def test_a_long_path_is_looked_for_as_fast_as_a_short_one() -> None:
    """Only its end is looked at, however many slashes there are."""
    looked: list[str] = []

    class Counted(FrontDoor):
        def find(self, path: str) -> tuple[Route | None, str]:
            looked.append(path)
            return super().find(path)

    door = Counted(routes=ROUTES, tenants=Tenants([ACME]), origins=KEYED_POLICY)
    said(door, "/a" * 4000)
    assert len(looked) < 12


def test_a_read_only_key_is_told_what_it_is_good_for_and_which_one_to_take() -> None:
    answer = keyed().answer(request("/both", "POST", Authorization=bearer(WATCH_KEY)))
    assert isinstance(answer, HttpResponse)
    told = orjson.loads(answer.body)["error"]["message"]
    assert told.startswith("This key is read-only: ")
    assert "role 'tenant'" in told


@pytest.mark.parametrize(
    ("peer", "told", "client"),
    [
        ("10.0.0.5", ["1.2.3.4"], "1.2.3.4"),
        ("::ffff:10.0.0.5", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.5", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.5", ["6.6.6.6", "2001:db8::1"], "2001:db8::1"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["nobody"], "10.0.0.5"),
        ("10.0.1.5", ["1.2.3.4"], "10.0.1.5"),
        ("", ["1.2.3.4"], ""),
    ],
)
def test_a_balancers_word_for_a_clients_address_is_taken_and_nobody_elses(
    peer: str, told: list[str], client: str
) -> None:
    policy = replace(KEYED_POLICY, forwarded_by=(ip_network("10.0.0.0/24"),))
    headers = Headers()
    headers["Host"] = "127.0.0.1"
    for each in told:
        headers["X-Forwarded-For"] = each
    asked = HttpRequest(method="GET", target="/", headers=headers)
    door = FrontDoor(routes=ROUTES, tenants=Tenants([ACME]), origins=policy)
    assert door.client_of(peer, asked) == client
    assert keyed().client_of(peer, asked) == peer
