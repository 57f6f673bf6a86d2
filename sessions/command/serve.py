"""``keepwarm serve``: wiring, and serving until told to stop.

The only place where engine, sessions and sockets are put together. Prints one line to
standard output, when the server is ready; everything else is log and goes to standard error.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from runtime.collection import WholeCollections, collect_when_quiet, keep_short
from runtime.grammar.probe import GrammarProbe
from runtime.grammar.probe_child import ProbeError
from runtime.heap_free import heap_free_bytes
from runtime.log_lines import LogFormat
from runtime.logs import log_to_stderr
from runtime.messages import EngineInfo
from runtime.process.engine_process import EngineProcess, EngineStartError, engine_command
from runtime.tokenizer import TokenizerError
from sessions.command.beforehand import (
    Beforehand,
    at_once,
    identity_of,
    loaded_first,
    names_of,
    place,
)
from sessions.command.cluster_options import join
from sessions.command.journal_options import with_journal
from sessions.command.options import ServeOptions
from sessions.command.prices import check_budgets
from sessions.command.reload import reload_tenants
from sessions.command.settings import OptionError
from sessions.command.tracing import Tracing
from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.fair_slots import FairSlots
from sessions.ground import JOURNAL, READER
from sessions.http.front_door import OriginPolicy
from sessions.journal.errors import JournalError
from sessions.journal.sqlite_memory import sqlite_bytes
from sessions.pages.dashboard import Dashboard
from sessions.pages.metrics import Metrics
from sessions.pages.recorder import Recorder
from sessions.tenants import Tenants
from sessions.turns.connection import Connection
from sessions.turns.service import ServedModel, Service, unguessable_id
from sessions.wire.descriptors import raise_limit, within
from sessions.wire.errands import LongWork
from sessions.wire.fair_reading import CpuAllowance, Reading, TenantTurns
from sessions.wire.http_api import HttpApi
from sessions.wire.hub import Hub
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.member_load import LoadReader
from sessions.wire.read_process import ReadConfig, ReadProcess
from sessions.wire.server import Server, routes
from sessions.wire.standing import Standing
from tools_api.limits import DEFAULT_LIMITS
from tools_api.version import __version__

try:
    import uvloop
except ImportError:  # there is none for this platform
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

log = logging.getLogger(__name__)

_PLANNERS = 2
"""Long prompts that are tokenised at once: one that takes seconds does not hold up all others."""
_PROBES = 2
"""Processes that try grammars, each one grammar at a time."""
_START_ERRORS = (JournalError, OptionError, EngineStartError, ProbeError, TokenizerError)


def run(options: ServeOptions, explain: Callable[[str], str], warnings: Iterable[str] = ()) -> int:
    """Serve until told to stop; returns the exit status.

    Args:
        explain: puts an engine's complaint into the words of whoever gave the options.
        warnings: what of the options has no effect, for the log.
    """
    _configure_logging(options.log_level, options.log_format)
    for warning in warnings:
        log.warning("%s", warning)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(serve(options))
    except _START_ERRORS as error:
        log.debug("start failed", exc_info=True)
        print(f"keepwarm: error: {explain(str(error))}", file=sys.stderr)
        return 1


async def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT, then let running turns finish; returns the exit status.

    A signal before the server is ready, or a second one, ends it without waiting.

    Raises:
        one of _START_ERRORS: the server did not start; the message is for people.
    """
    ready, stopping = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    serving = loop.create_task(serve_until(options, ready, stopping))

    def on_signal() -> None:
        if stopping.is_set() or not ready.is_set():
            serving.cancel()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await serving
    except asyncio.CancelledError:
        return 1 if ready.is_set() else 0
    return 0


