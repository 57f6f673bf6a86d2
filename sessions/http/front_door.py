"""Access rules: the route table, keys, and where a browser may come from.

A request head goes in, and either an answer comes out or the admission under which the request
goes on. Nothing is reachable that has no row in the table, and each row names the access it
needs; only what is marked PUBLIC is given without a key. With a read-only key everything that
is not a plain GET is refused before it is looked at. Knows no socket.

Browsers add ``Origin`` to what a page asks for, also to a WebSocket handshake, and do not keep
a foreign page from making one, so that is refused here (cross-site request forgery, cross-site
WebSocket hijacking). Without keys the ``Host`` must also be one of ours: a foreign name that
was made to point at this machine (DNS rebinding) would pass for the same origin. A body must be
announced as JSON, which no page can do without asking the server first (``cross_origin``).
"""

import enum
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from sessions.http import cross_origin, handshake
from sessions.http.exchange import Handler
from sessions.http.message import (
    ANTHROPIC_REQUEST_ID,
    REQUEST_ID,
    HttpRequest,
    HttpResponse,
    basic_password,
    bearer_token,
    http_error,
    refusal,
)
from sessions.tenants import Principal, Tenants
from tools_api import errors
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.dialect import Dialect
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError

log = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

Page = Callable[[Principal], HttpResponse]
_READ_ONLY = (
    "This key is read-only: it shows sessions and responses, and starts, changes and ends nothing. "
    "Take one with the role 'tenant' ('keepwarm keys new' makes it)."
)
_FOR_PAGES = (
    f", for a WebSocket of a web page as the sub-protocol '{handshake.CODED_KEY}' and the key in "
    f"base64url, beside '{handshake.SPOKEN[0]}'"
)
_NOT_DECODED = "Bodies are read as they come; send it without Content-Encoding."
_LONGEST_ROUTE = 5
"""Most parts between slashes that a route has."""
ANTHROPIC_HEADER = "anthropic-version"
"""A header that every client of Anthropic's API sends."""
ANONYMOUS = Principal(tenant="")
"""The principal of what is PUBLIC; nobody's tenant."""


class Access(enum.Enum):
    PUBLIC = "public"
    """Access without a key: says nothing but whether the server lives, and what there is."""
    TENANT = "tenant"
    """Access with a key; shows what belongs to its tenant."""
    OPERATOR = "operator"
    """Access with an operator's key: the answer concerns all tenants."""


