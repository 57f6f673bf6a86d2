"""One server as the SDK sees it: its address, its socket, and turns played to their end.

Opens the socket when a turn needs it, shares it among turns (``tools_api.sdk.lanes``), opens
another when it is gone, and sends lost turns again as ``Turn.recover`` says.

Always true: a turn is sent at most ``retries.tries`` times more; then the last error is
raised. A turn that is left before its end is cancelled on the server.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from copy import copy
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import orjson
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tools_api.exact_json import dumps, loads
from tools_api.items import Item
from tools_api.sdk.agent_spans import begin_turn, response_attributes
from tools_api.sdk.answers import StreamEvent
from tools_api.sdk.backoff import Retries
from tools_api.sdk.environment import KEY_VARIABLE, check_key
from tools_api.sdk.failures import ConnectionLost, Refused, TurnFailed
from tools_api.sdk.lanes import Lane, Lanes
from tools_api.sdk.transcript import items_of
from tools_api.sdk.transport import ClientSocket, Transport, WebTransport
from tools_api.sdk.turn import Again, Traits, Turn

_LOG = logging.getLogger("keepwarm.client")
TurnEvents = AsyncGenerator[StreamEvent, None]
SESSION_FIELD = "session"
"""The field of an address's query that names a session to a balancer."""
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_MAX_TOLD = 400
_NOBODY = "; does a server ('keepwarm serve') run at this address?"
_FOR_NOW = frozenset({429, 502, 503, 504})
"""Statuses after which the same may be asked again."""


class Endpoint:
    """Where the server is and how patient to be with it."""

    def __init__(
        self,
        base_url: str,
        *,
        label: str = "base_url",
        api_key: str | None = None,
        key_label: str = "api_key",
        open_timeout_s: float = 5.0,
        event_timeout_s: float = 600.0,
    ) -> None:
        """
        Args:
            base_url: as stock clients take it, e.g. ``http://127.0.0.1:8080/v1``.
            label, key_label: how whoever gave address and key knows them.

        Raises:
            ValueError: it is no address, or what is given as a key is none.
        """
        self._label = label
        scheme, separator, rest = base_url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ValueError(
                f"{label} {base_url!r} does not start with http://, https:// or ws: "
                "it is http://HOST:PORT/v1"
            )
        if not _has_host(base_url):
            raise ValueError(f"{label} {base_url!r} is not of the form http://HOST:PORT/v1")
        place, _, self._query = rest.partition("#")[0].partition("?")
        self._socket_place = f"{_SCHEMES[scheme]}://{place.rstrip('/')}/responses"
        plain = {"ws": "http", "wss": "https"}.get(scheme, scheme)
        self._http_place = f"{plain}://{place.rstrip('/')}"
        self._base_url = base_url.rstrip("/")
        self._usual_url = f"{scheme}://{rest.partition('/')[0]}/v1"
        check_key(api_key, key_label)
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.open_timeout_s = open_timeout_s
        self.event_timeout_s = event_timeout_s
        """Longest silence inside a turn before it counts as lost."""

    @property
    def url(self) -> str:
        """The socket's address."""
        return _with_query(self._socket_place, self._query)

    def http_url(self, path: str) -> str:
        """The address of a path below ``/v1``, which may have a query of its own."""
        joined = f"{path}{'&' if '?' in path else '?'}{self._query}" if self._query else path
        return f"{self._http_place}{joined}"

    def of_session(self, name: str) -> "Endpoint":
        """The same for the sockets of one session, by whose name a balancer finds its home."""
        other = copy(self)
        kept = [pair for pair in parse_qsl(self._query, True) if pair[0] != SESSION_FIELD]
        other._query = urlencode([*kept, (SESSION_FIELD, name)], quote_via=quote)
        return other

    def refused(self, error: Exception, *, final: bool) -> Refused | ConnectionLost:
        """The error for a failed handshake. ``final``: the server was never met."""
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            kind = "server_error" if status >= 500 else "invalid_request_error"
            hint = self._hint(status, _told(error.response.body))
            message = f"{self.url} refused the connection with HTTP {status}{hint}"
            return Refused(message, code=None, status=status, type=kind)
        said = str(error) or type(error).__name__
        if final:
            said += _NOBODY
        return ConnectionLost(f"cannot connect to {self.url}: {said}", started=False, final=final)

    def _hint(self, status: int, told: str) -> str:
        """The remedy for a refusal, with what the server said of it."""
        if status == 401:
            return f": the key is missing or wrong (api_key, or the variable {KEY_VARIABLE})"
        if status == 404 and self._base_url != self._usual_url:
            return f": {told} {self._label} is {self._base_url}; try {self._usual_url}"
        if told:
            return f": {told}"
        if status >= 500:
            return ""
        return f": no keepwarm server answers there; {self._label} is http://HOST:PORT/v1"

    def silent(self, turn: Turn) -> ConnectionLost:
        """The error to raise after ``event_timeout_s`` without an event."""
        return ConnectionLost(
            f"no event for {self.event_timeout_s:g} s", started=turn.started, final=True
        )