async def serve_until(options: ServeOptions, ready: asyncio.Event, stopping: asyncio.Event) -> None:
    hangup = _noting_hangups(options)
    async with contextlib.AsyncExitStack() as cleanup:
        # First of all, so that what needs no model is told before one is loaded.
        bound = cleanup.enter_context(place(options))
        before = at_once(options, cleanup)
        standing = await _standing(options, before, bound, cleanup)
        tracing = _tracing(options, cleanup)
        engine = _engine(options, before)
        cleanup.push_async_callback(engine.stop)
        info = await engine.start()
        if before is None:
            before = loaded_first(options, info, cleanup)
            standing = await _standing(options, before, bound, cleanup)
        probe = await _start_probe(info, before.speech.description, cleanup)
        tenants = Tenants(options.tenants.keys, options.tenants.policies)
        service = _service(options, info, tenants, before)
        service, desk = with_journal(
            before.journal, options.journal, before.fingerprint, service, standing
        )
        if desk is not None:
            cleanup.push_async_callback(desk.close)
        reader = await _start_reader(info, service, before.speech.description, cleanup)
        metrics = _metrics(desk, tenants)
        hub, server = _assemble(
            options,
            info=info,
            service=service,
            engine=engine,
            probe=probe,
            reader=reader,
            planners=_planners(cleanup),
            tenants=tenants,
            metrics=metrics,
            desk=desk,
        )
        _reload_on_hangup(options, before.prices, tenants, server, hangup)
        if tracing is not None:
            tracing.follow(hub, metrics)
        hub_task = asyncio.get_running_loop().create_task(hub.run())
        cleanup.callback(hub_task.cancel)
        address = _address(bound)
        await server.start(bound)
        _serves(standing, hub, service.clock)
        cleanup.callback(_collecting(service).cancel)
        print(ready_line(address, info), flush=True)
        ready.set()
        await _until(stopping, hub_task)
        if standing is not None and desk is not None and desk.sharing is not None:
            hub.leaving = True
            await standing.leave(desk.sharing.look)
        log.info("stopping drain_s=%g connections=%d", options.drain_s, hub.num_connections)
        await server.stop(options.drain_s)


def _tracing(options: ServeOptions, cleanup: contextlib.AsyncExitStack) -> Tracing | None:
    if options.otlp_traces is None:
        return None
    return cleanup.enter_context(contextlib.closing(Tracing(options.otlp_traces)))


def _planners(cleanup: contextlib.AsyncExitStack) -> ThreadPoolExecutor:
    planners = ThreadPoolExecutor(max_workers=_PLANNERS, thread_name_prefix="planner")
    cleanup.callback(planners.shutdown, wait=False, cancel_futures=True)
    return planners


async def _standing(
    options: ServeOptions,
    before: Beforehand | None,
    bound: socket.socket,
    cleanup: contextlib.AsyncExitStack,
) -> Standing | None:
    """Become a member of the cluster as soon as it is known what is served; None: not yet, or
    there is none."""
    if before is None:
        return None
    identity = "" if options.cluster is None else identity_of(options, before.fingerprint)
    standing = await join(options.cluster, before.journal, identity=identity, bound=bound)
    if standing is not None:
        cleanup.push_async_callback(standing.close)
    return standing


def _serves(standing: Standing | None, hub: Hub, clock: Callable[[], float]) -> None:
    """Tell the cluster, where there is one, from now on whether the server is ready. The journal
    does not count: where it is away nobody hears that either, and when it is back no server is to
    be taken for one that is not ready."""
    if standing is None:
        return

    def ready() -> bool:
        hub.ground.look()
        return hub.ready and not hub.ground.reasons.keys() - {JOURNAL}

    figures = LoadReader(hub.dashboard, lambda: hub.num_connections, clock)
    standing.serves(engine_ready=ready, load=figures.read)


def _collecting(service: Service) -> "asyncio.Task[None]":
    keep_short()
    collections = WholeCollections(service.clock)
    return asyncio.get_running_loop().create_task(
        collect_when_quiet(lambda: len(service.store.running) > 0, collections)
    )


