"""One turn that was asked for over HTTP: a connection to the hub that lives for that turn.

The hub delivers the same frames as to a WebSocket. A dialect makes of them server-sent events,
all of one step in one write, or one answer out of the last. A client that goes away takes its
turn with it; one that does not read is cut once its unsent bytes pass a limit, as at a
WebSocket. While nothing happens a comment keeps the stream alive.

Always true: the hub hears exactly once that the client is gone, and the exchange is used by
nobody after its end.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
from websockets.frames import CloseCode

from sessions.http.exchange import Exchange
from sessions.http.message import HttpResponse, json_response, refusal
from sessions.turns.reading import Read
from sessions.wire.hub import Connect, Hub
from sessions.wire.links import Link
from tools_api import errors, exact_json
from tools_api.dialects.dialect import Dialect, DialectWriter
from tools_api.dialects.responses_http import ResponsesWriter
from tools_api.errors import ApiError
from tools_api.events import TERMINAL, response_of, type_of

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": waiting\n\n"
HEARTBEAT_S = 15.0
"""Silence after which a stream says that it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A turn as it was asked for."""

    tenant: str
    dialect: Dialect
    read: Read
    streamed: bool
    writer: DialectWriter
    num_bytes: int
    """Of its body."""


class HttpTurn:
    """Outlet of the hub on one side, of an exchange on the other."""

    def __init__(
        self,
        asked: Asked,
        *,
        hub: Hub,
        connect: Connect,
        exchange: Exchange,
        max_unsent_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._asked = asked
        self._hub = hub
        self._exchange = exchange
        self._max_unsent_bytes = max_unsent_bytes
        self._clock = clock
        self._begun = self._over = False
        self._wrote_at = clock()
        writer = asked.writer
        self._feed: Callable[[bytes], bytes] = lambda frame: writer.feed(exact_json.loads(frame))
        if isinstance(writer, ResponsesWriter):
            self._feed = writer.feed_frame
        self._link: Link = hub.open(asked.tenant, self, connect)

    def start(self) -> None:
        """Hand the request over; the answer may come at once."""
        self._hub.take(self._link, self._asked.read, self._asked.num_bytes)

    @property
    def over(self) -> bool:
        """The exchange has its answer, or nobody to give it to."""
        return self._over

    # Outlet

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        """Take what the hub has for this client."""
        if self._over:
            return
        try:
            self._take(frames)
        except Exception:
            log.exception("answer failed connection=%s", self._link.id)
            if self._over:
                self._exchange.cut()
            else:
                self._refuse(errors.internal_error())
        if close is not None and not self._over:
            self._refuse(_ended(close))

    # Pending

    def client_gone(self) -> None:
        """Cancel the turn."""
        if not self._over:
            self._end()

    def tick(self, now: float) -> None:
        """Keep a silent stream alive."""
        if self._asked.streamed and now - self._wrote_at >= HEARTBEAT_S:
            self._write(HEARTBEAT)

    # Answering

    def _take(self, frames: Sequence[bytes]) -> None:
        pieces: list[bytes] = []
        for frame in frames:
            kind = type_of(frame)
            if kind == b"error":
                self._refuse(_error_in(frame))
                return
            told = self._begun or any(pieces)
            if self._asked.streamed and (told or kind != b"response.failed"):
                pieces.append(self._feed(frame))
                if kind in TERMINAL:
                    self._finish(b"".join(pieces))
                    return
            elif kind in TERMINAL:  # whole, or a failure that no stream has to tell yet
                self._finish_whole(frame)
                return
        if piece := b"".join(pieces):
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        self._begin()
        self._wrote_at = self._clock()
        self._exchange.write(piece)
        if self._exchange.unsent_bytes > self._max_unsent_bytes:
            log.warning("client does not read, cutting it off connection=%s", self._link.id)
            self._end()
            self._exchange.cut()

    def _finish(self, piece: bytes) -> None:
        """The turn has ended; ``piece`` is the last of its stream."""
        self._begin()
        self._end()
        self._exchange.finish(piece)

    def _finish_whole(self, frame: bytes) -> None:
        """The turn has ended with the event in ``frame``."""
        try:
            answer = self._whole(frame)
        except ApiError as error:
            self._refuse(error)
            return
        self._end()
        self._exchange.answer(answer)

    def _whole(self, frame: bytes) -> HttpResponse:
        if isinstance(self._asked.writer, ResponsesWriter):
            return json_response(response_of(frame))
        return json_response(self._asked.writer.whole(exact_json.loads(frame)["response"]))

    def _refuse(self, error: ApiError) -> None:
        self._end()
        dialect = self._asked.dialect
        if self._begun:
            self._exchange.finish(dialect.error_event(error))
        else:
            self._exchange.answer(refusal(error, dialect))

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._exchange.begin(EVENT_STREAM)

    def _end(self) -> None:
        self._over = True
        self._hub.disconnected(self._link)


def _error_in(frame: bytes) -> ApiError:
    """What an ``error`` event says."""
    event = orjson.loads(frame)
    error = event["error"]
    retry_after_ms = error.get("keepwarm", {}).get("retry_after_ms")
    return ApiError(
        error["message"],
        code=error["code"],
        param=error["param"],
        status=event["status"],
        type=error["type"],
        retry_after_s=None if retry_after_ms is None else retry_after_ms / 1000,
    )


def _ended(close: int) -> ApiError:
    """The hub closes a connection whose turn has not ended."""
    if close == CloseCode.SERVICE_RESTART:
        return errors.overloaded("it is shutting down")
    return errors.internal_error()
