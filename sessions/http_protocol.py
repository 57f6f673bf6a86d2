"""A fresh connection up to its answer: reads one request head and acts on it.

What the head may ask for is the front door's decision; here it is either answered, and the
connection ends, or the WebSocket handshake (RFC 6455 section 4.2) is completed and the
transport handed to a ``WebSocketPeer``. A client that is slow with its head, or sends too
much of one, is cut off.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from sessions.front_door import FrontDoor
from sessions.http_message import (
    MAX_HEAD_BYTES,
    HttpError,
    HttpRequest,
    HttpResponse,
    error_response,
    parse_request,
)
from sessions.metrics import Metrics
from sessions.tenants import Principal
from sessions.websocket_peer import OpenSocket, SocketTimes

log = logging.getLogger(__name__)

Upgrade = Callable[[OpenSocket, Principal], asyncio.Protocol]
"""Makes the protocol that owns the socket from then on."""

_END_OF_HEAD = b"\r\n\r\n"


class HttpProtocol(asyncio.Protocol):
    """Lives until its one request is answered or has become a WebSocket."""

    def __init__(
        self,
        *,
        front_door: FrontDoor,
        upgrade: Upgrade,
        refusal: Callable[[bool], HttpResponse | None],
        max_frame_bytes: int,
        times: SocketTimes,
        metrics: Metrics,
        clock: Callable[[], float],
        on_lost: Callable[["HttpProtocol"], None],
    ) -> None:
        """
        Args:
            refusal: an answer to give to everybody just now (overload), or None; asked with
                True on arrival, with False before a WebSocket is opened.
            on_lost: called when the transport is gone or has been handed over.
        """
        self._front_door = front_door
        self._upgrade = upgrade
        self._refusal = refusal
        self._max_frame_bytes = max_frame_bytes
        self._times = times
        self._metrics = metrics
        self._clock = clock
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._answered = False
        self._drop_at = clock() + times.head_s

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass
        refusal = self._refusal(True)
        if refusal is not None:
            self._answer(refusal)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # read and dropped, so that the answer is not lost to a reset
        self._head += data
        end = self._head.find(_END_OF_HEAD)
        size = len(self._head) if end < 0 else end + len(_END_OF_HEAD)
        if size > MAX_HEAD_BYTES:
            self._answer(
                error_response(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"The request head is longer than {MAX_HEAD_BYTES} bytes.",
                )
            )
        elif end >= 0:
            self._take_head(bytes(self._head[:size]), bytes(self._head[size:]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)

    # Time

    def tick(self, now: float) -> None:
        """Cut off a client that took too long. Called about once a second."""
        if now >= self._drop_at:
            self.abort()

    def abort(self) -> None:
        """Drop the socket without a word."""
        assert self._transport is not None
        self._transport.abort()

    # The request

    def _take_head(self, head: bytes, rest: bytes) -> None:
        try:
            request = parse_request(head)
            verdict = self._front_door.answer(request)
        except HttpError as error:
            self._answer(error_response(error.status, error.message))
            return
        except Exception:
            log.exception("page failed")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            self._answer(error_response(status, "The server had an internal error."))
            return
        if isinstance(verdict, HttpResponse):
            log.debug("http %s %s %d", request.method, request.path, verdict.status)
            self._answer(verdict, with_body=request.method != "HEAD")
        elif refusal := self._refusal(False):
            self._answer(refusal)
        else:
            self._open_websocket(request, verdict, rest)

    def _open_websocket(self, request: HttpRequest, principal: Principal, rest: bytes) -> None:
        assert self._transport is not None
        # No extensions: compressing small deltas costs more than it saves.
        protocol = ServerProtocol(state=State.OPEN, max_size=self._max_frame_bytes)
        response = protocol.accept(Request(request.target, request.headers))
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            message = response.body.decode().strip()
            self._answer(error_response(HTTPStatus(response.status_code), message))
            return
        self._metrics.http_answered(response.status_code)
        self._transport.write(response.serialize())
        peer = self._upgrade(OpenSocket(transport=self._transport, protocol=protocol), principal)
        self._transport.set_protocol(peer)
        self._on_lost(self)
        if rest:
            peer.data_received(rest)

    def _answer(self, response: HttpResponse, *, with_body: bool = True) -> None:
        assert self._transport is not None
        self._answered = True
        self._head.clear()
        self._drop_at = self._clock() + self._times.close_s
        self._metrics.http_answered(response.status)
        self._transport.write(response.serialize(with_body=with_body))
        self._transport.write_eof()