def _engine(options: ServeOptions, before: Beforehand | None) -> EngineProcess:
    config = options.engine
    if before is not None:
        config = replace(config, chat_format=before.speech.description)
    return EngineProcess(config, command=engine_command(options.log_format))


async def _until(stopping: asyncio.Event, hub_task: asyncio.Task[None]) -> None:
    """Wait until the server is told to stop. Raises what the hub ended with, if it did."""
    told = asyncio.get_running_loop().create_task(stopping.wait())
    await asyncio.wait({told, hub_task}, return_when=asyncio.FIRST_COMPLETED)
    if hub_task.done():
        hub_task.result()


def _service(
    options: ServeOptions, info: EngineInfo, tenants: Tenants, before: Beforehand
) -> Service:
    clock, prices = time.monotonic, before.prices
    limits = within(DEFAULT_LIMITS, raise_limit())
    limits = replace(limits, default_output_tokens=options.default_output_tokens)
    store = Store(
        limits=limits,
        prices=prices,
        clock=clock,
        tenants=tenants,
        cluster=None if options.cluster is None else options.cluster.name,
    )
    return Service(
        model=_served_model(options, info, before),
        store=store,
        limits=limits,
        clock=clock,
        wall_clock=time.time,
        new_id=unguessable_id,
        label_sources=options.label_sources,
    )


async def _start_probe(
    info: EngineInfo, chat_format: str | None, cleanup: contextlib.AsyncExitStack
) -> GrammarProbe:
    probe = GrammarProbe(
        Path(info.tokenizer_folder),
        vocab_size=info.vocab_size,
        model_type=info.model_type,
        chat_format=chat_format,
        num_processes=_PROBES,
        places=FairSlots(_PROBES),
    )
    cleanup.push_async_callback(probe.stop)
    await probe.start()
    return probe


def _metrics(desk: JournalDesk | None, tenants: Tenants) -> Metrics:
    """At the start of a life: with what the one before was cut short in."""
    metrics = Metrics()
    metrics.tenants.names = lambda: tenants.names
    if desk is not None:
        metrics.watch_journal(lambda: desk.damaged)
        for record in desk.left:
            metrics.turn_cut_short(record)
    return metrics


async def _start_reader(
    info: EngineInfo,
    service: Service,
    chat_format: str | None,
    cleanup: contextlib.AsyncExitStack,
) -> ReadProcess:
    config = ReadConfig(
        limits=service.limits,
        models=service.model.told_to_all,
        model_type=info.model_type,
        specials=frozenset(service.model.tokenizer.specials),
        chat_format=chat_format,
    )
    reader = ReadProcess(config)
    cleanup.push_async_callback(reader.stop)
    await reader.start()
    return reader


def _reading(service: Service, reader: ReadProcess) -> Reading:
    limits = service.limits
    return Reading(
        read=reader.read,
        slots=FairSlots(1),
        allowance=CpuAllowance(
            share=limits.read_cpu_share, burst_s=limits.read_cpu_burst_s, clock=service.clock
        ),
        turns=TenantTurns(),
        max_inline_bytes=limits.max_inline_bytes,
        clock=service.clock,
    )


