"""One client's open WebSocket: bytes of a transport on one side, the hub on the other.

The framing is ``websockets``' sans-I/O ``ServerProtocol`` (RFC 6455); this module decides
when bytes are read and written. What the hub delivers in one call leaves in one write. A
client that floods gets its frames handled in slices, so that others have their turn; one
that does not read is closed once its unsent bytes pass a limit; one that has gone silent, while the
server reads from it, is pinged, then closed.

Always true: the hub hears exactly once that a client is gone, and no frame follows a close; what a
client said before its close is heard before it is gone. One that leaves without a close, while much
of it waits unread, is noticed within seconds; then only its last small frames are heard.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from sessions.pages.metrics import Metrics
from sessions.tenants import Principal
from sessions.turns.reading import Read
from sessions.wire.arriving import TURN_S, Arriving
from sessions.wire.hub import Hub
from sessions.wire.links import Link
from sessions.wire.read_process import NoText, ReaderLost
from sessions.wire.socket_state import has_left
from sessions.wire.unsent import BEHIND_BYTES
from tools_api import errors
from tools_api.errors import ApiError

log = logging.getLogger(__name__)

FRAMES_AHEAD = 64
"""How many more frames are looked at of a client whose message is being read; of one that has left,
how many in all."""
SLICE_BYTES = 4 * 1024
"""Bytes parsed at once: they hold some hundreds of frames, and each frame costs some 10 us."""
PING_UNREAD_TICKS = 2
"""A client that nothing was read from is pinged after so many looks at the clock, and again."""
FRAME_BYTES = 256
"""The size of a waiting frame beside its data."""

_REASONS: dict[int, str] = {
    CloseCode.GOING_AWAY: "connection age limit",
    CloseCode.POLICY_VIOLATION: "frames are not read",
    CloseCode.INTERNAL_ERROR: "internal error",
    CloseCode.SERVICE_RESTART: "server restarts",
    CloseCode.TRY_AGAIN_LATER: "too many bytes are arriving",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketTimes:
    """How long the server waits for a client, in seconds."""

    head_s: float = 10.0
    """Seconds for a whole request head, from its first byte on; for the first one, from the
    start."""
    body_s: float = 30.0
    """Seconds for a request's body; one that is long and comes fast enough gets more."""
    idle_s: float = 75.0
    """Seconds for the next request behind an answered one."""
    unread_s: float = 60.0
    """Seconds for taking a part of an HTTP answer that fills the buffers."""
    close_s: float = 5.0
    """Seconds for the client's part of a close, then the socket is dropped."""
    ping_after_s: float = 20.0
    """Silence after which a client is pinged."""
    pong_within_s: float = 60.0
    """Further silence after which it is closed. Long, since agents that run tools in their
    event loop answer no ping meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSocket:
    """The socket that a handshake leaves: bytes to and from the client, and the framing on them."""

    transport: asyncio.Transport
    protocol: ServerProtocol
    """The protocol of the socket, in state OPEN."""
    wants_events: bool = False
    """The client asked for events of our own."""
    request_id: str = ""
    """Name of the request that opened it."""


class WebSocketPeer(asyncio.Protocol):
    """Takes over a socket after the handshake."""

    def __init__(
        self,
        *,
        socket: OpenSocket,
        hub: Hub,
        principal: Principal,
        arriving: Arriving,
        times: SocketTimes,
        metrics: Metrics,
        clock: Callable[[], float],
        on_lost: Callable[["WebSocketPeer"], None],
    ) -> None:
        """``on_lost`` is called when the transport is gone."""
        self._transport = socket.transport
        self._protocol = socket.protocol
        self._hub = hub
        self.reading = hub.reading
        self._tenant = principal.tenant
        self._arriving = arriving
        self._max_unsent_bytes = arriving.limits.max_unsent_bytes
        self._times = times
        self._metrics = metrics
        self._clock = clock
        self._on_lost = on_lost
        self._inbox = bytearray()
        self._frames: deque[Frame] = deque()
        self._frames_bytes = 0
        self._hold = arriving.hold(principal.tenant, self)
        self._message: bytearray | None = None
        self._message_opcode = Opcode.TEXT
        self._resuming = self._working = self._ends = False
        self._full = False
        """Too much was arriving: what still comes is dropped."""
        self._message_open = False
        """A message waits for its turn or is being read; those behind it wait for it."""
        self._message_bytes = 0
        self._reader: asyncio.Task[None] | None = None
        self._last_frames: int | None = None
        """The last frames of a client that has left: so many of its frames are looked at still."""
        self._unread_ticks = 0
        """Looks at the clock since it was last read."""
        self._heard_at = clock()
        self._pinged = False
        self._drop_at: float | None = None
        self.principal = principal
        self._link: Link = hub.open(
            principal.tenant, self, key_name=principal.key_name, request_id=socket.request_id
        )
        if socket.wants_events:
            self._link.connection.want_events()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._clock()
        self._pinged = False
        if self._full:
            return
        self._inbox += data
        if self._may_hold() and not self._resuming:
            self._request_work()

    def eof_received(self) -> None:
        """Returning None lets the transport close."""
        self._forget_messages()
        self._protocol.receive_eof()
        self._hub.disconnected(self._link)

    def resume_writing(self) -> None:
        self._arriving.unsent.forget(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arriving.unsent.forget(self)
        self._forget_messages()
        self._hold.release()
        self._full = True
        self._hub.disconnected(self._link)
        # The frames of both refer to the protocol, which would keep them and itself.
        self._protocol.parser.close()
        self._protocol.parser_exc = None
        self._on_lost(self)

    # Outlet

    def deliver(self, frames: Sequence[bytes], close: int | None) -> None:
        if self._protocol.state is not State.OPEN or self._transport.is_closing():
            return
        if close is not None:
            self._close(close, frames)
            return
        self._write(frames)

    # Time

    def tick(self, now: float) -> None:
        """Drop, close or ping the client if it is time. Called about once a second."""
        if self._drop_at is not None:
            if now >= self._drop_at:
                self._transport.abort()
            return
        self._unread_ticks = 0 if self._transport.is_reading() else self._unread_ticks + 1
        if self._unread_ticks and self._protocol.state is State.OPEN:
            self._heard_at, self._pinged = now, False  # what it says lies unread
        if self._unread_ticks and self._last_frames is None:
            self._ask_whether_it_left()
        silence_s = now - self._heard_at
        if silence_s >= self._times.ping_after_s + self._times.pong_within_s:
            log.info("client is silent, closing connection=%s", self._link.id)
            if self._protocol.state is State.OPEN:
                self._close(CloseCode.INTERNAL_ERROR)
            else:
                self._transport.abort()  # it has closed, and what it said before is not read yet
        elif (
            self._protocol.state is State.OPEN
            and silence_s >= self._times.ping_after_s
            and not self._pinged
        ):
            self._pinged = True
            self._protocol.send_ping(b"")
            self._write()

    def revoke(self) -> None:
        """The key it was opened with is good no more."""
        if self._protocol.state is State.OPEN and not self._transport.is_closing():
            self._close(CloseCode.POLICY_VIOLATION, reason="key revoked")

    def abort(self) -> None:
        """Drop the socket without a word."""
        self._transport.abort()

    cut = abort

    # Reading

    def _work(self) -> None:
        """Handle what has arrived, as far as this turn of the event loop allows."""
        self._resuming = False
        if self._transport.is_closing():
            return
        until = self._clock() + TURN_S
        self._working = True
        while self._may_go_on():
            if self._frames and not self._message_open:
                frame = self._frames.popleft()
                self._frames_bytes -= len(frame.data) + FRAME_BYTES
                self._take(frame)
            else:
                self._parse_slice()
            if self._clock() >= until:
                break
        self._working = False
        self._may_hold()
        if self._protocol.state is State.OPEN:
            self._write()
        elif not (self._hears and (self._frames or self._message_open)):
            self._write()
            self._begin_end()
        if self._frames or self._inbox:
            self._transport.pause_reading()
            self._later()
        elif not self._transport.is_reading():
            self._transport.resume_reading()

    def _may_go_on(self) -> bool:
        """Something has come that need not wait. Behind an open message little is looked at."""
        if self._message_open:
            return bool(self._inbox) and len(self._frames) < FRAMES_AHEAD
        return bool(self._frames or self._inbox)

    def _later(self) -> None:
        if not self._resuming and self._may_go_on():
            self._request_work()

    def _request_work(self) -> None:
        """Work as soon as it is the tenant's turn; nothing more is read before."""
        self._resuming = True
        self._arriving.turns.run(self._tenant, self._work)
        if self._resuming and not self._transport.is_closing():
            self._transport.pause_reading()

    def _may_hold(self) -> bool:
        """Count what has come and is not read yet; False: it is too much, the client is closed."""
        message = 0 if self._message is None else len(self._message)
        waiting = len(self._inbox) + len(self._protocol.reader.buffer) + self._frames_bytes
        try:
            self._hold.resize(waiting + message + self._message_bytes)
        except ApiError as error:
            if not self._full:
                self._full = True
                log.warning("too much arrives, closing connection=%s %s", self._link.id, error)
                self._drop_what_comes()
            return False
        return True

    def _drop_what_comes(self) -> None:
        self._forget_messages()
        self._message = None
        self._protocol.reader.buffer.clear()  # it is not parsed any more
        self._hold.release()
        if self._protocol.state is State.OPEN and not self._transport.is_closing():
            self._close(CloseCode.TRY_AGAIN_LATER)
        else:
            self._transport.abort()

    def _parse_slice(self) -> None:
        data = self._inbox[:SLICE_BYTES]
        del self._inbox[:SLICE_BYTES]
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            frame = cast(Frame, event)  # the handshake is over
            if frame.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
                self._frames.append(frame)
                self._frames_bytes += len(frame.data) + FRAME_BYTES

    @property
    def _hears(self) -> bool:
        """Whether waiting frames are for the hub: nobody has closed, or the client has, behind it.
        A client that cancels its turns and closes means both."""
        closed = self._protocol.state is not State.OPEN and self._protocol.close_rcvd is None
        return self._drop_at is None and not closed

    def _ask_whether_it_left(self) -> None:
        """Nothing is read, so that nobody tells whether the client is still there. One that left
        without a word waits for no answer; that it cancels a turn is heard nevertheless. Its end
        comes behind all that it has sent, however much that is: a ping to nobody is answered by
        the system at once."""
        if self._protocol.close_rcvd is not None:
            return
        if has_left(self._transport):
            self._last_frames = FRAMES_AHEAD
            if self._reader is not None:
                self._reader.cancel()
        elif self._unread_ticks % PING_UNREAD_TICKS == 0 and self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            self._write()

    def _take(self, frame: Frame) -> None:
        if not self._hears:
            return
        if self._last_frames is not None:
            self._last_frames -= 1
            if self._last_frames < 0:
                self._transport.abort()
                return
        if frame.opcode is not Opcode.CONT:
            self._message_opcode = frame.opcode
            if frame.fin:
                self._take_message(frame.data)
                return
            self._message = bytearray()
        assert self._message is not None  # the protocol has checked the order of fragments
        self._message += frame.data
        if frame.fin:
            data, self._message = self._message, None
            self._take_message(data)

    def _take_message(self, data: bytes | bytearray | memoryview) -> None:
        is_small = len(data) <= self.reading.max_inline_bytes
        if self._last_frames is not None and not is_small:
            return  # no cancel is that long
        self._message_open, self._message_bytes = True, len(data)
        if is_small:
            self.reading.turns.run(self._tenant, lambda: self._handle(data))
        elif self._message_opcode is Opcode.TEXT:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_task(self._read_beside(bytes(data)))
        else:
            self._handle(data)  # refused unread

    def _handle(self, data: bytes | bytearray | memoryview) -> None:
        """Handle a message, now that it is its turn."""
        if self._hears:
            if self._message_opcode is not Opcode.TEXT:
                self._hub.receive(self._link, bytes(data))
            else:
                try:
                    text = str(data, "utf-8")
                except UnicodeDecodeError:
                    self._protocol.fail(CloseCode.INVALID_DATA, "text frame is not UTF-8")
                else:
                    self._hub.receive(self._link, text)
        self._message_done()

    async def _read_beside(self, data: bytes) -> None:
        read = Read(content=errors.internal_error())
        try:
            read = (await self.reading.beside(self._tenant, data)).read
        except NoText:
            self._protocol.fail(CloseCode.INVALID_DATA, "text frame is not UTF-8")
        except ReaderLost:
            read = Read(content=errors.not_read())
        except Exception:
            log.exception("frame cannot be read connection=%s", self._link.id)
        except asyncio.CancelledError:
            if self._last_frames is not None and not self._transport.is_closing():
                self._message_done()
            raise
        finally:
            self._reader = None  # a cancelled task keeps its frames, and they the peer and data
        if self._hears:
            self._hub.receive_parsed(self._link, read, len(data))
        self._message_done()

    def _message_done(self) -> None:
        self._message_open, self._message_bytes = False, 0
        if not self._working and not self._resuming:
            self._request_work()

    def _forget_messages(self) -> None:
        """Drop the messages that have come: nobody waits for an answer to them."""
        self._frames.clear()
        self._frames_bytes = 0
        self._inbox.clear()
        if self._reader is not None:
            self._reader.cancel()

    # Writing

    def _close(self, code: int, frames: Sequence[bytes] = (), reason: str | None = None) -> None:
        """Send the last frames and a close frame."""
        self._write(frames)
        if self._ends:
            return  # the frames were too many
        self._ends = True
        self._protocol.send_close(code, reason or _REASONS.get(code, ""))
        self._write()
        self._begin_end()

    def _begin_end(self) -> None:
        """A close frame has been sent: nothing more is for the client, nor from it."""
        if self._drop_at is not None:
            return
        self._ends = True
        self._drop_at = self._clock() + self._times.close_s
        self._frames.clear()
        self._frames_bytes = 0
        if self._reader is not None:
            self._reader.cancel()
        sent = self._protocol.close_sent
        if sent is not None and self._protocol.close_rcvd is None:
            self._metrics.connection_closed(sent.code)
        self._hub.disconnected(self._link)

    def _write(self, frames: Sequence[bytes] = ()) -> None:
        """Send what the protocol has to say, then text frames, in one write."""
        writes = self._protocol.data_to_send()
        ends = bool(writes) and not writes[-1]  # websockets' mark for the end of the stream
        # The protocol's own send_text would add a third to a small frame's CPU time.
        for frame in frames:
            writes += (_text_header(len(frame)), frame)
        if not writes or self._transport.is_closing():
            return
        self._transport.write(b"".join(writes))
        if ends:
            self._transport.write_eof()
        unsent = self.unsent_bytes
        if unsent > self._max_unsent_bytes:
            self._refuse_to_wait()
        if unsent >= BEHIND_BYTES:
            self._arriving.unsent.note(self._tenant, self)

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed the socket."""
        return self._protocol.state is State.OPEN

    @property
    def is_reading(self) -> bool:
        """Bytes of the client are taken from the socket."""
        return self._transport.is_reading()

    @property
    def reads_beside(self) -> bool:
        """A long frame is being read beside the event loop."""
        return self._reader is not None

    @property
    def unread_bytes(self) -> int:
        """Bytes that came behind a frame that is being read."""
        return len(self._inbox)

    @property
    def unsent_bytes(self) -> int:
        """The written bytes that the client has not taken yet."""
        return self._transport.get_write_buffer_size()

    def _refuse_to_wait(self) -> None:
        """The client does not read: it is closed, and dropped if it goes on asking."""
        if self._ends:
            if self.unsent_bytes > 2 * self._max_unsent_bytes:
                self._transport.abort()
            return
        log.warning("client does not read, closing connection=%s", self._link.id)
        self._close(CloseCode.POLICY_VIOLATION)


def _text_header(length: int) -> bytes:
    """Header of a whole, unmasked text frame (RFC 6455 section 5.2)."""
    if length < 126:
        return bytes((0x81, length))
    if length < 65536:
        return struct.pack("!BBH", 0x81, 126, length)
    return struct.pack("!BBQ", 0x81, 127, length)