_OF_ANOTHER_PROCESS: list[object] = []
"""Kept, since the end of a socket would be told to its server."""


class OpenLanes:
    """The sockets of a connection: the present one, and those left to turns that still run. All of
    one event loop: a client that outlives its loop opens new ones in the next."""

    def __init__(self) -> None:
        self.lanes: Lanes | None = None
        self.retired: list[Lanes] = []
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._leaving: asyncio.Future[None] | None = None

    def opening(self) -> asyncio.Lock:
        """For whoever opens a socket in the running event loop. Those of a loop before it are
        forgotten: nobody reads them any more.

        Raises:
            RuntimeError: the other loop still runs, in another thread.
        """
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():  # a fork: its sockets are the other process's
            _OF_ANOTHER_PROCESS.append((self.lanes, *self.retired, self._loop))
            self._loop, self._process = None, os.getpid()
        if loop is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise RuntimeError(
                    "this AsyncClient is used in another event loop, which still runs: make one "
                    "for each loop, or use Client, which any thread may"
                )
            self.lanes, self._opening, self._loop = None, asyncio.Lock(), loop
            self.retired.clear()
        return self._opening

    async def close(self) -> None:
        """Close them, behind the cancels of turns that were left."""
        self.opening()
        for lanes in (*self.retired, self.lanes):
            if lanes is not None:
                await lanes.close()
        self.retired.clear()
        self.lanes = None

    def leave(self, done: Callable[[], None]) -> None:
        """Nobody will open another one: close them soon, and call ``done`` behind that. In any
        thread."""
        if self.lanes is None or self._loop is None or self._loop.is_closed():
            done()
        else:
            self._loop.call_soon_threadsafe(self._close_soon, done)

    def _close_soon(self, done: Callable[[], None]) -> None:
        self._leaving = asyncio.ensure_future(self.close())
        self._leaving.add_done_callback(lambda _: done())