@cache
def _pattern(path: str) -> re.Pattern[str]:
    """A regular expression for the paths of a route."""
    parts = re.split(r"\{(id|name)\}", path)
    stands_for = {"id": "([^/]+)", "name": "(.+)"}
    texts = [stands_for[part] if n % 2 else re.escape(part) for n, part in enumerate(parts)]
    return re.compile("".join(texts), re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path and who may ask for it."""

    path: str
    """May hold pairs of braces: ``{id}`` stands for anything without a slash, ``{name}`` also for
    what has some."""
    access: Access
    page: Page | None = None
    """The handler that makes the answer to GET."""
    calls: Mapping[str, Handler] = field(default_factory=dict)
    """Handlers for requests of other kinds, by method."""
    websocket: bool = False
    """Whether GET opens a WebSocket."""
    for_browsers: bool = False
    """The key may also come as the password of HTTP Basic, which browsers ask for."""
    dialect: Dialect = RESPONSES
    """The API in whose words errors are told."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that the route may be asked with."""
        pages = ("GET", "HEAD") if self.page is not None or "GET" in self.calls else ()
        opens = ("GET",) if self.websocket else ()
        others = (method for method in self.calls if method != "GET")
        return (*pages, *opens, *sorted(others))

    def argument(self, path: str) -> str | None:
        """The parts of ``path`` where the route has braces, with slashes between, "" if it has
        none; None: it is another path."""
        found = _pattern(self.path).fullmatch(path)
        return None if found is None else "/".join(found.groups())


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Leave for a request to go on, and what answers it."""

    route: Route
    principal: Principal
    argument: str
    handler: Handler | None = None
    """The handler that answers, once the body is there; with neither this nor a page the WebSocket
    handshake goes on."""
    page: Page | None = None
    """The page that answers at once."""

    def page_made(self) -> HttpResponse | None:
        """The answer that needs no more than leave."""
        try:
            return None if self.page is None else self.page(self.principal)
        except Exception:
            log.exception("page failed")
            return refusal(errors.internal_error())


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """The values of ``Origin`` and ``Host`` that are ours, and whose word for a client's address is
    taken."""

    allowed_origins: frozenset[str]
    """Beside the server itself and loopback, e.g. ``https://agents.example``."""
    check_host: bool
    """Whether ``Host`` is checked: where no key protects the port."""
    forwarded_by: tuple[Network, ...] = ()
    """Networks of balancers whose word for a client's address is taken."""

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of ``origin`` may talk to us under the name ``host``."""
        if origin in self.allowed_origins:
            return True
        parts = _split(origin)
        return parts is not None and (is_loopback(parts[0]) or parts[1] == host.lower())

    def allows_host(self, host: str) -> bool:
        """Whether we may be called ``host`` (with or without a port)."""
        if not self.check_host:
            return True
        parts = _split(f"http://{host}")
        return parts is not None and (
            is_loopback(parts[0])
            or any(allowed.rpartition("//")[2] == parts[1] for allowed in self.allowed_origins)
        )

    def client_of(self, peer: str, told: Sequence[str]) -> str:
        """The client's address where ``peer`` is a balancer: the last one that is told; what stands
        before that anybody may have written."""
        try:
            known = ipaddress.ip_address(peer.partition("%")[0])
            client = ipaddress.ip_address(told[-1].rpartition(",")[2].strip())
        except ValueError:
            return peer
        inner = getattr(known, "ipv4_mapped", None) or known
        return str(client) if any(inner in each for each in self.forwarded_by) else peer


def _drawn_id() -> str:
    return f"req_{secrets.token_hex(12)}"


class FrontDoor:
    """Decides about every request of the port: refused, or let in."""

    def __init__(
        self,
        *,
        routes: Iterable[Route],
        tenants: Tenants,
        origins: OriginPolicy,
        new_id: Callable[[], str] = _drawn_id,
    ) -> None:
        """``new_id`` makes names of requests to which their clients gave none."""
        self.routes = tuple(routes)
        self._new_id = new_id
        self._by_path = {route.path: route for route in self.routes if "{" not in route.path}
        self._patterns = [route for route in self.routes if "{" in route.path]
        self._tenants = tenants
        self._origins = origins

    def answer(self, request: HttpRequest) -> HttpResponse | Admission:
        """The answer, or leave to go on with the request."""
        route, argument = self.find(request.path)
        if route is None:
            error = http_error(HTTPStatus.NOT_FOUND, self._nothing_at(request.path))
            return refusal(error, words_of(request))
        words = words_of(request, route)
        foreign = self._refuse_foreign(request)
        if foreign is not None:
            return refusal(foreign, words)
        if cross_origin.is_preflight(request):
            return cross_origin.preflight(request, route.methods)
        try:
            principal = self._principal(route, request)
        except ApiError as unread:
            return refusal(unread, words)
        if principal is None:
            return _unauthorized(route, words)
        if route.access is Access.OPERATOR and not principal.operator:
            error = http_error(HTTPStatus.FORBIDDEN, "This page needs an operator's key.")
            return refusal(error, words)
        if principal.read_only and not _only_looks(route, request):
            error = http_error(HTTPStatus.FORBIDDEN, _READ_ONLY)
            return refusal(error, words)
        method = "GET" if request.method == "HEAD" else request.method
        handler = route.calls.get(method)
        if handler is None and not _opens_websocket(route, request):
            if route.page is not None and method == "GET":
                return Admission(
                    route=route, principal=principal, argument=argument, page=route.page
                )
            return _wrong_method(route, request, words)
        if request.has_body and not request.is_json:
            error = http_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body has to be JSON.")
            return refusal(error, words)
        if request.has_body and request.is_coded:
            error = http_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, _NOT_DECODED)
            return refusal(error, words, (("Accept-Encoding", "identity"),))
        return Admission(route=route, principal=principal, argument=argument, handler=handler)

    def id_of(self, request: HttpRequest | None) -> str:
        """The request's name in its answer and in the log; None: it could not be read."""
        return (None if request is None else request.id) or self._new_id()

    def naming(self, request: HttpRequest | None, id: str) -> tuple[tuple[str, str], ...]:
        """Header fields that tell a client what ``id_of`` its request is, where it reads them."""
        if request is not None and ANTHROPIC_HEADER in request.headers:
            return (REQUEST_ID, id), (ANTHROPIC_REQUEST_ID, id)
        return ((REQUEST_ID, id),)

    def readable_by_page(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        """Header fields that let the page which made the request read its answer; none where it
        may not, or no page made it."""
        if "Origin" not in request.headers or self._refuse_foreign(request) is not None:
            return ()
        return cross_origin.readable(request)

    def client_of(self, peer: str, request: HttpRequest) -> str:
        """The address of the client behind ``peer``."""
        told = request.headers.get_all("X-Forwarded-For")
        return self._origins.client_of(peer, told) if told else peer

    def find(self, path: str) -> tuple[Route | None, str]:
        """The route of a path and the part of the path that is its argument."""
        for route in self._patterns if path not in self._by_path else ():
            argument = route.argument(path)
            if argument is not None:
                return route, argument
        return self._by_path.get(path), ""

    def _nothing_at(self, path: str) -> str:
        """The error for an unknown path, with what was probably meant, where its end is a path of
        ours."""
        parts = [part for part in path.split("/") if part][-_LONGEST_ROUTE:]
        for start in range(len(parts)):
            rest = "/".join(parts[start:])
            for meant in (f"/v1/{rest}", f"/{rest}"):
                if self.find(meant)[0] is not None:
                    return (
                        f"There is nothing at this path; is {meant} meant? Of most clients the "
                        "base URL ends with /v1, of Anthropic's with the port."
                    )
        return "There is nothing at this path; GET / lists what there is."

    def _refuse_foreign(self, request: HttpRequest) -> ApiError | None:
        host = request.header("Host")
        if host is None:
            return http_error(HTTPStatus.BAD_REQUEST, "The request needs one Host header.")
        if not self._origins.allows_host(host):
            return http_error(
                HTTPStatus.FORBIDDEN,
                "This server has no key and answers to loopback names only; start it with a key "
                "or with --allow-origin to use another name.",
            )
        if "Origin" not in request.headers:
            return None
        origin = request.header("Origin")
        if origin is None or not self._origins.allows_origin(origin, host):
            return http_error(
                HTTPStatus.FORBIDDEN,
                "Pages of this origin may not use the server; see --allow-origin.",
            )
        return None

    def _principal(self, route: Route, request: HttpRequest) -> Principal | None:
        if route.access is Access.PUBLIC:
            return ANONYMOUS
        key = bearer_token(request)
        if key is None:
            key = basic_password(request) if route.for_browsers else request.header("X-Api-Key")
        if key is None and _opens_websocket(route, request):
            key = handshake.offered_key(request)
        return self._tenants.authenticate(key)


def words_of(request: HttpRequest | None, route: Route | None = None) -> Dialect:
    """The API in whose words a request's errors are told: its route's, but of a route that is
    nobody's own that whose header the request has."""
    own = RESPONSES if route is None else route.dialect
    speaks = request is not None and ANTHROPIC_HEADER in request.headers
    return MESSAGES if own is RESPONSES and speaks else own


def _unauthorized(route: Route, words: Dialect) -> HttpResponse:
    scheme = "Basic" if route.for_browsers else "Bearer"
    return refusal(
        http_error(
            HTTPStatus.UNAUTHORIZED,
            "Incorrect or missing API key; send it as 'Authorization: Bearer KEY'"
            f"{_FOR_PAGES if route.websocket else ''}.",
            code="invalid_api_key",
        ),
        words,
        (("WWW-Authenticate", f'{scheme} realm="keepwarm"'),),
    )


def _only_looks(route: Route, request: HttpRequest) -> bool:
    """Whether the request can start, change and end nothing, for whatever it is answered with."""
    return request.method in {"GET", "HEAD"} and not _opens_websocket(route, request)


def _opens_websocket(route: Route, request: HttpRequest) -> bool:
    upgrade = (request.header("Upgrade") or "").lower()
    return route.websocket and request.method == "GET" and upgrade == "websocket"


def _wrong_method(route: Route, request: HttpRequest, words: Dialect) -> HttpResponse:
    if route.websocket and request.method == "GET":
        return refusal(
            http_error(
                HTTPStatus.UPGRADE_REQUIRED,
                "With GET this path speaks WebSocket: one JSON event per text frame.",
            ),
            words,
            handshake.UPGRADE,
        )
    return refusal(
        http_error(
            HTTPStatus.METHOD_NOT_ALLOWED, f"{errors.quoted(request.method)} is not possible here."
        ),
        words,
        (("Allow", ", ".join(route.methods)),),
    )


def _split(origin: str) -> tuple[str, str] | None:
    """(host name, host with port) of an origin, lower case; None if it has none."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return None
    return None if not name else (name, parts.netloc.lower())


@lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Whether the host ``name`` (no port) can only be this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
