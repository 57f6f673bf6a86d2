"""The handshake that opens a WebSocket, and the key that may stand in it.

A page in a browser can give its WebSocket no header but the sub-protocols that it offers, so the
key may be one of them, as in OpenAI's Realtime API (RFC 6455 section 11.3.4 has the header).

Always true: no answer and no error repeats a part of an offer but a name that we speak, and what
reads the rest of the handshake never gets the offer.
"""

import base64
import binascii
import re
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from sessions.http.message import HttpRequest, http_error
from tools_api.errors import ApiError

OFFER = "Sec-WebSocket-Protocol"
SPOKEN = ("keepwarm", "realtime")
"""Names of what we speak, the Responses API; the second is what pages offer that were written for
OpenAI's WebSockets."""
PLAIN_KEY = "openai-insecure-api-key."
"""Before a key as it is; one that has other characters than a token cannot come so."""
CODED_KEY = "keepwarm-key."
"""Before a key in base64url (RFC 4648 section 5), without the padding, which no token may have."""
UPGRADE = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
"""Header fields of an answer that asks for a WebSocket (RFC 9110 section 15.5.22)."""
_VERSION = "13"
_VERSIONS = (("Sec-WebSocket-Version", _VERSION),)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class NotOpened(Exception):
    """The handshake is refused. Answer with ``error`` and the header fields of ``headers``."""

    def __init__(self, error: ApiError, headers: tuple[tuple[str, str], ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.headers = headers


def offered_key(request: HttpRequest) -> str | None:
    """The key among the sub-protocols that the client offers, None without one.

    Raises:
        ApiError: they are no tokens, there are several keys, or one is no base64url.
    """
    keys = {key for each in _offered(request) if (key := _key_in(each)) is not None}
    if len(keys) > 1:
        raise _refused("more than one key is offered")
    return next(iter(keys), None)


def accepted(request: HttpRequest, *, max_bytes: int) -> tuple[ServerProtocol, Response]:
    """The protocol of the socket, in state OPEN, and the answer that opens it.

    Args:
        max_bytes: longest message of the client's.

    Raises:
        NotOpened: it is malformed, of another version of the protocol, or a key is all in the offer
            that we know.
    """
    try:
        spoken = _chosen(request)
        _check_version(request)
        protocol, response = _checked(request, max_bytes)
    except ApiError as error:
        asks = error.status == HTTPStatus.UPGRADE_REQUIRED
        raise NotOpened(error, (*_VERSIONS, *UPGRADE) if asks else _VERSIONS) from None
    if spoken is not None:
        response.headers[OFFER] = spoken
    return protocol, response


def _check_version(request: HttpRequest) -> None:
    """RFC 6455 section 4.4: another version is refused with the one that is spoken here."""
    versions = request.headers.get_all("Sec-WebSocket-Version")
    if versions and versions != [_VERSION]:
        why = f"Of the WebSocket protocol version {_VERSION} is spoken here."
        raise http_error(HTTPStatus.UPGRADE_REQUIRED, why)


def _checked(request: HttpRequest, max_bytes: int) -> tuple[ServerProtocol, Response]:
    """The rest of the handshake, without the offer. Raises ApiError."""
    # No extensions: compressing small deltas costs more than it saves.
    protocol = ServerProtocol(state=State.OPEN, max_size=max_bytes)
    fields = request.headers.raw_items()
    headers = Headers([field for field in fields if field[0].lower() != OFFER.lower()])
    response = protocol.accept(Request(request.target, headers))
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        message = response.body.decode().partition("\n")[0]
        raise http_error(HTTPStatus(response.status_code), message)
    return protocol, response


def _chosen(request: HttpRequest) -> str | None:
    """The sub-protocol that the answer names: the first one offered that we speak."""
    offered = _offered(request)
    found = next((each for each in offered if each in SPOKEN), None)
    if found is None and any(each.startswith((PLAIN_KEY, CODED_KEY)) for each in offered):
        # A browser would take an answer that names none for a failure, and say nothing of it.
        raise _refused(f"{SPOKEN[0]!r} has to be offered beside the key; the answer names it")
    return found


def _offered(request: HttpRequest) -> list[str]:
    parts = ",".join(request.headers.get_all(OFFER)).split(",")
    offered = [name for each in parts if (name := each.strip(" \t"))]
    if not all(_TOKEN.fullmatch(each) for each in offered):
        raise _refused("a name in it is no token")
    return offered


def _key_in(offered: str) -> str | None:
    if offered.startswith(PLAIN_KEY):
        return offered.removeprefix(PLAIN_KEY)
    if not offered.startswith(CODED_KEY):
        return None
    coded = offered.removeprefix(CODED_KEY)
    try:
        return base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _refused(f"what stands behind {CODED_KEY!r} is no base64url") from None


def _refused(why: str) -> ApiError:
    return http_error(HTTPStatus.BAD_REQUEST, f"{OFFER}: {why}.")
