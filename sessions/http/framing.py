"""One connection's HTTP/1.1 without the socket: h11, with an exact bound on request heads.

Bytes go in, h11's events come out; answers go in, bytes come out. What has come but not been
asked for waits here, so that a request is not read before the one before it is answered.

Always true: a head longer than ``MAX_HEAD_BYTES`` is refused with 431, one of that length
read, however it was cut into pieces; before a head one empty line at most is passed over.
"""

from collections.abc import Iterable
from http import HTTPStatus

import h11
from websockets.http11 import Response as WebSocketResponse

from sessions.http.message import MAX_HEAD_BYTES, HttpError, HttpResponse, common_fields

Event = h11.Request | h11.Data | h11.EndOfMessage | h11.ConnectionClosed

_EMPTY_LINE = b"\r\n"
_STANDARD = frozenset(HTTPStatus)
_REASONS = {
    431: f"The request head is longer than {MAX_HEAD_BYTES} bytes.",
    501: "Of the transfer codings only chunked is spoken here.",
}


class HttpFraming:
    """The framing of HTTP/1.1: request after request, each answered before the next is read."""

    def __init__(self) -> None:
        self._http = _fresh()
        self._inbox = bytearray()
        self._eof = self._eof_told = False
        self._head_bytes = 0
        """The bytes given to h11 out of which no event has come since the last request."""
        self._may_skip = True
        """Whether an empty line before the request line is passed over."""
        self._without_body = False

    # What the client sends

    @property
    def unread_bytes(self) -> int:
        """The bytes that have come and wait to be asked for."""
        return len(self._inbox)

    @property
    def between_requests(self) -> bool:
        """Whether nothing of the next request has come."""
        idle = self._http.their_state is h11.IDLE
        return idle and not self._head_bytes and not self._inbox

    @property
    def client_waits(self) -> bool:
        """Whether the client waits for ``100 Continue`` before it sends its body."""
        return self._http.they_are_waiting_for_100_continue

    def receive(self, data: bytes) -> None:
        """Take bytes of the client's as they come."""
        self._inbox += data
        self._skip_empty_line()

    def receive_eof(self) -> None:
        """The client sends nothing more."""
        self._eof = True

    def next_event(self) -> Event | None:
        """The next part of the request that is being read; None: more has to come, or the
        request is to be answered first.

        Raises:
            HttpError: what has come is no HTTP. Nothing more can be read.
        """
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise _malformed(error) from None
            if isinstance(event, h11.Request):
                self._without_body = event.method == b"HEAD"
            if event is h11.PAUSED:
                return None
            if event is not h11.NEED_DATA:
                assert isinstance(event, Event)
                return event
            if not self._feed():
                return None

    def next_request(self) -> bool:
        """Go on to the next request, if this one is read and answered and another may follow."""
        if self._http.their_state is not h11.DONE or self._http.our_state is not h11.DONE:
            return False
        self._inbox[:0] = self._http.trailing_data[0]
        self._http, self._head_bytes, self._eof_told = _fresh(), 0, False
        self._may_skip = True
        self._skip_empty_line()
        return True

    def _skip_empty_line(self) -> None:
        """Pass over one empty line before a request line (RFC 9112 section 2.2): some clients end
        a body with it. No more, or a client could keep its socket with them."""
        begins = self._http.their_state is h11.IDLE and not self._head_bytes
        if begins and self._may_skip and self._inbox.startswith(_EMPTY_LINE):
            del self._inbox[: len(_EMPTY_LINE)]
            self._may_skip = False

    def _feed(self) -> bool:
        """Give h11 more of what has come. Slices are no longer than a head may be, so that
        what h11 holds behind the end of a body is not longer either."""
        in_head = self._http.their_state is h11.IDLE
        most = MAX_HEAD_BYTES - self._head_bytes if in_head else MAX_HEAD_BYTES
        if not most:
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _REASONS[431])
        half = in_head and not self._head_bytes and self._may_skip and self._inbox == b"\r"
        if not self._inbox or (half and not self._eof):
            if not self._eof or self._eof_told:
                return False
            self._eof_told = True
            self._http.receive_data(b"")
            return True
        data = bytes(self._inbox[:most])
        del self._inbox[:most]
        if in_head:
            self._head_bytes += len(data)
        self._http.receive_data(data)
        return True

    # What the client is sent

    @property
    def may_answer(self) -> bool:
        """Whether an answer may begin: none has."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def is_over(self) -> bool:
        """Whether no other request can follow the one that was answered."""
        return self._http.our_state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    def proceed(self) -> bytes:
        """The bytes of ``100 Continue``, for a client that waits for them before it sends its
        body."""
        return self._http.send(
            h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
        )

    def answer(self, response: HttpResponse, *, last: bool) -> bytes:
        """A whole answer. ``last``: the connection ends with it."""
        head = self._head(response.status, response.fields(), last=last)
        body = b"" if self._without_body else self._http.send(h11.Data(data=response.body))
        return head + body + self.end()

    def stream_head(
        self, content_type: str, *, last: bool, headers: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """The head of an answer that comes in pieces, with ``headers`` beside what all have."""
        # A proxy that gathers pieces would make a stream of them pointless.
        fields = [*common_fields(content_type), ("X-Accel-Buffering", "no"), *headers]
        return self._head(HTTPStatus.OK, fields, last=last)

    def piece(self, data: bytes) -> bytes:
        """One chunk (RFC 9112 section 7.1), not empty. By hand: h11's own way through its
        states, which a chunk does not change, would cost as much as making the events did."""
        return b"%x\r\n%b\r\n" % (len(data), data)

    def end(self) -> bytes:
        """The bytes behind the last piece."""
        return self._http.send(h11.EndOfMessage())

    def switch(self, response: WebSocketResponse) -> tuple[bytes, bytes]:
        """``101 Switching Protocols``, and what has come behind the request."""
        head = h11.InformationalResponse(
            status_code=response.status_code,
            headers=list(response.headers.raw_items()),
            reason=response.reason_phrase.encode(),
        )
        answer = self._http.send(head)
        return answer, self._http.trailing_data[0] + bytes(self._inbox)

    def _head(self, status: int, fields: list[tuple[str, str]], *, last: bool) -> bytes:
        if last:
            fields = [*fields, ("Connection", "close")]
        return self._http.send(
            h11.Response(status_code=int(status), headers=fields, reason=_phrase(status).encode())
        )


def _fresh() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)


def _phrase(status: int) -> str:
    """The words behind the number; nobody reads it, and 529 has none in the standard."""
    return HTTPStatus(status).phrase if status in _STANDARD else "Overloaded"


def _malformed(error: h11.RemoteProtocolError) -> HttpError:
    """The error for a malformed request, in words that do not repeat what was sent."""
    status = error.error_status_hint
    told = str(error).partition(":")[0].partition("(")[0].strip()
    return HttpError(
        HTTPStatus(status), _REASONS.get(status, f"The request is no HTTP/1.1: {told}.")
    )
