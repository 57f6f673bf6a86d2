"""The engine in a child process, and the same interface inline.

``EngineProcess`` starts ``python -m runtime.engine_process``, talks to it over one socket
pair with the frames of ``runtime.frames`` and notices when it dies or hangs; a hung one is
killed, so that there is one case only. What to do then is the caller's business
(``restart`` gives a fresh, empty engine). ``InlineEngine`` runs the same
``Engine`` in this process, for tests and notebooks. This module imports torch only inside
the child's ``main`` and inside ``InlineEngine.start``.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from runtime import frames
from runtime.config import EngineConfig
from runtime.messages import Beat, EngineInfo, EngineMessage, StepOutput
from runtime.watchdog import Pulse, Watch, period_s, process_work

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_CACHE_BOUNDS = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""The CPU library compiles and keeps a kernel for every shape of a product, 1,024 of them by
default; with varlen steps that grows to a gigabyte. Read when it is loaded."""


class EngineDied(Exception):
    """The engine is gone and every open request with it. Restart it, or stop."""


class EngineStartError(Exception):
    """The engine could not start; the message says why and is meant for people."""


class EngineLink(Protocol):
    """What the front end knows of an engine, wherever it runs."""

    async def start(self) -> EngineInfo: ...

    def send(self, messages: list[EngineMessage]) -> None: ...

    async def receive(self) -> StepOutput: ...

    async def restart(self) -> EngineInfo: ...

    async def stop(self) -> None: ...


