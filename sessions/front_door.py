"""Who may ask for what: the route table, keys, and where a browser may come from.

A request head goes in, and either an answer comes out or the principal whose WebSocket is to
be opened. Nothing is reachable that has no row in the table, and each row names the access
it needs; only what is marked PUBLIC is given without a key. Knows no socket.

Browsers add ``Origin`` to a WebSocket handshake and do not keep a foreign page from making
one, so that is refused here (cross-site WebSocket hijacking). Without keys the ``Host`` must
also be one of ours: a foreign name that was made to point at this machine (DNS rebinding)
would pass for the same origin.
"""

import enum
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from sessions.http_message import (
    HttpRequest,
    HttpResponse,
    basic_password,
    bearer_token,
    error_response,
)
from sessions.tenants import Principal, Tenants

Page = Callable[[Principal], HttpResponse]
ANONYMOUS = Principal(tenant="", operator=False)
"""Handed to the pages that are PUBLIC; nobody's tenant."""


class Access(enum.Enum):
    PUBLIC = "public"
    """Says nothing but whether the server lives."""
    TENANT = "tenant"
    """Needs a key; shows what belongs to its tenant."""
    OPERATOR = "operator"
    """Needs an operator's key: the answer concerns all tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path and who may ask for it."""

    path: str
    access: Access
    page: Page | None
    """Makes the answer to GET; None where a WebSocket is opened instead."""

    for_browsers: bool = False
    """The key may also come as the password of HTTP Basic, which browsers ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """Which values of ``Origin`` and ``Host`` are ours."""

    allowed_origins: frozenset[str]
    """Beside the server itself and loopback, e.g. ``https://agents.example``."""
    check_host: bool
    """True where no key protects the port."""

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


class FrontDoor:
    """Decides about every request of the port."""

    def __init__(self, *, routes: Iterable[Route], tenants: Tenants, origins: OriginPolicy) -> None:
        self.routes = tuple(routes)
        self._by_path = {route.path: route for route in self.routes}
        self._tenants = tenants
        self._origins = origins

    def answer(self, request: HttpRequest) -> HttpResponse | Principal:
        """The answer, or the principal for whom a WebSocket handshake may go on."""
        route = self._by_path.get(request.path)
        if route is None:
            return error_response(HTTPStatus.NOT_FOUND, "There is nothing at this path.")
        foreign = self._refuse_foreign(request)
        if foreign is not None:
            return foreign
        principal = self._principal(route, request)
        if principal is None:
            return _unauthorized(route)
        if route.access is Access.OPERATOR and not principal.operator:
            return error_response(HTTPStatus.FORBIDDEN, "This page needs an operator's key.")
        if route.page is None:
            return _websocket_refusal(request) or principal
        if request.method not in {"GET", "HEAD"}:
            return error_response(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.method} is not possible here.",
                headers=(("Allow", "GET, HEAD"),),
            )
        return route.page(principal)

    def _refuse_foreign(self, request: HttpRequest) -> HttpResponse | None:
        host = request.header("Host")
        if host is None:
            return error_response(HTTPStatus.BAD_REQUEST, "The request needs one Host header.")
        if not self._origins.allows_host(host):
            return error_response(
                HTTPStatus.FORBIDDEN,
                "This server has no key and answers to loopback names only; start it with a key "
                "or with --allow-origin to use another name.",
            )
        if "Origin" not in request.headers:
            return None
        origin = request.header("Origin")
        if origin is None or not self._origins.allows_origin(origin, host):
            return error_response(
                HTTPStatus.FORBIDDEN,
                "Pages of this origin may not use the server; see --allow-origin.",
            )
        return None

    def _principal(self, route: Route, request: HttpRequest) -> Principal | None:
        if route.access is Access.PUBLIC:
            return ANONYMOUS
        key = bearer_token(request)
        if key is None and route.for_browsers:
            key = basic_password(request)
        return self._tenants.authenticate(key)


def _unauthorized(route: Route) -> HttpResponse:
    scheme = "Basic" if route.for_browsers else "Bearer"
    return error_response(
        HTTPStatus.UNAUTHORIZED,
        "Incorrect or missing API key; send it as 'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        headers=(("WWW-Authenticate", f'{scheme} realm="keepwarm"'),),
    )


def _websocket_refusal(request: HttpRequest) -> HttpResponse | None:
    if request.method != "GET":
        return error_response(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{request.method} is not possible here; open a WebSocket with GET.",
            headers=(("Allow", "GET"),),
        )
    if (request.header("Upgrade") or "").lower() != "websocket":
        return error_response(
            HTTPStatus.UPGRADE_REQUIRED,
            "This path speaks WebSocket: one JSON event per text frame.",
            headers=(("Upgrade", "websocket"), ("Connection", "Upgrade")),
        )
    return None


def _split(origin: str) -> tuple[str, str] | None:
    """(host name, host with port) of an origin, lower case; None if it has none."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return None
    return None if not name else (name, parts.netloc.lower())


def is_loopback(name: str) -> bool:
    """Whether the host ``name`` (no port) can only be this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
