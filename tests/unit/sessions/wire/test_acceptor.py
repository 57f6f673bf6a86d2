"""Clients are taken in as bare sockets, and get a protocol when they begin to speak."""

import asyncio
import contextlib
import errno
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sessions.wire.acceptor import ACCEPTED_AT_ONCE, REST_S, SPEAK_S, TURNED_AWAY, Acceptor
from tests.support.running_server import LOOPS

HEAD_S = 10.0


class Spoken(asyncio.Protocol):
    """Collects what its client says."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench
        self.transport: Any = None
        self.said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._bench.open.append(self)

    def data_received(self, data: bytes) -> None:
        self.said += data


class Bench:
    """An acceptor on loopback, and clients of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open: list[Spoken] = []
        self.taken = 0
        self.most = 1000
        self.asked = 0
        """How often there was a question of room."""
        self.step_s = 0.0
        """So long passes between two of those."""
        self.acceptor = Acceptor(
            greet=lambda: Spoken(self),
            taken=self._count,
            room=self._room,
            head_s=HEAD_S,
            clock=lambda: self.now,
        )
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.port = self.bound.getsockname()[1]
        self.clients = contextlib.ExitStack()

    def _room(self) -> int:
        self.asked += 1
        self.now += self.step_s
        return self.most - len(self.open) - self.acceptor.num_silent

    def _count(self) -> None:
        self.taken += 1

    def connect(self, words: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port))
        self.clients.enter_context(client)
        if words:
            client.sendall(words)
        client.setblocking(False)
        return client

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)


def play(scenario: Callable[[Bench], Awaitable[None]], loop: str = "asyncio") -> None:
    async def main() -> None:
        bench = Bench()
        bench.acceptor.start(bench.bound)
        with bench.clients:
            await scenario(bench)
            await bench.acceptor.stop()
        for each in bench.open:
            each.transport.abort()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("loop", LOOPS)
