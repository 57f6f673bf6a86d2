"""Python client: an agent's sessions over one WebSocket, with only what is new on the wire.

A session is a chain of responses. It sends the id of its last response and the new items;
the server holds the rest. ``Client`` runs one turn at a time, ``AsyncClient`` many at once,
each in a lane of the same socket. What a turn is stands in ``tools_api.sdk.turn``; tools
are run by ``tools_api.sdk.tool_loop``.

Always true: after any exception a session stands where it stood, and the same call may be
made again: a broken socket is reopened, and a server that no longer knows the chain is sent
the whole history once. A turn that is left before its end is cancelled on the server.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

import orjson
from websockets.asyncio.client import ClientConnection as AsyncSocket
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State
from websockets.sync.client import ClientConnection as Socket
from websockets.sync.client import connect

from tools_api.errors import ApiError
from tools_api.items import CallOutput
from tools_api.sdk.lanes import Lane, Lanes
from tools_api.sdk.turn import (
    Chain,
    ConnectionLost,
    Input,
    Response,
    StreamEvent,
    Turn,
    TurnOptions,
    answers_cancel,
    ends_turn,
    wire_items,
)

DEFAULT_URL = "http://127.0.0.1:8080/v1"
"""Where ``keepwarm serve`` listens when nothing else is said."""
Events = Generator[StreamEvent, None, None]
AsyncEvents = AsyncGenerator[StreamEvent, None]
_CANCEL_S = 5.0
"""How long the end of a cancelled turn is waited for before its socket is closed instead."""


class Endpoint:
    """Where the server is and how patient to be with it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        open_timeout_s: float = 5.0,
        event_timeout_s: float = 600.0,
    ) -> None:
        """``base_url`` as stock clients take it, e.g. ``http://127.0.0.1:8080/v1``."""
        scheme, separator, rest = base_url.rstrip("/").partition("://")
        schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
        if not separator or scheme not in schemes:
            raise ValueError(f"base_url {base_url!r} does not start with http://, https:// or ws")
        self.url = f"{schemes[scheme]}://{rest}/responses"
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.open_timeout_s = open_timeout_s
        self.event_timeout_s = event_timeout_s
        """Longest silence inside a turn before it counts as lost."""

    def refused(self, error: Exception) -> ApiError | ConnectionLost:
        """What a failed handshake means."""
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            kind = "server_error" if status >= 500 else "invalid_request_error"
            message = f"{self.url} refused the connection with HTTP {status}"
            return ApiError(message, code=None, status=status, type=kind)
        return ConnectionLost(f"cannot connect to {self.url}: {error}", started=False)

    def silent(self, turn: Turn) -> ConnectionLost:
        """What to raise after ``event_timeout_s`` without an event."""
        return ConnectionLost(f"no event for {self.event_timeout_s:g} s", started=turn.started)


def _lost(closed: ConnectionClosed, started: bool) -> ConnectionLost:
    code = closed.rcvd.code if closed.rcvd else None
    return ConnectionLost(f"the connection closed: {closed}", started=started, close_code=code)


def _too_old(error: ApiError | ConnectionLost) -> bool:
    return isinstance(error, ApiError) and error.code == "websocket_connection_limit_reached"