class Connection:
    """The socket to one server and what was learnt of it."""

    def __init__(
        self,
        endpoint: Endpoint,
        retries: Retries,
        *,
        traits: Traits | None = None,
        transport: Transport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: random.Random | None = None,
    ) -> None:
        """
        Args:
            traits: learnt by other connections of the same client.
            transport: None: the network.
        """
        self.traits = traits or Traits()
        self._transport = transport or WebTransport()
        self._endpoint = endpoint
        self._retries = retries
        self._sleep = sleep
        self._draw = draw or random.Random()
        self.open_lanes = OpenLanes()

    def of_session(self, name: str) -> "Connection":
        """One more to the same server, for the sockets of a session."""
        return Connection(
            self._endpoint.of_session(name),
            self._retries,
            traits=self.traits,
            transport=self._transport,
            sleep=self._sleep,
            draw=self._draw,
        )

    async def close(self) -> None:
        """Close the socket, behind the cancels of turns that were left. It opens again when needed,
        by a turn that still runs as well."""
        await self.open_lanes.close()

    def items_of(self, response_id: str) -> AsyncGenerator[Item, None]:
        """The transcript up to a response, as ``transcript.items_of`` reads it."""
        return items_of(self.ask_patiently, response_id)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer over HTTP of a path below ``/v1``; POST where there is a body.

        Raises:
            Refused: the server refused it.
            ConnectionLost: it could not be reached, or broke off.
        """
        address, endpoint = self._endpoint.http_url(path), self._endpoint
        sent = None if body is None else dumps(body)
        timeout_s = endpoint.open_timeout_s * 6
        try:
            status, told = await self._transport.ask(
                address, endpoint.headers, sent, timeout_s=timeout_s
            )
        except OSError as error:
            doing, final = "read" if body is None else "reach", not self.traits.met
            said = f"cannot {doing} {address}: {error}{_NOBODY if final else ''}"
            raise ConnectionLost(said, started=False, final=final) from error
        if not 200 <= status < 300:
            self.traits.met = self.traits.met or bool(_told(told))
            raise _refusal(address, status, told)
        try:
            found: dict[str, Any] = loads(told)
        except ValueError as error:
            raise ConnectionLost(f"{address} answered with no JSON", started=False) from error
        self.traits.met = True
        return found

    async def ask_patiently(
        self, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``ask``, again and again while a server that was met is away or overloaded: for what
        may be said twice. Errors as for ``ask``."""
        tries = 0
        while True:
            try:
                return await self.ask(path, body)
            except (Refused, ConnectionLost) as error:
                if isinstance(error, ConnectionLost):
                    for_now = not error.final
                else:
                    for_now = error.status in _FOR_NOW
                if tries >= self._retries.tries or not for_now:
                    raise
                asked_s = getattr(error, "retry_after_s", None) or 0.0
                _LOG.info("asked again path=%s try=%d reason=%s", path, tries + 1, error)
            await self._sleep(max(self._retries.wait_s(tries, self._draw), asked_s))
            tries += 1

    async def play(self, turn: Turn) -> TurnEvents:
        """Play ``turn`` to its end. If the iterator is closed earlier, or the task cancelled,
        the server ends the turn, and its lane is free again after that.

        Raises:
            Refused, TurnFailed, ConnectionLost: there was no way to send it again, or too many.
        """
        turn.span = span = begin_turn(turn.span_above, turn.request)
        tries = waits = 0
        try:
            while True:
                try:
                    async with aclosing(self._attempt(turn)) as events:
                        async for event in events:
                            yield event
                    break
                except (Refused, TurnFailed, ConnectionLost) as error:
                    again = turn.recover(error) if tries < self._retries.tries else None
                    if again is None:
                        raise
                    asked_s, reason = getattr(error, "retry_after_s", None), str(error)
                tries += 1
                _LOG.info("turn sent again %s try=%d reason=%s", again.value, tries, reason)
                if span is not None:
                    span.tell("turn sent again", reason=reason)
                if again is Again.ON_A_NEW_SOCKET:
                    self._retire()
                elif again is Again.LATER:
                    wait_s = self._retries.wait_s(waits, self._draw)
                    waits += 1
                    await self._sleep(max(wait_s, asked_s or 0.0))
        except BaseException as error:
            if span is not None:
                span.end({}, error)
            raise
        if span is not None and turn.response is not None:
            span.end(response_attributes(turn.response))

    def _retire(self) -> None:
        """Leave the present socket to the turns that still run on it."""
        if self.open_lanes.lanes is not None:
            self.open_lanes.retired.append(self.open_lanes.lanes)
            self.open_lanes.lanes = None

    async def _attempt(self, turn: Turn) -> TurnEvents:
        lanes, lane = await self._take_lane()
        try:
            frame = turn.frame(lane.name, lanes)
        except BaseException:
            lanes.free(lane)
            raise
        try:
            lanes.post(frame)
            turn.steers.post = lanes.post
            turn.on_its_way(lambda: lanes.post(turn.cancel_frame(lane.name)))
            while not turn.over:
                async with asyncio.timeout(self._endpoint.event_timeout_s):
                    found = await lane.events.get()
                if isinstance(found, ConnectionClosed):
                    raise _lost(found, turn.started)
                for event in turn.receive(found):
                    yield event
        except TimeoutError:
            raise self._endpoint.silent(turn) from None
        finally:
            turn.cancel = turn.steers.post = None
            lanes.leave(lane, turn)

    async def _take_lane(self) -> tuple[Lanes, Lane]:
        while True:
            async with self.open_lanes.opening():
                lanes = self.open_lanes.lanes
                if lanes is None or lanes.closed:
                    self.open_lanes.lanes = lanes = Lanes(await self._open())
            if (lane := await lanes.take()) is not None:
                return lanes, lane

    async def _open(self) -> ClientSocket:
        endpoint = self._endpoint
        try:
            socket = await self._transport.open(
                endpoint.url, endpoint.headers, open_timeout_s=endpoint.open_timeout_s
            )
        except (OSError, InvalidHandshake) as error:
            raise endpoint.refused(error, final=not self.traits.met) from error
        _LOG.debug("connected url=%s again=%s", endpoint.url, self.traits.met)
        self.traits.met = True
        return socket


def _with_query(place: str, query: str) -> str:
    return f"{place}?{query}" if query else place


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _told(body: bytes | bytearray | None) -> str:
    """The message of an error of ours, in a line; nothing of anybody else's."""
    try:
        error = orjson.loads(body or b"")["error"]
        said = " ".join(str(error["message"]).split())
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""
    return said if len(said) <= _MAX_TOLD else said[: _MAX_TOLD - 3] + "..."


def _refusal(address: str, status: int, body: bytes) -> Refused:
    try:
        told = orjson.loads(body)["error"]
        message, code, param = str(told["message"]), told.get("code"), told.get("param")
        wait_ms = (told.get("keepwarm") or {}).get("retry_after_ms")
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        message, code, param = f"{address} answered with HTTP {status}", None, None
        wait_ms = None
    kind = "server_error" if status >= 500 else "invalid_request_error"
    refused = Refused(message, code=code, param=param, status=status, type=kind)
    refused.retry_after_s = None if wait_ms is None else wait_ms / 1000
    return refused


def _lost(closed: ConnectionClosed, started: bool) -> ConnectionLost:
    code = closed.rcvd.code if closed.rcvd else None
    return ConnectionLost(f"the connection closed: {closed}", started=started, close_code=code)
