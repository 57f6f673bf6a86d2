"""One socket of a scripted server, as a client holds it.

A frame goes to the server at once; what the server says waits here until it is read, in the event
loop of whoever opened the socket. Knows no turns.

Always true: what was said before a socket broke is read before the break is.
"""

import asyncio
from collections.abc import Callable

from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close


class ScriptedSocket:
    """See ``tools_api.sdk.transport.ClientSocket``."""

    def __init__(
        self,
        receive: "Callable[[ScriptedSocket, str], None]",
        left: "Callable[[ScriptedSocket], None]",
    ) -> None:
        """``receive`` takes a frame; ``left`` hears that the client has closed."""
        self._receive = receive
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[bytes | ConnectionClosed] = asyncio.Queue()
        self._closed: ConnectionClosed | None = None

    async def send(self, frame: str, /) -> None:
        """Hand a frame to the server."""
        if self._closed is not None:
            raise self._closed
        self._receive(self, frame)

    async def recv(self) -> bytes:
        """The next frame of the server."""
        said = await self._said.get()
        if isinstance(said, ConnectionClosed):
            self._said.put_nowait(said)  # for whoever reads on
            raise said
        return said

    async def close(self, code: int = 1000) -> None:
        """Close the socket."""
        if self._closed is None:
            self._close(ConnectionClosedOK(None, Close(code, ""), None))
            self._left(self)

    def deliver(self, frame: bytes) -> None:
        """Say something to the client, from any thread."""
        if self._closed is None:
            self._put(frame)

    def break_off(self, code: int | None) -> None:
        """The server is gone: without a word, or with a close code."""
        if self._closed is None:
            told = None if code is None else Close(code, "")
            self._close(ConnectionClosedError(told, None, None))

    def _close(self, closed: ConnectionClosed) -> None:
        self._closed = closed
        self._put(closed)

    def _put(self, said: bytes | ConnectionClosed) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._said.put_nowait, said)