def _assemble(
    options: ServeOptions,
    *,
    info: EngineInfo,
    service: Service,
    engine: EngineProcess,
    probe: GrammarProbe,
    reader: ReadProcess,
    planners: Executor,
    tenants: Tenants,
    metrics: Metrics,
    desk: JournalDesk | None,
) -> tuple[Hub, Server]:
    clock, store = service.clock, service.store
    text_of = service.model.tokenizer.text_of
    dashboard = Dashboard(store=store, clock=clock, version=__version__, text_of=text_of)
    dashboard.ground = metrics.ground = service.ground
    service.ground.stands_on(READER, reader.trouble)
    if desk is not None:
        dashboard.history.recorder = Recorder(service.wall_clock)
    hub = Hub(
        engine=engine,
        store=store,
        connect=lambda connection_id, tenant: Connection(
            connection_id=connection_id, tenant=tenant, service=service
        ),
        long_work=LongWork(
            check_grammar=probe.check,
            in_thread=lambda work: asyncio.get_running_loop().run_in_executor(planners, work),
            planners=_PLANNERS,
            reading=_reading(service, reader),
            journal=desk,
            ground=service.ground,
        ),
        metrics=metrics,
        dashboard=dashboard,
        clock=clock,
    )
    hub.engine_ready(info)
    server = _server(options, hub, service, tenants=tenants, metrics=metrics, dashboard=dashboard)
    parts = _memory_parts(store, dashboard, server, probe)
    metrics.memory.watch(parts, {"server": lambda: "self", "engine": lambda: engine.process_id})
    return hub, server


def _server(
    options: ServeOptions,
    hub: Hub,
    service: Service,
    *,
    tenants: Tenants,
    metrics: Metrics,
    dashboard: Dashboard,
) -> Server:
    api = HttpApi(hub=hub, service=service)
    server = Server(
        hub=hub,
        metrics=metrics,
        routes=routes(hub=hub, metrics=metrics, dashboard=dashboard, api=api, service=service),
        tenants=tenants,
        origins=OriginPolicy(
            allowed_origins=options.allowed_origins,
            check_host=tenants.open,
            forwarded_by=options.forwarded_by,
        ),
        limits=service.limits,
        clock=service.clock,
    )
    server.part_of = service.store.quotas.part_of
    return server


def _memory_parts(
    store: Store, dashboard: Dashboard, server: Server, probe: GrammarProbe
) -> dict[str, Callable[[], int]]:
    return {
        "responses": lambda: store.response_bytes,
        "events": lambda: store.logs.num_bytes,
        "sessions": lambda: store.session_bytes,
        "ended_turns": lambda: dashboard.log.num_bytes,
        "open_requests": lambda: store.held.total,
        "buffers": lambda: server.arriving.num_bytes,
        "grammars": lambda: probe.num_bytes,
        "journal": sqlite_bytes,
        "heap_free": heap_free_bytes,
    }


def _noting_hangups(options: ServeOptions) -> asyncio.Event:
    """An event that SIGHUP sets while the server starts, where there is a tenants file: without one
    the signal ends the server as ever."""
    hangup = asyncio.Event()
    if options.tenants_file is not None and hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    return hangup


def _reload_on_hangup(
    options: ServeOptions,
    prices: PriceTable,
    tenants: Tenants,
    server: Server,
    hangup: asyncio.Event,
) -> None:
    """Read the tenants file again on SIGHUP, now if there was one."""
    path = options.tenants_file
    if path is None or not hasattr(signal, "SIGHUP"):
        return

    def reload() -> None:
        reload_tenants(path, tenants, server.revoke, partial(check_budgets, prices=prices))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    if hangup.is_set():
        reload()


def _served_model(options: ServeOptions, info: EngineInfo, before: Beforehand) -> ServedModel:
    (name, aliases), speech = names_of(options), before.speech
    return ServedModel(
        name=name,
        aliases=aliases,
        tokenizer=speech.tokenizer,
        chat_format=speech.chat_format,
        max_context_tokens=info.max_context_tokens,
        seal=before.seal,
        adapters=frozenset(each.name for each in options.engine.adapters),
    )


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ready_line(address: str, info: EngineInfo) -> str:
    return (
        f"keepwarm ready at http://{address}/v1 model={info.model_name} device={info.device} "
        f"dtype={info.dtype} kv_capacity_tokens={info.kv_capacity_tokens}"
    )


def _configure_logging(level: str, format: LogFormat) -> None:
    log_to_stderr(level, format)
    # Its info lines say of every connection what the hub says already.
    logging.getLogger("websockets").setLevel(logging.WARNING)
