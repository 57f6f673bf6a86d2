"""One turn that was asked for over HTTP: a connection to the hub that lives for that turn.

The hub delivers the same frames as to a WebSocket. A dialect makes of them server-sent events,
all of one step in one write, or one answer out of the last. A client that goes away takes its
turn with it; one that does not read is cut once its unsent bytes pass a limit, as at a
WebSocket. Who asks for a turn in the background is answered as soon as it has begun, and it goes
on. While nothing happens a comment keeps the stream alive.

Always true: the hub hears exactly once that the client is gone, and the exchange is used by
nobody after its end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
from websockets.frames import CloseCode

from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, json_response, refusal
from sessions.turns.reading import Read
from sessions.wire.hub import Connect, Hub
from sessions.wire.links import Link
from tools_api import errors, exact_json
from tools_api.dialects.dialect import Dialect, DialectWriter
from tools_api.dialects.responses_http import ResponsesWriter
from tools_api.errors import ApiError
from tools_api.events import BEGINNING, TERMINAL, response_of, type_of
from tools_api.requests import CreateRequest

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": waiting\n\n"
HEARTBEAT_S = 15.0
"""Silence after which a stream says that it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A turn as it was asked for."""

    dialect: Dialect
    read: Read
    streamed: bool
    writer: DialectWriter
    num_bytes: int
    """Size of the request's body."""


class HttpTurn:
    """One turn over HTTP: outlet of the hub on one side, of an exchange on the other."""

    def __init__(
        self, call: Call, *, hub: Hub, max_unsent_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._tenant = call.principal.tenant
        self._key_name, self._request_id = call.principal.key_name, call.request_id
        self._exchange = call.exchange
        self._hub = hub
        self._max_unsent_bytes = max_unsent_bytes
        self._clock = clock
        self._begun = False
        self._wrote_at = clock()
        self._link: Link | None = None
        self._answer: asyncio.Future[HttpResponse | None] = (
            asyncio.get_running_loop().create_future()
        )

    def submit(self, asked: Asked, connect: Connect) -> None:
        """Hand the request over; the answer may come at once."""
        self._asked, writer = asked, asked.writer
        self._at_once = not asked.streamed and _in_background(asked.read.content)
        self._feed: Callable[[bytes], bytes] = lambda frame: writer.feed(exact_json.loads(frame))
        if isinstance(writer, ResponsesWriter):
            self._feed = writer.feed_frame
        if asked.streamed:
            self._exchange.look_at_clock(self.tick)
        self._link = self._hub.open(
            self._tenant, self, connect, key_name=self._key_name, request_id=self._request_id
        )
        self._hub.receive_parsed(self._link, asked.read, asked.num_bytes)

    async def ended(self) -> HttpResponse | None:
        """The whole answer, None if it was streamed; who does not wait any more cancels the
        turn."""
        try:
            return await self._answer
        finally:
            self.leave()

    def leave(self) -> None:
        """The client is gone, or has its answer. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            self._hub.disconnected(link)

    # Outlet

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        """Take what the hub has for this client."""
        if self._answer.done():
            return
        try:
            self._take(frames)
        except Exception:
            log.exception("answer failed tenant=%s x_request_id=%s", self._tenant, self._request_id)
            if self._answer.done():
                self._exchange.cut()
            else:
                self._refuse(errors.internal_error())
        if close is None or self._answer.done():
            return
        if close == CloseCode.NORMAL_CLOSURE and self._asked.streamed:
            self._finish(b"")  # whoever asked for the events behind one has all of them
        else:
            self._refuse(_ended(close))

    def tick(self, now: float) -> None:
        """Keep a silent stream alive."""
        if not self._answer.done() and now - self._wrote_at >= HEARTBEAT_S:
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
        if self._at_once and (told_last := _last_told(frames)) is not None:
            self._finish_whole(told_last)
        elif piece := b"".join(pieces):
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        self._begin()
        self._wrote_at = self._clock()
        self._exchange.write(piece)
        if self._exchange.unsent_bytes > self._max_unsent_bytes:
            log.warning(
                "client does not read, cutting it off tenant=%s x_request_id=%s",
                *(self._tenant, self._request_id),
            )
            self._end(None)
            self._exchange.cut()

    def _finish(self, piece: bytes) -> None:
        """The turn has ended; ``piece`` is the last of its stream."""
        self._begin()
        self._end(None)
        self._exchange.finish(piece)

    def _finish_whole(self, frame: bytes) -> None:
        """The turn has ended with the event in ``frame``."""
        try:
            answer = self._whole(frame)
        except ApiError as error:
            self._refuse(error)
        else:
            self._end(answer)

    def _whole(self, frame: bytes) -> HttpResponse:
        if isinstance(self._asked.writer, ResponsesWriter):
            return json_response(response_of(frame))
        return json_response(self._asked.writer.whole(exact_json.loads(frame)["response"]))

    def _refuse(self, error: ApiError) -> None:
        if self._begun:
            self._finish(self._asked.dialect.error_event(error))
        else:
            self._end(refusal(error, self._asked.dialect))

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._exchange.start_stream(EVENT_STREAM)

    def _end(self, answer: HttpResponse | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)
        self.leave()


def _in_background(content: object) -> bool:
    return isinstance(content, CreateRequest) and content.background


def _last_told(frames: Sequence[bytes]) -> bytes | None:
    """The last of the events that have the response as it stands."""
    return next((frame for frame in reversed(frames) if type_of(frame) in BEGINNING), None)


def _error_in(frame: bytes) -> ApiError:
    """The error in an ``error`` event."""
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
