"""The one place where messages change hands between clients' connections and the engine.

Connections are sans-I/O: each call returns ``Effects``, and this module carries them out.
Frames go to the client's outlet, one delivery per client for up to ``AT_ONCE`` outputs of an engine
step; sockets are served before the next ones are taken, however many sequences ran. Requests
gather in an outbox that is emptied once per turn of the event loop; outputs of the engine
find their connection by request id. It also outlives the engine: if that dies, every open
turn is told and a fresh one is started.

Always true: a request id has a route from the moment it is handed over until its finish has
been passed on; an exception in one connection ends that connection alone.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import orjson
from websockets.frames import CloseCode

from runtime.messages import (
    CancelRequest,
    EngineInfo,
    EngineMessage,
    ErrorKind,
    GenerationRequest,
    SequenceOutput,
    StepOutput,
)
from runtime.process.engine_process import EngineDied, EngineLink, EngineStartError
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from sessions.ground import DRAINING, ENGINE
from sessions.journal.writer import Ticket, Verdict
from sessions.pages.dashboard import Dashboard
from sessions.pages.metrics import Metrics
from sessions.pages.watcher import Watcher
from sessions.turns.connection import Connection
from sessions.turns.effects import Effects, SessionGranted, TurnCancel, TurnChanged
from sessions.turns.reading import Read
from sessions.turns.turn import Turn
from sessions.wire.errands import Errands, LongWork
from sessions.wire.links import NOBODY, Call, Link, Outlet

log = logging.getLogger(__name__)

SWEEP_EVERY_TICKS = 5
STEADY_S = 30.0
"""An engine that died sooner than this after its start is replaced with growing pauses."""
MAX_PAUSE_S = 30.0
AT_ONCE = 16
"""Outputs of a step, or sessions to be settled, that are taken before sockets are served again:
some milliseconds."""

_ERROR_EVENT = b'{"type":"error"'


@dataclass(slots=True, eq=False)
class _Route:
    link: Link
    tokens_at: float | None = None
    """When this turn last got tokens."""


Connect = Callable[[str, Tenant], Connection]
"""Makes the connection for (connection id, tenant)."""


class Hub:
    """All of it runs in one event loop; only ``run`` waits, and what ``Errands`` do."""

    def __init__(
        self,
        *,
        engine: EngineLink,
        store: Store,
        connect: Connect,
        long_work: LongWork,
        metrics: Metrics,
        dashboard: Dashboard,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            engine: started already; ``engine_ready`` says with which result.
            connect: makes the connections of those who bring none of their own kind.
            clock: monotonic seconds.
            pause: waits that many seconds; between attempts to restart the engine.
        """
        self._engine = engine
        self._store = store
        self._connect = connect
        self._metrics = metrics
        self.dashboard = dashboard
        self._watchers: list[Watcher] = [metrics, dashboard]
        self._clock = clock
        self._pause = pause
        self.reading = long_work.reading
        self._errands = Errands(long_work, run=self._run, metrics=metrics, clock=clock)
        self.beside = self._errands.beside
        """Makes a call that takes long beside the event loop, when it is the tenant's turn."""
        self._links: dict[str, Link] = {}
        self._left_running: dict[str, Link] = {}
        """Links of clients that are gone, while turns of theirs go on."""
        self._routes: dict[str, _Route] = {}
        self._outbox: list[EngineMessage] = []
        self._flush_due = False
        self._ready_since: float | None = None
        self._quiet: asyncio.Event | None = None
        self._numbers = itertools.count(1)
        self._ticks = 0
        self._awaited: dict[str, list[asyncio.Future[bytes]]] = {}
        """Futures for the terminal event of a response, by its id."""
        self.journal = long_work.journal
        self.ground = long_work.ground
        starting, ending = "the engine is starting", "the server is shutting down"
        self.ground.stands_on(ENGINE, lambda: starting if self._ready_since is None else None)
        self.leaving = False
        """Whether it is about to drain: balancers are to send nobody, and whoever comes is
        served."""
        self.ground.stands_on(DRAINING, lambda: ending if self.draining or self.leaving else None)
        if self.journal is not None:
            self.journal.start(self._committed, dashboard.samples, metrics.turn_cut_short)

    @property
    def ready(self) -> bool:
        """The engine is up and new connections are welcome."""
        return self._ready_since is not None and self._quiet is None

    @property
    def draining(self) -> bool:
        return self._quiet is not None

    @property
    def num_connections(self) -> int:
        return len(self._links)

    def engine_ready(self, info: EngineInfo) -> None:
        """The engine has started; what gathered in the outbox goes to it."""
        self._ready_since = self._clock()
        for watcher in self._watchers:
            watcher.engine_ready(info)
        self._schedule_flush()

    def watch(self, watcher: Watcher) -> None:
        """Tell one more watcher of what happens from now on."""
        self._watchers.append(watcher)

    # What a socket calls.

    def open(
        self,
        tenant: str,
        outlet: Outlet,
        connect: Connect | None = None,
        *,
        key_name: str = "",
        request_id: str = "",
    ) -> Link:
        """A client of ``tenant`` has connected, with a key of that name; its frames go to
        ``outlet``. ``request_id``: what the log calls the HTTP request by which it did."""
        connection_id = f"conn_{next(self._numbers)}"
        whose = self._store.tenant(tenant)
        connection = (connect or self._connect)(connection_id, whose)
        connection.identify(key_name, request_id)
        link = Link(connection_id, whose, connection, outlet)
        self._links[connection_id] = link
        self._metrics.connection_opened()
        log.info(
            "connection opened connection=%s tenant=%s x_request_id=%s",
            *(connection_id, tenant, request_id or None),
        )
        return link

    def receive(self, link: Link, frame: str | bytes) -> None:
        """Take one frame of a client."""
        if not link.gone:
            self._run([(link, partial(link.connection.receive, frame))])

    def receive_parsed(self, link: Link, read: Read, num_bytes: int) -> None:
        """Take a frame or body of a client that has been read."""
        if not link.gone:
            self._run([(link, partial(link.connection.receive_parsed, read, num_bytes))])

    def running(self, tenant: str, response_id: str) -> tuple[Link, Turn] | None:
        """The turn of that response while it runs, on whichever of the tenant's connections."""
        link = self._linked(self._store.running.connection_of(tenant, response_id) or "")
        turn = None if link is None else link.connection.running(response_id)
        return None if link is None or turn is None else (link, turn)

    def cancel(self, tenant: str, response_id: str) -> asyncio.Future[bytes] | None:
        """End a turn of the tenant. Returns its terminal event to come, which its own client
        gets as well: it is there at once unless it waits for the journal. None: no such turn
        runs."""
        link = self._linked(self._store.running.connection_of(tenant, response_id) or "")
        if link is None:
            return None
        terminal: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(response_id, []).append(terminal)
        self._run([(link, partial(link.connection.cancel, response_id))])
        return terminal

    def _linked(self, connection_id: str) -> Link | None:
        return self._links.get(connection_id) or self._left_running.get(connection_id)

    def disconnected(self, link: Link) -> None:
        """The client is gone, or its socket is closing. May be called again."""
        if link.gone:
            return
        link.gone = True
        self._left_running[link.id] = self._links.pop(link.id)
        self._metrics.connection_gone()
        log.info("connection closed connection=%s", link.id)
        self._run([(link, link.connection.close)])
        link.outlet = NOBODY  # so that a socket and its link do not keep each other

    def tick(self) -> None:
        """Let time pass: connections grow old, the store drops what expired. Once a second."""
        self._run([(link, link.connection.tick) for link in self._links.values()])
        self.dashboard.tick()
        self._post(self.dashboard.pictures.pop_requests())
        self._ticks += 1
        if self._ticks % SWEEP_EVERY_TICKS == 0:
            self._post(self._store.sweep())

    # What the engine says.

    async def run(self) -> None:
        """Carry the engine's outputs to the connections until cancelled."""
        while True:
            try:
                step = await self._engine.receive()
            except EngineDied as died:
                await self._replace_engine(died)
            else:
                try:
                    await self._take_step(step)
                except Exception as error:
                    log.exception("output of a step cannot be taken")
                    reason = f"its output cannot be taken: {type(error).__name__}"
                    await self._replace_engine(EngineDied(reason))
                # Outputs that wait already would otherwise keep sockets from being served.
                await asyncio.sleep(0)

    async def _take_step(self, step: StepOutput) -> None:
        now = self._clock()
        if step.residency:
            told = self._store.residents.told(step.residency)
            self._metrics.kv_dropped(len(told.drops))
            self._post(told.drops)
            await self._settle(told.ended)
        for picture in step.pictures:
            self.dashboard.pictures.arrived(picture)
        for watcher in self._watchers:
            watcher.step_finished(step.stats)
        for begin in range(0, len(step.outputs), AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            self._take_outputs(step.outputs[begin : begin + AT_ONCE], now)

    def _take_outputs(self, outputs: Sequence[SequenceOutput], now: float) -> None:
        calls: list[Call] = []
        for output in outputs:
            route = self._routes.get(output.request_id)
            if route is None:
                continue  # its connection failed and was expelled
            self._note_tokens(route, output, now)
            if output.finish is not None:
                del self._routes[output.request_id]
                if output.error is ErrorKind.GRAMMAR:
                    self._metrics.grammar_gave_up()
            calls.append((route.link, partial(route.link.connection.output, output)))
        self._run(calls)

    async def _settle(self, sessions: Iterable[Session]) -> None:
        """Record what the KV of sessions was charged in which no turn runs."""
        for number, session in enumerate(sessions, 1):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if session.in_use:
                continue  # since then: that turn records it
            unsettled = session.ledger.settle_residency()
            if unsettled.block_us:
                for watcher in self._watchers:
                    watcher.residency_settled(session.tenant, unsettled)
                if self.journal is not None:
                    self.journal.settle(session, unsettled)

    def _note_tokens(self, route: _Route, output: SequenceOutput, now: float) -> None:
        if not len(output.new_tokens):
            return
        gap_s = None if route.tokens_at is None else now - route.tokens_at
        for watcher in self._watchers:
            watcher.tokens_arrived(route.link.tenant.name, len(output.new_tokens), gap_s)
        route.tokens_at = now

    async def _replace_engine(self, died: EngineDied) -> None:
        log.error("engine died, starting another reason=%s", died)
        since, self._ready_since = self._ready_since, None
        for watcher in self._watchers:
            watcher.engine_died()
        steady = since is not None and self._clock() - since >= STEADY_S
        pause_s = 0.0 if steady else 1.0
        while True:
            await self._settle(self._fail_all_turns())
            await self._pause(pause_s)
            try:
                info = await self._engine.restart()
            except (EngineStartError, OSError) as error:
                pause_s = min(max(2 * pause_s, 1.0), MAX_PAUSE_S)
                log.error("engine did not start retry_s=%g reason=%s", pause_s, error)
            else:
                break
        for watcher in self._watchers:
            watcher.engine_restarted()
        self.engine_ready(info)

    def _fail_all_turns(self) -> list[Session]:
        """Returns sessions that have something to record."""
        links = {route.link: None for route in self._routes.values()}
        links |= dict.fromkeys(self._all_links())
        self._routes.clear()
        self._outbox.clear()
        self._store.engine_lost()
        lost = self._store.residents.engine_lost()
        self._run([(link, link.connection.engine_died) for link in links])
        return lost

    # The end.

    async def drain(self, timeout_s: float) -> None:
        """Let running turns finish, at most ``timeout_s``; then close everyone with 1012."""
        self._quiet = asyncio.Event()
        if self.journal is not None:
            self.journal.drain()
        self._run([(link, link.connection.drain) for link in self._all_links()])
        try:
            await asyncio.wait_for(self._quiet.wait(), timeout_s)
        except TimeoutError:
            log.warning("turns outlast the drain time and fail turns=%d", len(self._routes))
            self._run([(link, link.connection.engine_died) for link in self._all_links()])
        for link in list(self._links.values()):
            link.outlet.deliver((), CloseCode.SERVICE_RESTART)
        await self._settle(self._store.residents.closing())

    def _note_quiet(self) -> None:
        assert self._quiet is not None
        if not any(link.connection.num_active for link in self._all_links()):
            self._quiet.set()

    # Carrying out effects.

    def _run(self, calls: Iterable[Call]) -> None:
        """Make the calls and those they lead to, then deliver once per client."""
        frames: dict[Link, list[bytes]] = {}
        closes: dict[Link, int] = {}
        pending = deque(calls)
        while pending:
            link, call = pending.popleft()
            try:
                effects = call()
            except Exception:
                log.exception("connection failed and is closed connection=%s", link.id)
                self._expel(link)
                self._left_running.pop(link.id, None)
                closes[link] = CloseCode.INTERNAL_ERROR
                continue
            self._take_effects(link, effects)
            frames.setdefault(link, []).extend(effects.frames)
            if effects.close is not None:
                closes[link] = effects.close
            if effects.others:
                pending.extend(self._calls_to_others(effects))
        for link in dict.fromkeys((*frames, *closes)):
            if not link.gone and (frames.get(link) or link in closes):
                link.outlet.deliver(frames.get(link, ()), closes.get(link))
            if link.gone and not link.connection.num_active:
                self._left_running.pop(link.id, None)
        if self._quiet is not None:
            self._note_quiet()

    def _calls_to_others(self, effects: Effects) -> Iterator[Call]:
        """The calls on connections that one connection's effects lead to."""
        for other in effects.others:
            link = self._linked(other.connection_id)
            if link is None:
                continue
            match other:
                case SessionGranted():
                    yield link, partial(link.connection.answer, other.question_id, None)
                case TurnCancel():
                    yield link, partial(link.connection.cancel, other.response_id)
                case TurnChanged():
                    yield link, partial(link.connection.turn_changed, other.log)

    @property
    def errands(self) -> Errands:
        """The answers to connections' questions that are under way."""
        return self._errands

    @property
    def links(self) -> list[Link]:
        """Links of clients that are there."""
        return list(self._links.values())

    @property
    def left_running(self) -> list[Link]:
        """Links of clients that are gone, while turns of theirs go on."""
        return list(self._left_running.values())

    @property
    def held(self) -> list[object]:
        """All that is kept for turns at the engine: nothing is left once they have ended."""
        return [*self._left_running, *self._routes, *self._awaited, *self._outbox]

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *self._left_running.values()]

    def _take_effects(self, link: Link, effects: Effects) -> None:
        for message in effects.requests:
            if isinstance(message, GenerationRequest):
                self._routes[message.request_id] = _Route(link)
        self._post(effects.requests)
        self._errands.run(link, effects)
        for ended in effects.ended:
            report = ended.report
            for waiting in self._awaited.pop(report.response_id, ()):
                if not waiting.done():
                    waiting.set_result(ended.terminal)
            for watcher in self._watchers:
                watcher.turn_finished(report)
        for frame in effects.frames:
            if frame.startswith(_ERROR_EVENT):
                code = orjson.loads(frame)["error"]["code"]
                for watcher in self._watchers:
                    watcher.error_sent(link.tenant.name, code)

    def _expel(self, link: Link) -> None:
        """Forget a connection whose own state can no longer be trusted."""
        mine = [id_ for id_, route in self._routes.items() if route.link is link]
        for request_id in mine:
            del self._routes[request_id]
        self._post([CancelRequest(request_id=request_id) for request_id in mine])

    def _committed(self, pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
        """The verdicts on the records of one commit have come."""
        calls: list[Call] = []
        for ticket, verdict in pairs:
            if ticket.key is not None:  # else it is no turn's
                link, question_id = cast(tuple[Link, str], ticket.key)
                calls.append((link, partial(link.connection.answer, question_id, verdict)))
        self._run(calls)

    def _post(self, messages: Sequence[EngineMessage]) -> None:
        if messages:
            self._outbox.extend(messages)
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._ready_since is None or not self._outbox:
            return
        messages, self._outbox = self._outbox, []
        self._engine.send(messages)
