"""Takes clients in, and keeps those that have said nothing as what they are: bare sockets.

A client gets a transport and a protocol when its first bytes have come. Until then it is a
descriptor that a selector watches: whoever connects behind thousands that say nothing does not wait
for their protocols to be made and thrown away. Knows no request.

Always true: a socket is here, or handed over, or closed.
"""

import asyncio
import contextlib
import errno
import logging
import selectors
import socket
from collections.abc import Callable
from itertools import islice, takewhile

from sessions.wire.descriptors import SpareDescriptor

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Clients taken in, and handed over, in one turn of the event loop."""
SPEAK_S = 0.25
"""Between connecting and the first byte: a client's process may have to wait for its core."""
REST_S = 1.0
"""Until the next try where the system has no descriptor or memory for a client."""
_NONE_LEFT = b'{"error":{"code":"server_is_overloaded","message":"' + (
    b'The server has run out of file descriptors; try again in a moment."}}'
)
TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%b"
) % (len(_NONE_LEFT), _NONE_LEFT)
"""To whoever has waited for a descriptor in vain."""
FULL_S = 0.02
"""Seconds until the next try where there are as many sockets as may be."""
LULL_S = 0.25
"""Without a look for so long nobody has waited: there are looks while somebody does."""
_READ = 65_536
_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """The acceptor of one listening socket; only the event loop touches it."""

    def __init__(
        self,
        *,
        greet: Callable[[], asyncio.Protocol],
        taken: Callable[[], None],
        room: Callable[[], int],
        head_s: float,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            greet: makes the protocol of a client that has begun to speak.
            taken: is called when clients were taken in.
            room: how many sockets more there may be; those that are here count.
            head_s: who has said nothing for so long is closed.
        """
        self._greet = greet
        self._taken = taken
        self._room = room
        self._head_s = head_s
        self._clock = clock
        self._silent: dict[socket.socket, float] = {}
        """Since when each silent client is there; the oldest first."""
        self._heard = selectors.DefaultSelector()
        self._opening: set[asyncio.Task[None]] = set()
        self.bound: socket.socket | None = None
        """The listening socket; None before and after."""
        self._rest: asyncio.TimerHandle | None = None
        self._spare = SpareDescriptor()
        self._starved = False
        """There was no descriptor for somebody who may still wait."""
        self._full_s: tuple[float, float] | None = None
        """Since when there has been no room for who waits, and the last look; None: there was."""

    @property
    def num_opening(self) -> int:
        """Number of accepted clients whose connection is being made."""
        return len(self._opening)

    @property
    def num_silent(self) -> int:
        """Number of clients that have said nothing yet."""
        return len(self._silent)

    def start(self, bound: socket.socket) -> None:
        """Accept clients on a bound socket, from here on owned by this."""
        loop = asyncio.get_running_loop()
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self.bound = bound
        loop.add_reader(bound.fileno(), self._accept)
        loop.add_reader(self._fileno(), self._hand_over, ACCEPTED_AT_ONCE)

    async def stop(self) -> None:
        """Take in nobody from now on, and close who has said nothing; who has, is handed over."""
        if self.bound is None:
            return
        loop = asyncio.get_running_loop()
        bound, self.bound = self.bound, None
        if self._rest is None:
            loop.remove_reader(bound.fileno())
        else:
            self._rest.cancel()
        bound.close()
        loop.remove_reader(self._fileno())
        self._hand_over(len(self._silent))
        for client in list(self._silent):
            self._close(client)
        self._spare.close()
        self._heard.close()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def tick(self) -> None:
        """Cut clients that stay silent for too long. Called about once a second."""
        self._cut(len(self._silent), self._head_s)
        self._spare.restore()

    def thin_out(self, excess: int) -> int:
        """Close the oldest that have said nothing though they had time to, at most ``excess``;
        returns how many that were."""
        return self._cut(excess, SPEAK_S)

    def _cut(self, most: int, after_s: float) -> int:
        before = self._clock() - after_s
        if most <= 0 or not self._silent or next(iter(self._silent.values())) > before:
            return 0
        spoken = {key.fd for key, _ in self._heard.select(0)}
        old = takewhile(lambda pair: pair[1] <= before, self._silent.items())
        silent = (client for client, _ in old if client.fileno() not in spoken)
        gone = list(islice(silent, most))
        for client in gone:
            self._close(client)
        return len(gone)

    def _fileno(self) -> int:
        """The descriptor of epoll or kqueue."""
        return int(self._heard.fileno())

    def _accept(self) -> None:
        assert self.bound is not None
        now = self._clock()
        for _ in range(ACCEPTED_AT_ONCE):
            if self._room() <= len(self._opening) and not self._silent:
                self._full(now)
                break
            self._full_s = None
            try:
                client, _ = self.bound.accept()
            except (BlockingIOError, InterruptedError):
                self._starved = False
                break
            except OSError as error:
                if error.errno in _OUT_OF:  # ``DescriptorWatch`` says so
                    if self._starved:
                        self._turn_away()
                    self._starved = True
                    self._pause(REST_S)
                    break
                continue  # that client is gone
            client.setblocking(False)
            self._heard.register(client, selectors.EVENT_READ)
            self._silent[client] = now
            if self._room() < len(self._opening):
                self._cut(1, 0.0)  # who has said nothing goes, however short a time it had
        self._hand_over(ACCEPTED_AT_ONCE)
        self._taken()

    def _full(self, now: float) -> None:
        """Let them wait, for as long as a rest: a place may be given back in a moment."""
        since = now
        if self._full_s is not None and now - self._full_s[1] <= LULL_S:
            since = self._full_s[0]
        self._full_s = (since, now)
        if now - since >= REST_S:
            self._turn_away()
        self._pause(FULL_S)

    def _turn_away(self) -> None:
        """Tell who has waited for a rest that there is no descriptor, one after another, instead of
        letting them wait: among them may be the one that asks whether the server is ready."""
        assert self.bound is not None
        for _ in range(ACCEPTED_AT_ONCE):
            with self._spare.lent() as lent:
                if not lent:
                    return
                try:
                    client, _ = self.bound.accept()
                except OSError:
                    return
                with client:
                    _refuse(client)

    def _pause(self, rest_s: float) -> None:
        """The listening socket stays readable: without a rest the loop would do nothing else."""
        assert self.bound is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.bound.fileno())
        self._rest = loop.call_later(rest_s, self._go_on)

    def _go_on(self) -> None:
        self._rest = None
        if self.bound is not None:
            asyncio.get_running_loop().add_reader(self.bound.fileno(), self._accept)

    def _hand_over(self, most: int) -> None:
        """Give those that have begun to speak their protocols; who has to wait stays readable."""
        loop = asyncio.get_running_loop()
        for key, _ in self._heard.select(0)[:most]:
            client = key.fileobj
            assert isinstance(client, socket.socket)
            self._heard.unregister(client)
            del self._silent[client]
            task = loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has left already
            # asyncio does it only where the listening socket was made for TCP by name.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = list[asyncio.Protocol]()

        def greet() -> asyncio.Protocol:
            made.append(self._greet())
            return made[0]

        try:
            await asyncio.get_running_loop().connect_accepted_socket(greet, client)
        except Exception as error:
            log.exception("a client could not be taken in")
            client.close()
            for protocol in made:
                protocol.connection_lost(error)

    def _close(self, client: socket.socket) -> None:
        del self._silent[client]
        with contextlib.suppress(KeyError, ValueError):
            self._heard.unregister(client)
        client.close()


def _refuse(client: socket.socket) -> None:
    """What it has sent is read, so that closing does not take the answer away from it."""
    client.setblocking(False)
    with contextlib.suppress(OSError):
        client.recv(_READ)
    with contextlib.suppress(OSError):
        client.send(TURNED_AWAY)
        client.shutdown(socket.SHUT_WR)
