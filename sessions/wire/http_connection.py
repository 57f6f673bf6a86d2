"""One client's HTTP connection: bytes of a transport on one side, handlers on the other.

Requests are read and answered one after the other, however many have come, until one opens a
WebSocket, whose peer takes over the transport, or either side ends it. What a head may ask for
is the front door's decision. A client is given so long for a head, a body, the next request and
its part of the end, and a pipeline of small things is handled in slices, so that others have
their turn.

Always true: a request that could be read gets exactly one answer, unless its client is gone; its
handler is cancelled then.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import cast

import h11

from sessions.http import handshake
from sessions.http.exchange import Call, Handler, started
from sessions.http.framing import HttpFraming
from sessions.http.front_door import ANONYMOUS, Admission, FrontDoor, words_of
from sessions.http.message import (
    REQUEST_ID,
    HttpError,
    HttpRequest,
    HttpResponse,
    http_error,
    read_request,
    refusal,
)
from sessions.pages.metrics import Metrics
from sessions.tenants import Principal
from sessions.turns.vendor_events import HEADER as EVENTS_HEADER
from sessions.turns.vendor_events import asks_for_events
from sessions.wire.acceptor import SPEAK_S
from sessions.wire.arriving import TURN_S, Arriving
from sessions.wire.http_body import IncomingBody
from sessions.wire.socket_state import has_come
from sessions.wire.websocket_peer import OpenSocket, SocketTimes
from sessions.wire.write_stall import WriteStall
from tools_api import errors
from tools_api.errors import ApiError

log = logging.getLogger(__name__)

Upgrade = Callable[["HttpConnection", OpenSocket, Principal], asyncio.Protocol]
"""Makes the protocol that owns the socket from then on."""
Closed = Callable[["HttpConnection", Principal | None], ApiError | None]
"""Why this connection is not served just now (overload); asked with None on arrival, then for
whoever asks something."""

AHEAD_BYTES = 64 * 1024
"""Bytes that a client may send ahead of the answer it waits for; then nothing more is read."""
BODY_BYTES_PER_S = 64 * 1024
"""The slowest that a body may come, in bytes a second."""


class HttpConnection(asyncio.Protocol):
    """Lives until the transport is gone or has become a WebSocket's. It is the ``Exchange``
    of the request that is being answered."""

    def __init__(
        self,
        *,
        front_door: FrontDoor,
        upgrade: Upgrade,
        closed_because: Closed,
        arriving: Arriving,
        times: SocketTimes,
        metrics: Metrics,
        clock: Callable[[], float],
        on_lost: Callable[["HttpConnection"], None],
    ) -> None:
        """``on_lost`` is called when the transport is gone or has been handed over."""
        self._front_door, self._upgrade = front_door, upgrade
        self._closed_because = closed_because
        self._arriving = arriving
        self._times = times
        self._metrics, self._clock, self._on_lost = metrics, clock, on_lost
        self._transport: asyncio.Transport | None = None
        self.address = ""
        """Address of the client; behind a balancer as that told it with the last request."""
        self._peer, self._request_id = "", ""
        self._group = ""
        """Whose time its bytes are parsed in: its last request's tenant's, before that its
        address's."""
        self._framing = HttpFraming()
        self._request: HttpRequest | None = None
        self._admission: Admission | None = None
        """The admission of the request whose body is being read, or that is being answered."""
        self._for_page: tuple[tuple[str, str], ...] = ()
        """Header fields that let the page which asks read the answer."""
        self._body = IncomingBody(arriving)
        self._head = b""
        """The head of an answer that has begun, until its first piece is there."""
        self._busy = False
        """A handler has been called and has not answered yet."""
        self._task: asyncio.Task[None] | None = None
        self._look: Callable[[float], None] | None = None
        """The handler's look about once a second."""
        self._last = False
        """Whether no request follows the one that is being answered."""
        self._ended = False
        """Bytes that still come are dropped."""
        self._eof, self._resuming = False, False
        self._stall = WriteStall()
        self._greeted_at = clock()
        self._drop_at = self._greeted_at + times.head_s

    @property
    def idle_since(self) -> float | None:
        """Since when it waits for a request behind an answered one; None if it does not."""
        if self._request is None or self._busy or self._ended or self._last:
            return None
        return self._drop_at - self._times.idle_s if self._framing.between_requests else None

    @property
    def silent(self) -> bool:
        """Whether its client had time to speak, and nothing that it has sent waits to be looked at,
        here or in the kernel."""
        if self._transport is None or self._transport.is_closing() or self._resuming:
            return False
        if self._clock() < self._greeted_at + SPEAK_S:
            return False
        return not has_come(self._transport)

    @property
    def principal(self) -> Principal | None:
        """Whose request is being read or answered; None between requests."""
        return None if self._admission is None else self._admission.principal

    def revoke(self) -> None:
        """The key of the request that is being answered is good no more."""
        self.cut()

    # asyncio.Protocol

    @property
    def has_begun(self) -> bool:
        """A part of a request has been read."""
        return not self._framing.between_requests

    @property
    def is_stalled(self) -> bool:
        """The client takes nothing of what is sent."""
        return self._stall.stalled

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass
        peer = transport.get_extra_info("peername")
        self.address = self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._group = f"from {self.address}"
        error = self._closed_because(self, None)
        if error is not None:
            self._last = True
            self.answer(refusal(error))

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return  # read and dropped, so that the answer is not lost to a reset
        waited = self._framing.between_requests and not self._busy
        self._framing.receive(data)
        if waited and not self._framing.between_requests:
            self._drop_at = self._clock() + self._times.head_s
        if not self._resuming:
            self._later()
            if self._transport is not None:
                self._mind_reading()  # before its turn comes

    def eof_received(self) -> None:
        """The client is gone: who only ended its own half gets what can be had at once.
        Returning None lets the transport close behind it."""
        self._eof = True
        self._framing.receive_eof()
        if self._busy:
            self._forget_client()
        elif not self._ended:
            self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arriving.unsent.forget(self)
        self._forget_client()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._stall.begin(self._clock(), self.unsent_bytes)

    def resume_writing(self) -> None:
        self._arriving.unsent.forget(self)
        self._stall.end()
        self._later()

    # Time

    def tick(self, now: float) -> None:
        """Cut off a client that took too long. Called about once a second."""
        if self._stall.stalled and (
            self._stall.seconds(now, self.unsent_bytes) >= self._times.unread_s
        ):
            log.warning("client does not read, cutting it off")
            self.cut()
        elif self._look is not None:
            self._look(now)
        elif not self._busy and now >= self._drop_at:
            self._end_of_patience()

    def _end_of_patience(self) -> None:
        if self._admission is not None and not self._ended:
            error = http_error(HTTPStatus.REQUEST_TIMEOUT, "The body took too long.")
            self._refuse(error, last=True)
        elif self._ended or not self._framing.between_requests:
            self.abort()
        elif not self.unsent_bytes:
            self._socket.close()
        elif not self._stall.stalled:
            self.abort()  # what is unsent is little; more of it is looked at by itself

    def leave(self) -> None:
        """End the connection where it is idle, else behind the next answer."""
        idle = self.idle_since is not None
        self._last = True
        if idle:
            self._socket.close()

    def abort(self) -> None:
        """Drop the socket without a word."""
        self._socket.abort()

    @property
    def _socket(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    # Reading

    def _work(self) -> None:
        """Handle what has come, as far as this turn of the event loop allows."""
        self._resuming = False
        until = self._clock() + TURN_S
        while self._may_read() and self._step():
            if self._clock() >= until:
                self._later()
                break
        if self._transport is not None:
            self._mind_reading()

    def _may_read(self) -> bool:
        waits = self._busy or self._resuming or self._stall.stalled
        return not waits and not self._ended and not self._socket.is_closing()

    def _later(self) -> None:
        if not self._resuming and not self._ended:
            self._resuming = True
            self._arriving.turns.run(self._group, self._work)

    def _mind_reading(self) -> None:
        """Read nothing while much waits to be handled. While an answer is pending a little is read,
        to see the client go."""
        if self._socket.is_closing():
            return
        reads = self._ended or self._framing.unread_bytes <= AHEAD_BYTES
        if reads and not self._socket.is_reading():
            self._socket.resume_reading()
        elif not reads and self._socket.is_reading():
            self._socket.pause_reading()

    def _step(self) -> bool:
        """Take the next part of a request; False: there is none yet."""
        try:
            event = self._framing.next_event()
            match event:
                case None:
                    return False
                case h11.Request():
                    self._take_head(read_request(event))
                case h11.Data():
                    self._take_body(event.data)
                case h11.EndOfMessage():
                    self._take_end()
                case _:
                    self._end()
        except HttpError as error:
            self._refuse(http_error(error.status, error.message), last=True)
        return True

    def _take_head(self, request: HttpRequest) -> None:
        self._request = request
        self._request_id = self._front_door.id_of(request)
        self._body.begin()
        self._drop_at = self._clock() + self._times.body_s
        self._for_page = self._front_door.readable_by_page(request)
        self.address = self._front_door.client_of(self._peer, request)
        verdict = self._front_door.answer(request)
        if isinstance(verdict, Admission):
            if verdict.principal is not ANONYMOUS:
                self._group = verdict.principal.tenant  # what comes behind waits for its turns
            verdict = verdict.page_made() or verdict
        tenant = ANONYMOUS if isinstance(verdict, HttpResponse) else verdict.principal
        full = self._closed_because(self, tenant)
        self._last = self._last or full is not None
        if isinstance(verdict, HttpResponse):
            # A client that was about to ask whether to send its body may send it or not.
            self._last = self._last or self._framing.client_waits
            self.answer(verdict)
            return
        self._admission = verdict
        if full is not None:
            self._refuse(full)
            return
        try:
            self._body.check(request.body_bytes)
        except ApiError as error:
            self._refuse(error, last=True)
            return
        if self._framing.client_waits:
            self._socket.write(self._framing.proceed())

    def _take_body(self, data: bytes) -> None:
        self._drop_at += len(data) / BODY_BYTES_PER_S
        if self._admission is None:
            if not self._body.drop(data):
                self._end()
            return
        try:
            self._body.add(data, self._admission.principal.tenant, self)
        except ApiError as error:
            self._refuse(error, last=True)

    def _take_end(self) -> None:
        admission = self._admission
        if admission is None:
            self._next_request()
        elif admission.handler is not None:
            self._call(admission)
        else:
            self._open_websocket(admission.principal)

    # Answering

    def _call(self, admission: Admission) -> None:
        assert self._request is not None
        assert admission.handler is not None
        call = Call(
            principal=admission.principal,
            request=self._request,
            argument=admission.argument,
            body=self._body.whole(),
            exchange=self,
            request_id=self._request_id,
        )
        self._busy = True
        task = started(self._handle(admission.handler, call))
        if self._busy:
            self._task = task
            if self._eof:
                self._forget_client()

    async def _handle(self, handler: Handler, call: Call) -> None:
        try:
            response = await handler(call)
        except ApiError as error:
            self._refuse(error)
        except Exception:
            log.exception("request failed x_request_id=%s", call.request_id)
            self._refuse(errors.internal_error())
        else:
            if response is not None:
                self.answer(response)

    def _refuse(
        self, error: ApiError, *, last: bool = False, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Answer with an error in the words of the request's API, if an answer is possible."""
        self._last = self._last or last
        route = None if self._admission is None else self._admission.route
        dialect = words_of(self._request, route)
        if self._framing.may_answer:
            self.answer(refusal(error, dialect, headers))
        else:
            self._end()

    @property
    def unsent_bytes(self) -> int:
        """The written bytes that the client has not taken yet."""
        return self._socket.get_write_buffer_size()

    def body_read(self) -> None:
        """The hold of the request's body is free."""
        self._body.release()

    def look_at_clock(self, look: Callable[[float], None]) -> None:
        """Have ``look`` called with the time about once a second, until the answer is there."""
        self._look = look

    def answer(self, response: HttpResponse) -> None:
        """Send a whole answer."""
        if self._socket.is_closing():
            return
        if not self._request_id:  # what came could not be read
            self._request_id = self._front_door.id_of(None)
        if self._request is not None:
            log.debug(
                "http %s %s %d x_request_id=%s",
                *(self._request.method, self._request.path, response.status, self._request_id),
            )
        self._metrics.http_answered(response.status)
        named = self._front_door.naming(self._request, self._request_id)
        if response.status != HTTPStatus.NO_CONTENT:  # a preflight has them
            named += self._for_page
        response = replace(response, headers=(*response.headers, *named))
        self._send(self._framing.answer(response, last=self._last))
        self._answered()

    def start_stream(self, content_type: str) -> None:
        """The head of an answer that comes in pieces."""
        self._metrics.http_answered(HTTPStatus.OK)
        self._head = self._framing.stream_head(
            content_type,
            last=self._last,
            headers=(*self._front_door.naming(self._request, self._request_id), *self._for_page),
        )

    def write(self, piece: bytes) -> None:
        """Send more of an answer, in one write."""
        if not self._socket.is_closing():
            head, self._head = self._head, b""
            self._send(head + self._framing.piece(piece))

    def finish(self, piece: bytes = b"") -> None:
        """The last of an answer that came in pieces."""
        if self._socket.is_closing():
            return
        head, self._head = self._head, b""
        if piece:
            head += self._framing.piece(piece)
        self._send(head + self._framing.end())
        self._answered()

    def _send(self, data: bytes) -> None:
        self._socket.write(data)
        self._arriving.unsent.note(self._group, self)

    def cut(self) -> None:
        """Drop the client; the exchange is over."""
        self._forget_client()
        self.abort()

    def _answered(self) -> None:
        self._busy, self._task, self._look, self._admission = False, None, None, None
        self._body.forget()
        if self._framing.is_over:
            self._end()
        else:
            self._next_request()

    def _next_request(self) -> None:
        """Go on with the next request, if the last one is both read and answered."""
        if not self._framing.next_request():
            return
        self._request_id = ""
        waits = self._framing.between_requests
        self._drop_at = self._clock() + (self._times.idle_s if waits else self._times.head_s)
        if not waits:
            self._later()

    def _forget_client(self) -> None:
        """Give up whatever is pending: the client is gone."""
        task, self._task, self._look, self._busy = self._task, None, None, False
        self._ended = True
        self._body.forget()
        if task is not None:
            task.cancel()

    def _end(self) -> None:
        """Answer nothing more; the client is given time to see what was."""
        if self._ended:
            return
        self._ended = True
        self._drop_at = self._clock() + self._times.close_s
        self._mind_reading()
        self._socket.write_eof()

    # The way to a WebSocket

    def _open_websocket(self, principal: Principal) -> None:
        request = self._request
        assert request is not None
        try:
            protocol, response = handshake.accepted(request, max_bytes=self._body.max_bytes)
        except handshake.NotOpened as refused:
            self._refuse(refused.error, headers=refused.headers)
            return
        self._metrics.http_answered(response.status_code)
        response.headers[REQUEST_ID] = self._request_id
        head, rest = self._framing.switch(response)
        self._socket.write(head)
        wants = asks_for_events(request.target, request.headers.get_all(EVENTS_HEADER))
        socket = OpenSocket(
            transport=self._socket,
            protocol=protocol,
            wants_events=wants,
            request_id=self._request_id,
        )
        peer = self._upgrade(self, socket, principal)
        self._ended = True
        self._socket.set_protocol(peer)
        self._arriving.unsent.forget(self)
        self._transport = None
        self._on_lost(self)
        if rest:
            peer.data_received(rest)