class Client:
    """Synchronous client: one socket, one turn at a time; further threads wait."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        open_timeout_s: float = 5.0,
        event_timeout_s: float = 600.0,
    ) -> None:
        """Opens nothing yet; the first turn does. Arguments as for Endpoint."""
        self._endpoint = Endpoint(
            base_url,
            api_key=api_key,
            open_timeout_s=open_timeout_s,
            event_timeout_s=event_timeout_s,
        )
        self._socket: Socket | None = None
        self._turn_lock = threading.Lock()
        self._turn_owner: int | None = None

    def session(self, *, head: str | None = None, **defaults: Unpack[TurnOptions]) -> "Session":
        """A new session, or one that continues the response ``head``.

        Args:
            head: id of a response the server still holds. Its history is not known here, so
                it cannot be sent again if the server has lost it.
            defaults: options of every turn of the session.
        """
        return Session(self, Chain(defaults=defaults, head=head, complete=head is None))

    def close(self) -> None:
        """Close the socket. The client may be used again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, turn: Turn) -> Events:
        """Play ``turn`` to its end. Closing the iterator earlier cancels it."""
        if self._turn_owner == threading.get_ident():
            raise RuntimeError("a stream of this client is still open: finish or close it first")
        with self._turn_lock:
            self._turn_owner = threading.get_ident()
            try:
                sending = True
                while sending:
                    sending = False
                    try:
                        yield from self._attempt(turn)
                    except (ApiError, ConnectionLost) as error:
                        sending = turn.send_again(error)
                        if not sending:
                            raise
                        if _too_old(error):
                            self.close()
            finally:
                self._turn_owner = None

    def _attempt(self, turn: Turn) -> Events:
        socket = self._socket
        if socket is None or socket.protocol.state is not State.OPEN:
            socket = self._open()
        sent = False
        try:
            socket.send(turn.frame())
            sent = True
            while not turn.over:
                found = orjson.loads(socket.recv(timeout=self._endpoint.event_timeout_s))
                if answers_cancel(found):
                    continue
                if (event := turn.receive(found)) is not None:
                    yield event
        except ConnectionClosed as closed:
            raise _lost(closed, turn.started) from closed
        except TimeoutError:
            self.close()
            raise self._endpoint.silent(turn) from None
        finally:
            if not turn.over:
                self._cancel(socket, turn, sent=sent)

    def _cancel(self, socket: Socket, turn: Turn, *, sent: bool) -> None:
        """End ``turn`` on the server and read up to its last event, so that the socket can be
        used again. Where that fails it is closed, which ends the turn as well."""
        clean = False
        try:
            if sent and socket.protocol.state is State.OPEN:
                socket.send(turn.cancel_frame())
                patience_s = min(_CANCEL_S, self._endpoint.event_timeout_s)
                clean = _ends(socket, time.monotonic() + patience_s)
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            if not clean:
                self.close()

    def _open(self) -> Socket:
        endpoint = self._endpoint
        try:
            self._socket = connect(
                endpoint.url,
                additional_headers=endpoint.headers,
                open_timeout=endpoint.open_timeout_s,
                compression=None,
                max_size=None,
            )
        except (OSError, InvalidHandshake) as error:
            raise endpoint.refused(error) from error
        return self._socket


def _ends(socket: Socket, until: float) -> bool:
    """Read up to a turn's last event; TimeoutError if it does not come in time."""
    while True:
        event = orjson.loads(socket.recv(timeout=max(until - time.monotonic(), 0)))
        if ends_turn(event):
            return True


class Session:
    """A chain of responses over a ``Client``. Made by ``Client.session``."""

    def __init__(self, client: Client, chain: Chain) -> None:
        self._client = client
        self._chain = chain

    @property
    def head(self) -> str | None:
        """Id of the last response, None before the first."""
        return self._chain.head

    def respond(self, input: Input, **options: Unpack[TurnOptions]) -> Response:
        """Run one turn; ``input`` is only what is new.

        Raises:
            ApiError: the server refused the request before it started.
            TurnFailed: the turn failed; ``rate_limit_exceeded`` = the budget is spent.
            ConnectionLost: nothing is known of the turn's end.
        """
        return _last(self.stream(input, **options))

    def stream(self, input: Input, **options: Unpack[TurnOptions]) -> Events:
        """Run one turn and yield what it gives; the Response comes last. Errors as respond."""
        return self._client.run(Turn(self._chain, input, options))

    def warm(self, input: Input = (), **options: Unpack[TurnOptions]) -> Response:
        """Prefill header and ``input`` without generating; the session moves on."""
        return _last(self._client.run(Turn(self._chain, input, options, generate=False)))

    def owe(self, outputs: Sequence[CallOutput]) -> None:
        """Answer calls with the next turn, in front of its input."""
        self._chain.owed += wire_items(outputs)

    def fork(self) -> "Session":
        """A second session that shares everything up to here."""
        return Session(self._client, self._chain.fork())


def _last(events: Events) -> Response:
    *_, last = events
    assert isinstance(last, Response)
    return last


