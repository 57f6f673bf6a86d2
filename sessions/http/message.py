"""HTTP messages, apart from how they travel: a request that has been read, a whole answer.

No socket, no path, no key. A request head comes from h11, which has checked its form; what is
checked here is what we ask for beyond that: HTTP/1.1, a path or URL as target, few headers, and
that only POST has a body.
"""

import base64
import binascii
import email.utils
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import h11
import orjson
from websockets.datastructures import Headers

from tools_api.dialects.dialect import Dialect
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError
from tools_api.exact_json import dumps

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_PARAMETERS = 64
"""Most parameters of a query: each costs some microseconds."""

RETRY_AFTER_S = 1
"""The wait that a client is told which is turned away for now, where it is not known better."""
REQUEST_ID = "X-Request-Id"
"""Names a request in its answer and in the log: the client's own word where it is fit for that."""
ANTHROPIC_REQUEST_ID = "Request-Id"
"""The same in an answer, as clients of Anthropic's API read it."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
"""The characters that a header may hold; h11 lets more pass."""
_URL = re.compile(r"https?://(?P<host>[^/?#@]+)(?P<path>[/?].*)?", re.IGNORECASE)
_HOST = re.compile(
    r"(\[[0-9A-Fa-f:.]+(%[\w.~-]+)?\]|([\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?", re.ASCII
)
"""The form of a header ``Host`` (RFC 9110 section 7.2): a name or address, and perhaps a port."""
_NOT_KEPT = ("Cache-Control", "no-store")
_FOR_NOW = frozenset({429, 503})


class HttpError(Exception):
    """The request cannot be read. Answer with ``status`` and hang up."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The head of a request: method, target and headers."""

    method: str
    target: str
    """Path and query as sent."""
    headers: Headers

    @property
    def path(self) -> str:
        """The target without its query; nothing is decoded, so a route has one spelling."""
        return self.target.partition("?")[0]

    def query(self, name: str) -> str | None:
        """The last value of a query parameter, None without one."""
        values = self._parameters.get(name)
        return values[-1] if values else None

    def queries(self, name: str) -> list[str]:
        """All values of a query parameter."""
        return list(self._parameters.get(name, ()))

    def parameters(self) -> list[str]:
        """The names of all query parameters."""
        return list(self._parameters)

    @property
    def _parameters(self) -> Mapping[str, Sequence[str]]:
        return _parsed(self.target.partition("?")[2])

    def header(self, name: str) -> str | None:
        """The header's value, None if absent or sent more than once."""
        values = self.headers.get_all(name)
        return values[0] if len(values) == 1 else None

    def one_value(self, name: str) -> str | None:
        """The header's value as its client wrote it, in UTF-8 or else in Latin-1; None if absent.

        Raises:
            ApiError: it was sent more than once, with values that differ.
        """
        values = {_as_written(value) for value in self.headers.get_all(name)}
        if len(values) > 1:
            why = f"The header {name} has more than one value."
            raise http_error(HTTPStatus.BAD_REQUEST, why)
        return next(iter(values), None)

    @property
    def id(self) -> str | None:
        """The name that the client gave the request, None without one that is fit for a log."""
        named = self.header(REQUEST_ID) or ""
        return named if _REQUEST_ID.fullmatch(named) else None

    @property
    def has_body(self) -> bool:
        """A body is announced, and not an empty one."""
        return "Transfer-Encoding" in self.headers or self.body_bytes > 0

    @property
    def body_bytes(self) -> int:
        """Announced length of the body; 0 if there is none, or it comes in chunks."""
        return int(self.header("Content-Length") or 0)

    @property
    def is_coded(self) -> bool:
        """The body is announced as compressed, or changed in another way (RFC 9110 section 8.4)."""
        codings = ",".join(self.headers.get_all("Content-Encoding")).split(",")
        return any(each.strip().lower() not in ("", "identity") for each in codings)

    @property
    def is_json(self) -> bool:
        """The body is announced as JSON; parameters such as the charset do not matter."""
        kind = (self.header("Content-Type") or "").partition(";")[0]
        return kind.strip().lower() == "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole answer: status, headers and body."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def fields(self) -> list[tuple[str, str]]:
        """All header fields, those included that say how long the body is, if there may be one."""
        if self.status == HTTPStatus.NO_CONTENT:
            return [_date(), _NOT_KEPT, *self.headers]
        length = ("Content-Length", str(len(self.body)))
        return [*common_fields(self.content_type), length, *self.headers]


