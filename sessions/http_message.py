"""HTTP/1.1 as far as the front door needs it: one request head in, one whole answer out.

Bytes to ``HttpRequest`` and ``HttpResponse`` to bytes, without a socket and without knowing
any path. A request carries no body (RFC 9112 section 6): what says that it has one is
refused, so that the bytes behind the head can only be WebSocket frames. Every answer ends
the connection.
"""

import base64
import binascii
import email.utils
import re
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from websockets.datastructures import Headers

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 100

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"/[!-~]*")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class HttpError(Exception):
    """The request head cannot be read. Answer with ``status`` and hang up."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request head."""

    method: str
    target: str
    """Path and query as sent."""
    headers: Headers

    @property
    def path(self) -> str:
        """The target without its query; nothing is decoded, so a route has one spelling."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The header's value, None if absent or sent more than once."""
        values = self.headers.get_all(name)
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole answer."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def serialize(self, *, with_body: bool = True) -> bytes:
        """The bytes to send. ``with_body`` False is the answer to HEAD."""
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Date: {email.utils.formatdate(usegmt=True)}",
            "Connection: close",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return head + self.body if with_body else head


def parse_request(head: bytes) -> HttpRequest:
    """Read a request head, its final empty line included.

    Raises:
        HttpError: not HTTP/1.1, too many headers, a malformed line, or a body is announced.
    """
    request_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]):
        raise HttpError(HTTPStatus.BAD_REQUEST, "The request line is malformed.")
    method, target, version = parts
    if version != "HTTP/1.1":
        raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1 is spoken here.")
    if not _TARGET.fullmatch(target):
        raise HttpError(HTTPStatus.BAD_REQUEST, "The request target is not a path.")
    if len(lines) > MAX_HEADERS:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"More than {MAX_HEADERS} headers."
        )
    headers = Headers()
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HttpError(HTTPStatus.BAD_REQUEST, "A header line is malformed.")
        headers[name] = value.strip(" \t")
    if method in {"GET", "HEAD"} and (
        "Transfer-Encoding" in headers or headers.get_all("Content-Length") not in ([], ["0"])
    ):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"A {method} request has no body here.")
    return HttpRequest(method=method, target=target, headers=headers)


def error_response(
    status: HTTPStatus,
    message: str,
    *,
    code: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> HttpResponse:
    """A refusal as JSON, in the form in which HTTP clients of the protocol read errors."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return HttpResponse(
        status=status,
        content_type="application/json",
        body=orjson.dumps({"error": error}),
        headers=headers,
    )


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
