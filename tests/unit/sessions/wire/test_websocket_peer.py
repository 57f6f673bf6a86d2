"""Bytes to frames and back: one write per delivery, floods in slices, slow readers out."""

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from runtime.messages import CancelRequest, FinishReason
from sessions.durable.tenant import Tenant
from sessions.pages.metrics import Metrics
from sessions.tenants import Principal
from sessions.wire.arriving import TURN_S, Arriving
from sessions.wire.errands import LongWork
from sessions.wire.fair_reading import Reading
from sessions.wire.http_dialects import Body
from sessions.wire.hub import Hub
from sessions.wire.read_process import NoText, ReaderLost, ReadResult
from sessions.wire.websocket_peer import (
    PING_UNREAD_TICKS,
    SLICE_BYTES,
    OpenSocket,
    SocketTimes,
    WebSocketPeer,
)
from tests.support.clock import FakeClock
from tests.support.dashboards import make_dashboard
from tests.support.fake_engine import INFO, EchoConnection, HandEngine, play, tokens
from tests.support.reading import inline_reading
from tests.support.tenants import make_tenant
from tools_api.limits import Limits

TIMES = SocketTimes(close_s=5, ping_after_s=20, pong_within_s=60)
MAX_UNSENT = 1000
MAX_FRAME = 100