def common_fields(content_type: str) -> list[tuple[str, str]]:
    """Header fields that every answer has."""
    return [
        _date(),
        ("Content-Type", content_type),
        _NOT_KEPT,
        ("X-Content-Type-Options", "nosniff"),
    ]


def _date() -> tuple[str, str]:
    return "Date", email.utils.formatdate(usegmt=True)


def read_request(head: h11.Request) -> HttpRequest:
    """Read h11's request, if we can serve the like.

    Raises:
        HttpError: not HTTP/1.1, no target of ours, too many headers or parameters, a host that is
            none, a body without a POST, or one whose end is told in two ways, which a proxy before
            us may read otherwise.
    """
    if head.http_version != b"1.1":
        raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1 is spoken here.")
    host, target = _host_and_path(head.target.decode("ascii"))
    if target.partition("?")[2].count("&") >= MAX_PARAMETERS:
        why = f"The query has more than {MAX_PARAMETERS} parameters."
        raise HttpError(HTTPStatus.BAD_REQUEST, why)
    fields = head.headers.raw_items()
    if len(fields) > MAX_HEADERS:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"More than {MAX_HEADERS} headers."
        )
    headers = Headers()
    for name, value in fields:
        text = value.decode("latin-1")
        if not _VALUE.fullmatch(text):
            raise HttpError(HTTPStatus.BAD_REQUEST, "A header has a control character.")
        headers[name.decode("latin-1")] = text
    if host is not None:
        del headers["Host"]
        headers["Host"] = host
    if not _HOST.fullmatch(headers.get("Host", "")):
        raise HttpError(HTTPStatus.BAD_REQUEST, "The Host is not a name or address with a port.")
    method = head.method.decode("ascii")
    request = HttpRequest(method=method, target=target, headers=headers)
    if "Transfer-Encoding" in headers and "Content-Length" in headers:
        raise HttpError(HTTPStatus.BAD_REQUEST, "The body has two lengths.")
    if request.has_body and method in {"GET", "HEAD", "DELETE"}:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"A {method} request has no body here.")
    return request


@lru_cache(maxsize=16)
def _parsed(query: str) -> Mapping[str, Sequence[str]]:
    """The values of a query's parameters, which a handler asks for one after the other."""
    return parse_qs(query, keep_blank_values=True)


def _as_written(value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _host_and_path(target: str) -> tuple[str | None, str]:
    """The path of a request target with its query, and before it the host that takes the place of
    the header's, where the target is a whole URL (RFC 9112 section 3.2.2).

    Raises:
        HttpError: it is neither a path nor a URL.
    """
    if target.startswith("/"):
        return None, target
    found = _URL.fullmatch(target)
    if found is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, "The request target is neither a path nor a URL.")
    path = found["path"] or ""
    return found["host"], path if path.startswith("/") else f"/{path}"


def json_response(body: dict[str, Any] | bytes, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    """An answer in JSON; bytes are JSON already."""
    text = body if isinstance(body, bytes) else dumps(body)
    return HttpResponse(status=status, content_type="application/json", body=text)


def refusal(
    error: ApiError, dialect: Dialect = RESPONSES, headers: tuple[tuple[str, str], ...] = ()
) -> HttpResponse:
    """An error as the clients of ``dialect`` read it."""
    if error.status in _FOR_NOW or error.retry_after_s is not None:
        wait_s = math.ceil(error.retry_after_s or RETRY_AFTER_S)
        headers = (*headers, ("Retry-After", str(wait_s)))
    return HttpResponse(
        status=dialect.status(error),
        content_type="application/json",
        body=orjson.dumps(dialect.error(error)),
        headers=headers,
    )


def http_error(status: HTTPStatus, message: str, *, code: str | None = None) -> ApiError:
    """A refusal by the transport itself, whatever the API."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return ApiError(message, code=code, status=status.value, type=kind)


def bearer_token(request: HttpRequest) -> str | None:
    """The token of ``Authorization: Bearer ...`` (RFC 6750 section 2.1), None without one."""
    scheme, _, token = (request.header("Authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def basic_password(request: HttpRequest) -> str | None:
    """The password of ``Authorization: Basic ...`` (RFC 7617), None without one."""
    scheme, _, encoded = (request.header("Authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        pair = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return pair.partition(":")[2]