class AsyncClient:
    """Asynchronous client: one socket, up to ``NUM_LANES`` turns at once."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        open_timeout_s: float = 5.0,
        event_timeout_s: float = 600.0,
    ) -> None:
        """Opens nothing yet; the first turn does. Arguments as for Endpoint."""
        self._endpoint = Endpoint(
            base_url,
            api_key=api_key,
            open_timeout_s=open_timeout_s,
            event_timeout_s=event_timeout_s,
        )
        self._lanes: Lanes | None = None
        self._retired: list[Lanes] = []
        self._opening = asyncio.Lock()

    def session(
        self, *, head: str | None = None, **defaults: Unpack[TurnOptions]
    ) -> "AsyncSession":
        """As ``Client.session``."""
        return AsyncSession(self, Chain(defaults=defaults, head=head, complete=head is None))

    async def close(self) -> None:
        """Close the socket, which cancels all running turns. The client may be used again."""
        for lanes in (*self._retired, self._lanes):
            if lanes is not None:
                await lanes.close()
        self._retired.clear()
        self._lanes = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, turn: Turn) -> AsyncEvents:
        """Play ``turn`` to its end. If the iterator is closed earlier, or the task cancelled, the
        server ends the turn, and its lane is free again after that."""
        sending = True
        while sending:
            sending = False
            try:
                async with aclosing(self._attempt(turn)) as events:
                    async for event in events:
                        yield event
            except (ApiError, ConnectionLost) as error:
                sending = turn.send_again(error)
                if not sending:
                    raise
                if _too_old(error) and self._lanes is not None:
                    self._retired.append(self._lanes)
                    self._lanes = None

    async def _attempt(self, turn: Turn) -> AsyncEvents:
        lanes, lane = await self._take_lane()
        try:
            lanes.post(turn.frame(lane.name))
            while not turn.over:
                async with asyncio.timeout(self._endpoint.event_timeout_s):
                    found = await lane.events.get()
                if isinstance(found, ConnectionClosed):
                    raise _lost(found, turn.started)
                if (event := turn.receive(found)) is not None:
                    yield event
        except TimeoutError:
            raise self._endpoint.silent(turn) from None
        finally:
            lanes.leave(lane, turn)

    async def _take_lane(self) -> tuple[Lanes, Lane]:
        while True:
            async with self._opening:
                if self._lanes is None or self._lanes.closed:
                    self._lanes = Lanes(await self._open())
            lanes = self._lanes
            if (lane := await lanes.take()) is not None:
                return lanes, lane

    async def _open(self) -> AsyncSocket:
        endpoint = self._endpoint
        try:
            return await connect_async(
                endpoint.url,
                additional_headers=endpoint.headers,
                open_timeout=endpoint.open_timeout_s,
                compression=None,
                max_size=None,
            )
        except (OSError, InvalidHandshake) as error:
            raise endpoint.refused(error) from error


class AsyncSession:
    """A chain of responses over an ``AsyncClient``. Made by ``AsyncClient.session``."""

    def __init__(self, client: AsyncClient, chain: Chain) -> None:
        self._client = client
        self._chain = chain

    @property
    def head(self) -> str | None:
        """Id of the last response, None before the first."""
        return self._chain.head

    async def respond(self, input: Input, **options: Unpack[TurnOptions]) -> Response:
        """Run one turn; ``input`` is only what is new. Raises as ``Session.respond``."""
        return await self._last(Turn(self._chain, input, options))

    def stream(self, input: Input, **options: Unpack[TurnOptions]) -> AsyncEvents:
        """Run one turn and yield what it gives; the Response comes last."""
        return self._client.run(Turn(self._chain, input, options))

    async def warm(self, input: Input = (), **options: Unpack[TurnOptions]) -> Response:
        """Prefill header and ``input`` without generating; the session moves on."""
        return await self._last(Turn(self._chain, input, options, generate=False))

    def owe(self, outputs: Sequence[CallOutput]) -> None:
        """Answer calls with the next turn, in front of its input."""
        self._chain.owed += wire_items(outputs)

    def fork(self) -> "AsyncSession":
        """A second session that shares everything up to here."""
        return AsyncSession(self._client, self._chain.fork())

    async def _last(self, turn: Turn) -> Response:
        async with aclosing(self._client.run(turn)) as events:
            *_, last = [event async for event in events]
        assert isinstance(last, Response)
        return last