class Wire(asyncio.Transport):
    """A transport whose other end reads when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unread = 0
        self.reading = True
        self.reads_at_once = True
        self.eof = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        if not self.reads_at_once:
            self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.aborted

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Store:
    def tenant(self, name: str) -> Tenant:
        return make_tenant(name)

    def sweep(self) -> tuple[()]:
        return ()


class Bench:
    """A peer on a wire, and a client protocol that speaks to it."""

    def __init__(self, reading: Reading | None = None, **limits: int) -> None:
        self.clock = FakeClock()
        self.engine = HandEngine()
        self.metrics = Metrics()
        self.hub = Hub(
            engine=self.engine,
            store=Store(),  # type: ignore[arg-type]
            connect=self._connect,  # type: ignore[arg-type]
            long_work=LongWork(check_grammar=None, reading=reading or inline_reading()),  # type: ignore[arg-type]
            metrics=self.metrics,
            dashboard=make_dashboard(self.clock),
            clock=self.clock,
        )
        self.hub.engine_ready(INFO)
        self.task = asyncio.get_running_loop().create_task(self.hub.run())
        self.arriving = Arriving(Limits(max_unsent_bytes=MAX_UNSENT, **limits))
        self.wire = Wire()
        self.lost: list[object] = []
        self.peer = WebSocketPeer(
            socket=OpenSocket(
                transport=self.wire,
                protocol=ServerProtocol(state=State.OPEN, max_size=MAX_FRAME),
            ),
            hub=self.hub,
            principal=Principal(tenant="acme"),
            arriving=self.arriving,
            times=TIMES,
            metrics=self.metrics,
            clock=self.clock,
            on_lost=self.lost.append,
        )
        self.client = ClientProtocol(parse_uri("ws://h/"), state=State.OPEN, max_size=None)

    def _connect(self, connection_id: str, tenant: Tenant) -> EchoConnection:
        self.connection = EchoConnection(connection_id, tenant)
        return self.connection

    def send(self, *texts: str) -> None:
        """One piece of data with a text frame for each of ``texts``."""
        for text in texts:
            self.client.send_text(text.encode())
        self.flush()

    def flush(self) -> None:
        """What the client protocol has to say arrives in one piece."""
        self.peer.data_received(b"".join(self.client.data_to_send()))

    def received(self) -> list[Frame]:
        """Frames the client has got since the last call."""
        for write in self.wire.writes:
            self.client.receive_data(write)
        self.wire.writes.clear()
        return [event for event in self.client.events_received() if isinstance(event, Frame)]

    def texts(self) -> list[str]:
        return [bytes(f.data).decode() for f in self.received() if f.opcode is Opcode.TEXT]

    @property
    def close_code(self) -> int | None:
        self.received()
        return None if self.client.close_rcvd is None else self.client.close_rcvd.code

    async def settle(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)


def run(
    scenario: Callable[[Bench], Coroutine[Any, Any, None]],
    reading: Reading | None = None,
    **limits: int,
) -> None:
    play(lambda: Bench(reading, **limits), scenario)


def beside(read: Callable[[bytes | Body], Awaitable[ReadResult]]) -> Reading:
    """Frames of more than 20 bytes are read by ``read``."""
    return replace(inline_reading(), max_inline_bytes=20, read=read)


def test_a_text_frame_is_answered() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("say hello world")
        assert bench.texts() == ["hello", "world"]

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_frames_of_every_length_are_readable(size: int) -> None:
    async def scenario(bench: Bench) -> None:
        bench.peer.deliver([b"x" * size, b"next"], None)
        assert bench.texts() == ["x" * size, "next"]
        assert not bench.wire.eof

    run(scenario)


def test_all_frames_of_a_step_leave_in_one_write() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("go a b")
        bench.wire.writes.clear()
        bench.engine.say(tokens("a"), tokens("b", finish=FinishReason.STOP))
        await bench.settle()
        assert len(bench.wire.writes) == 1
        assert bench.texts() == ["a +1", "b +1", "done b"]

    run(scenario)


def test_frames_that_arrive_together_are_taken_in_order() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("say 1", "say 2", "say 3")
        assert bench.texts() == ["1"], "one of a tenant in a turn of the loop"
        await bench.settle()
        assert bench.texts() == ["2", "3"]

    run(scenario)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_frames_cut_anywhere_by_the_network_arrive_whole(size: int) -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_text(b"say \xc3\xa4bc")
        bench.client.send_text(b"say def")
        data = b"".join(bench.client.data_to_send())
        for start in range(0, len(data), size):
            bench.peer.data_received(data[start : start + size])
        await bench.settle()
        assert bench.texts() == ["\u00e4bc", "def"]

    run(scenario)


def test_fragments_make_one_message_with_pings_between_them() -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_text(b"say \xc3", fin=False)
        bench.client.send_ping(b"p")
        bench.client.send_continuation(b"\xa4", fin=False)
        bench.client.send_continuation(b"!", fin=True)
        bench.client.send_text(b"say next")
        bench.flush()
        await bench.settle()
        frames = bench.received()
        assert [f.opcode for f in frames] == [Opcode.PONG, Opcode.TEXT, Opcode.TEXT]
        assert [bytes(f.data) for f in frames] == [b"p", b"\xc3\xa4!", b"next"]

    run(scenario)


def test_a_binary_frame_reaches_the_connection_as_bytes() -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_binary(b"say bytes")
        bench.flush()
        assert bench.texts() == ["bytes"]

    run(scenario)


def test_text_that_is_not_utf8_ends_the_connection_with_1007() -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_text(b"say \xff")
        bench.flush()
        assert bench.close_code == 1007
        assert bench.hub.num_connections == 0

    run(scenario)


def test_the_largest_frame_is_taken_and_one_byte_more_ends_the_connection_with_1009() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("x" * MAX_FRAME)
        await bench.settle()
        assert bench.texts() == [f"{MAX_FRAME} characters"]
        bench.send("x" * (MAX_FRAME + 1))
        await bench.settle()
        assert bench.close_code == 1009
        assert bench.wire.eof
        assert bench.connection.calls[-1] == "close"
        sample = bench.metrics.registry.get_sample_value
        assert sample("keepwarm_connection_closes_total", {"code": "1009"}) == 1

    run(scenario)


def test_fragments_count_together_against_the_frame_limit() -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_text(b"x" * MAX_FRAME, fin=False)
        bench.client.send_continuation(b"x", fin=True)
        bench.flush()
        assert bench.close_code == 1009

    run(scenario)


def test_an_unmasked_frame_is_a_protocol_error() -> None:
    async def scenario(bench: Bench) -> None:
        bench.peer.data_received(b"\x81\x01x")
        assert bench.close_code == 1002

    run(scenario)


def test_as_many_unsent_bytes_as_allowed_are_kept_and_then_the_reader_is_closed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("go a")
        await bench.settle()
        bench.received()
        bench.wire.reads_at_once = False
        header = 4
        bench.send(f"fill {MAX_UNSENT - header}")
        assert bench.wire.unread == MAX_UNSENT
        assert bench.close_code is None
        await bench.settle()
        bench.send("say x")
        assert bench.close_code == 1008
        await bench.settle()
        assert bench.engine.sent_ids(CancelRequest) == ["a"]
        assert bench.hub.num_connections == 0
        bench.clock.advance(TIMES.close_s)
        bench.peer.tick(bench.clock.now_s)
        assert bench.wire.aborted

    run(scenario)


def test_nothing_follows_a_close() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("go a", "end 1012", "say late")
        await bench.settle()
        bench.engine.say(tokens("a"))
        bench.peer.deliver([b"later"], None)
        bench.send("say even later")
        await bench.settle()
        assert bench.texts() == ["created a", "bye"]
        assert bench.close_code == 1012
        assert bench.connection.calls == ["go a", "end 1012", "close"]

    run(scenario)


def test_a_close_that_the_client_answers_ends_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("end 1012")
        bench.received()
        bench.flush()  # the client's protocol has answered the close frame
        assert bench.wire.eof

    run(scenario)


def test_a_close_that_the_client_does_not_answer_is_cut_off_in_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("end 1012")
        bench.clock.advance(TIMES.close_s - 0.1)
        bench.peer.tick(bench.clock.now_s)
        assert not bench.wire.aborted
        bench.clock.advance(0.1)
        bench.peer.tick(bench.clock.now_s)
        assert bench.wire.aborted

    run(scenario)


def test_a_client_that_closes_is_answered_and_its_turns_end() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("go a")
        bench.client.send_close(1000)
        bench.flush()
        await bench.settle()
        assert bench.close_code == 1000
        assert bench.engine.sent_ids(CancelRequest) == ["a"]
        sample = bench.metrics.registry.get_sample_value
        assert sample("keepwarm_connection_closes_total", {"code": "1000"}) is None

    run(scenario)


def test_what_a_client_says_before_its_close_is_heard_before_it_is_gone() -> None:
    """A turn is cancelled, and the socket closed behind it: it must not go on."""

    async def scenario(bench: Bench) -> None:
        for text in ("say 1", "say 2", "say 3"):
            bench.client.send_text(text.encode())
        bench.client.send_close(1000)
        bench.flush()
        assert bench.connection.calls == ["say 1"]
        assert not bench.wire.eof
        await bench.settle()
        assert bench.connection.calls == ["say 1", "say 2", "say 3", "close"]
        assert bench.close_code == 1000
        assert bench.wire.eof

    run(scenario)


def test_a_large_frame_before_a_close_is_read_beside_the_loop_and_heard() -> None:
    may_end = asyncio.Event()

    async def slowly(job: bytes | Body) -> ReadResult:
        await may_end.wait()
        return await inline_reading().read(job)

    async def scenario(bench: Bench) -> None:
        large = '{"type": "response.cancel", "stream_id": "a"}'
        for text in (large, "say 2"):
            bench.client.send_text(text.encode())
        bench.client.send_close(1000)
        bench.flush()
        await bench.settle()
        assert bench.connection.calls == []
        may_end.set()
        await bench.settle()
        assert bench.connection.calls == ["took CancelTurn", "say 2", "close"]
        assert bench.close_code == 1000

    run(scenario, beside(slowly))


def test_a_client_whose_last_words_are_never_read_is_dropped_in_time() -> None:
    async def never(_: bytes | Body) -> ReadResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(bench: Bench) -> None:
        bench.client.send_text(b"x" * 21)
        bench.client.send_close(1000)
        bench.flush()
        await bench.settle()
        for after_s, dropped in ((20, False), (59, False), (1, True)):
            bench.clock.advance(after_s)
            bench.peer.tick(bench.clock.now_s)
            assert bench.wire.aborted is dropped
        assert not bench.wire.writes
        bench.peer.connection_lost(None)
        await bench.settle()
        assert bench.connection.calls == ["close"]

    run(scenario, beside(never))


@pytest.mark.parametrize("with_eof", [True, False])
def test_a_client_that_vanishes_is_reported_once(with_eof: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.send("go a")
        if with_eof:
            bench.peer.eof_received()
        bench.peer.connection_lost(None if with_eof else ConnectionResetError())
        assert bench.connection.calls == ["go a", "close"]
        assert bench.lost == [bench.peer]

    run(scenario)


def test_a_silent_client_is_pinged_once_and_then_closed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.now_s = TIMES.ping_after_s - 0.1
        bench.peer.tick(bench.clock.now_s)
        assert bench.received() == []
        bench.clock.advance(0.1)
        bench.peer.tick(bench.clock.now_s)
        bench.peer.tick(bench.clock.now_s)
        assert [f.opcode for f in bench.received()] == [Opcode.PING]
        bench.clock.advance(TIMES.pong_within_s)
        bench.peer.tick(bench.clock.now_s)
        assert bench.close_code == 1011
        assert bench.hub.num_connections == 0

    run(scenario)


def test_a_pong_shows_that_the_client_lives() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(10):
            bench.clock.advance(TIMES.ping_after_s)
            bench.peer.tick(bench.clock.now_s)
            assert [f.opcode for f in bench.received()] == [Opcode.PING]
            bench.flush()
            await bench.settle()
        assert bench.close_code is None

    run(scenario)


def test_a_client_is_not_silent_while_nothing_is_read_from_it() -> None:
    may_end = asyncio.Event()

    async def slowly(job: bytes | Body) -> ReadResult:
        await may_end.wait()
        return await inline_reading().read(job)

    async def scenario(bench: Bench) -> None:
        bench.send('{"type": "response.cancel", "stream_id": "a"}', "say next")
        await bench.settle()
        for _ in range(2 * int(TIMES.ping_after_s + TIMES.pong_within_s)):
            assert not bench.wire.reading
            bench.clock.advance(1)
            bench.peer.tick(bench.clock.now_s)
        assert bench.close_code is None
        may_end.set()
        await bench.settle()
        assert bench.wire.reading
        bench.wire.writes.clear()
        bench.clock.advance(TIMES.ping_after_s)
        bench.peer.tick(bench.clock.now_s)
        assert [f.opcode for f in bench.received()] == [Opcode.PING]
        bench.clock.advance(TIMES.pong_within_s)
        bench.peer.tick(bench.clock.now_s)
        assert bench.close_code == 1011

    run(scenario, beside(slowly))


def test_a_flood_of_frames_is_handled_in_turns_without_reading_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.tick_s = TURN_S / 4
        bench.send(*(f"say {number}" for number in range(40)))
        first = bench.texts()
        assert 0 < len(first) < 40
        assert not bench.wire.reading
        await bench.settle()
        assert first + bench.texts() == [str(number) for number in range(40)]
        assert bench.wire.reading

    run(scenario)


def test_a_large_frame_is_read_beside_the_loop_and_those_behind_it_wait() -> None:
    large = '{"type": "response.cancel", "stream_id": "a"' + " " * 30 + "}"
    may_end = asyncio.Event()

    async def slowly(job: bytes | Body) -> ReadResult:
        await may_end.wait()
        return await inline_reading().read(job)

    async def scenario(bench: Bench) -> None:
        bench.send("say 1", large, "say 2")
        await bench.settle()
        assert bench.texts() == ["1"]
        bench.client.send_ping(b"p")
        bench.flush()
        await bench.settle()
        assert [f.opcode for f in bench.received()] == [Opcode.PONG], "a ping need not wait"
        may_end.set()
        await bench.settle()
        assert bench.connection.calls == ["say 1", "took CancelTurn", "say 2"]
        assert bench.texts() == [f"read {len(large)} bytes", "2"]

    run(scenario, beside(slowly))


@pytest.mark.parametrize(
    ("fault", "answer"), [(NoText(), 1007), (ReaderLost("gone"), "request_not_read")]
)
def test_a_large_frame_that_cannot_be_read_is_answered(fault: Exception, answer: int | str) -> None:
    async def fails(_: bytes | Body) -> ReadResult:
        raise fault

    async def scenario(bench: Bench) -> None:
        bench.send("x" * 21, "say next")
        await bench.settle()
        if isinstance(answer, int):
            assert bench.close_code == answer
        else:
            assert bench.connection.calls == [f"took {answer}", "say next"]

    run(scenario, beside(fails))


def test_a_client_that_goes_takes_the_frame_that_waits_to_be_read_with_it() -> None:
    async def never(_: bytes | Body) -> ReadResult:
        raise AssertionError("nobody waits for it")

    reading = beside(never)

    async def scenario(bench: Bench) -> None:
        async with reading.slots.place("other"):
            bench.send("x" * 21)
            await bench.settle()
            bench.peer.connection_lost(None)
            await bench.settle()
        await bench.settle()
        assert bench.connection.calls == ["close"]

    run(scenario, reading)


def test_a_client_that_goes_while_its_frame_is_read_leaves_nothing_behind() -> None:
    """A task that was cancelled keeps its frames: with the peer in them it would be a ring."""

    async def never(job: bytes | Body) -> ReadResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(bench: Bench) -> None:
        bench.send("say " + "word " * 10)
        await bench.settle()
        assert bench.peer.reads_beside
        bench.peer.connection_lost(None)
        await bench.settle()
        bench.lost.clear()
        peer = weakref.ref(bench.peer)
        del bench.peer
        assert peer() is None

    gc.disable()
    try:
        run(scenario, beside(never))
    finally:
        gc.enable()


@contextlib.contextmanager
def on_a_socket(bench: Bench) -> Iterator[socket.socket]:
    """The client's end of a socket that the wire stands for."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bench.wire._extra["socket"] = ours  # type: ignore[attr-defined]
        yield theirs