def test_who_speaks_has_a_protocol_with_all_it_said_and_who_does_not_is_a_socket(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        silent = bench.connect()
        bench.connect(b"hello")
        await bench.until(lambda: len(bench.open) == 1 and bench.acceptor.num_silent == 1)
        await bench.until(lambda: len(bench.open) == 1 and bench.open[0].said == b"hello")
        silent.sendall(b"well")
        await bench.until(lambda: len(bench.open) == 2 and bench.open[1].said == b"well")
        assert bench.acceptor.num_silent == 0
        sockets = [each.transport.get_extra_info("socket") for each in bench.open]
        assert all(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in sockets)

    play(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_leaves_without_a_word_leaves_nothing(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        client = bench.connect()
        await bench.until(lambda: bench.acceptor.num_silent == 1)
        client.close()
        await bench.until(lambda: bench.acceptor.num_silent == 0)
        await bench.until(lambda: any(each.transport.is_closing() for each in bench.open))

    play(scenario, loop)


def test_the_oldest_go_that_had_time_to_speak_and_have_not() -> None:
    async def scenario(bench: Bench) -> None:
        clients = []
        for number in range(5):
            clients.append(bench.connect())
            await bench.until(lambda number=number: bench.acceptor.num_silent == number + 1)
            bench.now += 0.1
        assert bench.acceptor.thin_out(5) == 3, "the last two are younger than that"
        assert [ended(each) for each in clients] == [True] * 3 + [False] * 2
        bench.now += SPEAK_S
        clients[3].sendall(b"x")
        assert bench.acceptor.thin_out(1) == 1
        assert not ended(clients[3]), "it has spoken, and nobody has looked"
        assert ended(clients[4])
        assert bench.acceptor.thin_out(0) == bench.acceptor.thin_out(-1) == 0
        await bench.until(lambda: len(bench.open) == 1 and bench.open[0].said == b"x")

    play(scenario)


def test_where_there_is_no_room_who_is_silent_goes_and_who_speaks_is_waited_for() -> None:
    async def scenario(bench: Bench) -> None:
        bench.most = 3
        bench.connect(b"first")
        await bench.until(lambda: len(bench.open) == 1)
        silent = [bench.connect() for _ in range(6)]
        await bench.until(lambda: sum(map(ended, silent)) == 4 and bench.acceptor.num_silent == 2)
        for words in (b"second", b"third"):
            bench.connect(words)
        await bench.until(lambda: len(bench.open) == 3 and bench.acceptor.num_silent == 0)
        late = bench.connect(b"late")
        await asyncio.sleep(0)
        assert len(bench.open) == 3
        bench.open.pop(0).transport.abort()
        await bench.until(lambda: bench.open[-1].said == b"late")
        assert not ended(late)

    play(scenario)


def test_who_has_waited_for_room_in_vain_is_told_so() -> None:
    """Without that, one who asks whether the server is ready waits until a turn ends."""

    async def scenario(bench: Bench) -> None:
        bench.most = 1
        bench.connect(b"first")
        await bench.until(lambda: len(bench.open) == 1)
        late, heard = bench.connect(b"GET /readyz HTTP/1.1\r\n\r\n"), bytearray()

        def answered() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.extend(late.recv(4096))
            return len(heard) > 0

        before = bench.asked
        await bench.until(lambda: bench.asked > before + 3)
        assert not answered()
        began, bench.step_s = bench.now, 0.1
        await bench.until(answered)
        assert heard == TURNED_AWAY
        assert bench.now - began >= REST_S - 0.1
        bench.step_s = 0.0
        bench.now += 100
        bench.connect(b"waits its own time")
        before = bench.asked
        await bench.until(lambda: bench.asked > before + 3)
        bench.open.pop(0).transport.abort()
        await bench.until(lambda: [each.said for each in bench.open] == [b"waits its own time"])

    play(scenario)


@pytest.mark.parametrize(("after_s", "left"), [(HEAD_S - 0.001, 1), (HEAD_S, 0)])
def test_who_says_nothing_for_as_long_as_a_head_may_take_is_closed(
    after_s: float, left: int
) -> None:
    async def scenario(bench: Bench) -> None:
        client = bench.connect()
        await bench.until(lambda: bench.acceptor.num_silent == 1)
        bench.now = after_s
        bench.acceptor.tick()
        assert bench.acceptor.num_silent == left
        assert ended(client) is not bool(left)

    play(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_turn_of_the_loop_takes_in_more_than_was_said(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(2 * ACCEPTED_AT_ONCE + 1):
            bench.connect(b"x")
        seen = [0]
        while len(bench.open) < 2 * ACCEPTED_AT_ONCE + 1:
            await asyncio.sleep(0)
            seen.append(len(bench.open))
        most = max(after - before for before, after in itertools.pairwise(seen))
        assert most <= 2 * ACCEPTED_AT_ONCE, "those just taken in, and those that were watched"
        assert bench.taken >= 3

    play(scenario, loop)


class OutOfDescriptors:
    """A listening socket that has none for its clients, so many times."""

    def __init__(self, real: socket.socket, errors: Iterator[int]) -> None:
        self._real = real
        self._errors = errors
        self.asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        number = next(self._errors, 0)
        if number:
            raise OSError(number, "no")
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_without_descriptors_the_loop_rests_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        loop, waits = asyncio.get_running_loop(), list[float]()
        call_later = loop.call_later

        def soon(delay: float, call: Callable[..., Any], *words: Any) -> asyncio.TimerHandle:
            waits.append(delay)
            return call_later(0.01, call, *words)

        monkeypatch.setattr(loop, "call_later", soon)
        errors = iter([errno.ECONNABORTED, errno.EMFILE])
        bound = OutOfDescriptors(bench.bound, errors)
        bench.acceptor.bound = bound  # type: ignore[assignment]
        bench.connect(b"x")
        await bench.until(lambda: len(bench.open) == 1)
        assert [delay for delay in waits if delay == REST_S] == [REST_S]
        assert bound.asked == 4

    play(scenario)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("words", [b"GET /readyz HTTP/1.1\r\n\r\n", b""])
def test_who_has_waited_for_a_descriptor_in_vain_is_told_so(
    monkeypatch: pytest.MonkeyPatch, words: bytes, before: int
) -> None:
    """``before``: so many come first who get descriptors that others gave back meanwhile."""

    async def scenario(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda _, *rest: call_later(0.01, *rest))
        bench.acceptor.bound = OutOfDescriptors(  # type: ignore[assignment]
            bench.bound, iter([errno.EMFILE, *[0] * before, errno.EMFILE])
        )
        for _ in range(before):
            bench.connect(b"x")
        told, heard = bench.connect(words), bytearray()

        def answered() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.extend(told.recv(4096))
            return len(heard) == len(TURNED_AWAY)

        await bench.until(answered)
        assert heard == TURNED_AWAY
        assert ended(told)
        head, _, body = bytes(heard).partition(b"\r\n\r\n")
        assert b"503" in head.splitlines()[0]
        assert b"Content-Length: %d\r\n" % len(body) in head
        assert json.loads(body)["error"]["code"] == "server_is_overloaded"
        await bench.until(lambda: len(bench.open) == before)
        bench.connect(b"x")
        await bench.until(lambda: len(bench.open) == before + 1)

    play(scenario)


def test_a_client_that_cannot_be_taken_in_leaves_neither_socket_nor_protocol(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        lost = list[Exception | None]()

        async def refuse(greet: Callable[[], asyncio.Protocol], client: socket.socket) -> None:
            monkeypatch.setattr(greet(), "connection_lost", lost.append, raising=True)
            raise OSError(errno.ENOMEM, "no memory")

        monkeypatch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", refuse)
        client = bench.connect(b"x")
        await bench.until(lambda: bool(lost))
        assert ended(client)
        assert bench.acceptor.num_silent == 0
        await bench.until(lambda: not bench.acceptor.num_opening)

    play(scenario)
    assert caplog.text.count("a client could not be taken in") == 1


def test_at_the_end_the_silent_are_closed_and_who_has_spoken_is_handed_over() -> None:
    async def scenario(bench: Bench) -> None:
        silent, speaks = bench.connect(), bench.connect()
        await bench.until(lambda: bench.acceptor.num_silent == 2)
        speaks.sendall(b"x")
        await bench.acceptor.stop()
        await bench.until(lambda: len(bench.open) == 1)
        assert ended(silent)
        assert not ended(speaks)
        with pytest.raises(ConnectionRefusedError):
            bench.connect()
        await bench.acceptor.stop()

    play(scenario)