class EngineProcess:
    """One child process at a time; all calls from one event loop.

    Whether it hangs is judged only while somebody waits in ``receive``.
    """

    def __init__(
        self, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._listening = False
        self._hung = ""

    @property
    def process_id(self) -> int | None:
        """The child's process id while it runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> EngineInfo:
        """Start the child and wait until its model is loaded.

        Raises:
            EngineStartError: the model cannot be loaded, or the child died on the way.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "runtime.engine_process", str(theirs.fileno())]
            # Its own process group: an interrupt at the terminal reaches the front end only,
            # which then lets running turns finish.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=_CACHE_BOUNDS
                | os.environ
                | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(frames.encode_config(self._config))
        try:
            info, error = frames.decode_ready(*await self._read_frame())
        except EngineDied as died:
            await self.stop()
            raise EngineStartError(
                f"the engine process ended before it was ready: {died}"
            ) from died
        if info is None:
            await self.stop()
            raise EngineStartError(error)
        self._hung = ""
        if self._config.hung_after_s:
            self._watch = Watch(
                hung_after_s=self._config.hung_after_s,
                step_limit_s=self._config.step_limit_s,
                work=partial(process_work, self._process.pid),
                clock=self._clock,
            )
            self._watching = asyncio.create_task(self._look_after(self._watch))
        return info

    def send(self, messages: list[EngineMessage]) -> None:
        """Hand over messages; they reach the engine between two steps. Never blocks.

        A dead engine is reported by ``receive``, not here.
        """
        if messages and self._writer is not None and not self._writer.is_closing():
            self._writer.writelines(frames.encode_batches(messages))

    async def receive(self) -> StepOutput:
        """Wait for the next step that has something to say. Raises EngineDied, also where it
        hung and had to be killed."""
        self._listening = True
        try:
            while True:
                report = frames.decode_report(*await self._read_frame())
                if isinstance(report, StepOutput):
                    if self._watch is not None:
                        self._watch.heard(None)
                    return report
                if self._watch is not None:
                    self._watch.heard(report)
        finally:
            self._listening = False

    async def restart(self) -> EngineInfo:
        """Replace a dead (or wedged) child by a fresh one that knows no session."""
        await self.stop()
        return await self.start()

    async def stop(self) -> None:
        """End the child and wait for it. Safe to call twice."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = self._watch = None
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._writer = self._reader = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("engine ignored the end of its socket, killing it pid=%d", process.pid)
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _look_after(self, watch: Watch) -> None:
        process, writer = self._process, self._writer
        assert process is not None
        assert writer is not None
        while True:
            await asyncio.sleep(watch.period_s)
            reason = watch.tick() if self._listening else None
            if reason is not None:
                log.error("engine hangs, killing it pid=%d reason=%s", process.pid, reason)
                self._hung = f"it hung: {reason}; "
                process.kill()
                # Its end of the socket stays open as long as the system cannot end it.
                writer.transport.abort()
                return

    async def _read_frame(self) -> tuple[bytes, bytes]:
        if self._reader is None:
            raise EngineDied("the engine is not running")
        try:
            prefix = await self._reader.readexactly(frames.PREFIX.size)
            head, body = frames.body_sizes(prefix)
            return await self._reader.readexactly(head), await self._reader.readexactly(body)
        except (asyncio.IncompleteReadError, OSError, frames.FrameError) as error:
            process = self._process
            code = None if process is None else process.poll()
            raise EngineDied(
                f"{self._hung}engine connection ended ({error}), exit status {code}"
            ) from error


class InlineEngine:
    """The engine in this process: a step runs inside ``receive``, blocking the loop."""

    def __init__(self, config: EngineConfig) -> None:
        from runtime.engine import Engine
        from runtime.engine_loader import load_engine

        self._config = config
        self._load = load_engine
        self._engine: Engine | None = None
        self._arrived = asyncio.Event()

    async def start(self) -> EngineInfo:
        self._engine = self._load(self._config)
        return self._engine.info

    def send(self, messages: list[EngineMessage]) -> None:
        assert self._engine is not None
        self._engine.submit(messages)
        self._arrived.set()

    async def receive(self) -> StepOutput:
        assert self._engine is not None
        while True:
            if not self._engine.has_work:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), self._engine.idle_s)
            await asyncio.sleep(self._engine.pause_s)
            output = self._engine.step()
            if output is not None:
                return output

    async def restart(self) -> EngineInfo:
        await self.stop()
        return await self.start()

    async def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray(size)
    view = memoryview(parts)
    while view:
        received = connection.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return bytes(parts)


def _receive_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    head, body = frames.body_sizes(_receive_exactly(connection, frames.PREFIX.size))
    return _receive_exactly(connection, head), _receive_exactly(connection, body)


def _readable(connection: socket.socket, wait_s: float | None) -> bool:
    """Whether a read would return at once (data, or the end); None waits until it does."""
    return bool(select.select([connection], [], [], wait_s)[0])


def serve(connection: socket.socket) -> None:
    """Load the configured model and run steps until the peer closes the socket."""
    from runtime.engine import Engine
    from runtime.engine_loader import EngineLoadError, load_engine

    def take_messages(engine: Engine, pulse: Pulse) -> None:
        """Hand over what has arrived; wait for it as long as the engine has nothing to do."""
        pulse.rests()
        while _readable(connection, engine.pause_s if engine.has_work else engine.idle_s):
            pulse.works()
            engine.submit(frames.decode_messages(*_receive_frame(connection)))
            pulse.rests()
        pulse.works()

    config = frames.decode_config(*_receive_frame(connection))
    try:
        engine = load_engine(config)
    except EngineLoadError as error:
        connection.sendall(frames.encode_ready(None, str(error)))
        return
    connection.sendall(frames.encode_ready(engine.info))
    sending = threading.Lock()

    def send(frame: bytes) -> None:
        with sending:
            connection.sendall(frame)

    def tell(beat: Beat) -> None:
        send(frames.encode_beat(beat))

    pulse = Pulse(tell, period_s(config.hung_after_s))
    try:
        while True:
            take_messages(engine, pulse)
            output = engine.step()
            if output is not None:
                send(frames.encode_step(output))
    finally:
        pulse.end()
        engine.close()


def main() -> None:
    """Entry point of the child: one argument, the number of the inherited socket."""
    parser = argparse.ArgumentParser(description="Keepwarm's engine; started by the server.")
    parser.add_argument("socket_fd", type=int)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="engine %(levelname)s %(message)s")
    with (
        socket.socket(fileno=arguments.socket_fd) as connection,
        contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        serve(connection)


if __name__ == "__main__":
    main()