def test_of_a_client_that_leaves_unread_only_small_frames_are_heard() -> None:
    """It cannot cancel a turn in a large one, and for an answer it does not wait."""

    async def never(_: bytes | Body) -> ReadResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(bench: Bench) -> None:
        with on_a_socket(bench) as client:
            bench.send("x" * 21, "say 1", "y" * 21, "say 2")
            await bench.settle()
            bench.peer.tick(1.0)
            await bench.settle()
            assert bench.connection.calls == []
            client.close()
            bench.peer.tick(2.0)
            await bench.settle()
            assert bench.connection.calls == ["say 1", "say 2"]
            assert bench.wire.is_reading()  # to see its end

    run(scenario, beside(never))


def test_a_client_that_is_not_read_is_pinged_to_see_whether_it_is_there() -> None:
    async def never(_: bytes | Body) -> ReadResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(bench: Bench) -> None:
        bench.send("x" * 21, "y" * 21)
        bench.peer.tick(1.0)
        bench.wire.resume_reading()
        bench.peer.tick(2.0)
        assert not bench.received()
        bench.wire.pause_reading()
        for second in range(3, 3 + 2 * PING_UNREAD_TICKS):
            bench.peer.tick(second)
        assert [frame.opcode for frame in bench.received()] == 2 * [Opcode.PING]

    run(scenario, beside(never))


def test_of_a_client_that_leaves_a_flood_behind_the_beginning_is_looked_at() -> None:
    """64 that left fragments cost a server 80 s."""

    async def scenario(bench: Bench) -> None:
        bench.clock.tick_s = TURN_S
        with on_a_socket(bench) as client:
            first, more = Frame(Opcode.TEXT, b"", fin=False), Frame(Opcode.CONT, b"", fin=False)
            flood = first.serialize(mask=True) + more.serialize(mask=True) * 10_000
            bench.peer.data_received(flood)
            bench.peer.tick(1.0)
            assert not bench.wire.aborted
            client.close()
            bench.peer.tick(2.0)
            await bench.settle()
            assert bench.wire.aborted
            assert bench.peer.unread_bytes >= len(flood) - 2 * SLICE_BYTES

    run(scenario)


def test_the_close_of_a_client_that_has_left_counts() -> None:
    async def scenario(bench: Bench) -> None:
        may_end = asyncio.Event()

        async def slowly(job: bytes | Body) -> ReadResult:
            await may_end.wait()
            return await inline_reading().read(job)

        bench.peer.reading = beside(slowly)
        with on_a_socket(bench) as client:
            bench.client.send_text(b'{"type": "response.cancel", "stream_id": "a"}')
            bench.client.send_close(1000)
            bench.flush()
            client.close()
            bench.peer.tick(1.0)
            await bench.settle()
            may_end.set()
            await bench.settle()
            assert bench.connection.calls == ["took CancelTurn", "close"]

    run(scenario)


def test_a_flood_of_pings_whose_pongs_are_not_read_ends_the_connection() -> None:
    async def scenario(bench: Bench) -> None:
        bench.wire.reads_at_once = False
        for _ in range(50 * MAX_UNSENT // 6):
            bench.client.send_ping(b"")
        data = b"".join(bench.client.data_to_send())
        for start in range(0, len(data), 600):
            bench.peer.data_received(data[start : start + 600])
            await bench.settle()
            assert bench.wire.unread <= 2 * MAX_UNSENT + 600
        assert bench.connection.calls == ["close"]
        assert bench.wire.aborted or bench.close_code == 1008

    run(scenario)


def test_a_flood_of_bytes_is_parsed_in_slices() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.tick_s = TURN_S
        num_pings = 2 * SLICE_BYTES // 6
        for _ in range(num_pings):
            bench.client.send_ping(b"")
        bench.flush()
        at_once = len(bench.received())
        assert at_once <= SLICE_BYTES // 6 + 1 < 1000, "each costs some 10 us"
        await bench.settle()
        assert at_once + len(bench.received()) == num_pings

    run(scenario)


def test_what_arrives_while_a_flood_waits_keeps_its_place() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.tick_s = TURN_S
        bench.send("say 1", "say 2", "say 3")
        bench.send("say 4")
        await bench.settle()
        assert bench.texts() == ["1", "2", "3", "4"]

    run(scenario)


def test_a_client_lost_during_a_flood_is_left_alone() -> None:
    async def scenario(bench: Bench) -> None:
        bench.clock.tick_s = TURN_S
        bench.send("say 1", "say 2", "say 3")
        bench.wire.aborted = True
        bench.peer.connection_lost(None)
        await bench.settle()
        assert bench.connection.calls[-1] == "close"

    run(scenario)
