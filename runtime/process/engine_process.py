"""The engine in a child process, and the same interface inline.

``EngineProcess`` starts ``python -m runtime.process.engine_process``, talks to it over one socket
pair with the frames of ``runtime.process.frames`` and notices when it dies or hangs, while it loads
its model as well; a hung one is killed, so that there is one case only. What to do then is the
caller's business (``restart`` gives a fresh, empty engine). This module imports torch only inside
the child's ``main``.
"""

import argparse
import asyncio
import contextlib
import logging
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, get_args

from runtime.child_environment import child_environment
from runtime.collection import QUIET_S, WholeCollections, keep_short
from runtime.config import EngineConfig
from runtime.heap_pages import with_large_pages
from runtime.importing import child_words, importing
from runtime.log_lines import LogFormat
from runtime.logs import log_to_stderr
from runtime.messages import Beat, EngineInfo, EngineMessage, Loading, StepOutput
from runtime.model.config import LoadError
from runtime.process import frames, rank_frames
from runtime.process.core_choice import LOOK_S, RESTS_AFTER_S, CoreChoice
from runtime.process.ending import LAST_WORDS
from runtime.process.frame_socket import receive_frame
from runtime.process.rank_frames import RankStart
from runtime.process.rank_processes import new_meeting_folder, other_ranks, where_ranks_meet
from runtime.process.watchdog import (
    LoadPulse,
    LoadWatch,
    Pulse,
    Watch,
    group_is_busy,
    load_period_s,
    period_s,
    process_work,
    ranks_work,
)

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S = 0.5
"""Seconds for a process whose socket has ended: most are gone by then, and say how."""
_SAY_LOADING_S = 30.0
"""Seconds between two lines of the log that tell how far loading is; each stage has one too."""
_CACHE_BOUNDS = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}
"""The CPU library compiles and keeps a kernel for every shape of a product, 1,024 of them by
default; with varlen steps that grows to a gigabyte. Read when it is loaded."""


class EngineDied(Exception):
    """The engine is gone and every open request with it. Restart it, or stop."""


class EngineStartError(Exception):
    """The engine could not start; the message says why and is meant for people."""


_Decoded = TypeVar("_Decoded")


class EngineLink(Protocol):
    """The front end's view of an engine, wherever it runs."""

    async def start(self) -> EngineInfo: ...

    def send(self, messages: list[EngineMessage]) -> None: ...

    async def receive(self) -> StepOutput: ...

    async def restart(self) -> EngineInfo: ...

    async def stop(self) -> None: ...


def engine_command(log_format: LogFormat = "text") -> list[str]:
    """The command that starts an engine's process, but for the number of its socket."""
    return [*child_words("runtime.process.engine_process"), "--log-format", log_format]


class EngineProcess:
    """One child process at a time; all calls from one event loop.

    Whether it hangs is judged only while somebody waits in ``start`` or ``receive``.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] | None = None,
    ) -> None:
        """
        Args:
            clock: monotonic seconds.
            command: starts the child; the number of its socket is put behind it. Default:
                ``engine_command``.
        """
        self._config = config
        self._work = process_work if config.tensor_parallel == 1 else ranks_work
        self._clock = clock
        self._command = command or engine_command()
        self._process: subprocess.Popen[bytes] | None = None
        self._meeting: Path | None = None
        """Where the child's ranks meet, if it has any."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready = False
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cores = CoreChoice()
        self._choosing: asyncio.Task[None] | None = None
        self._computed = asyncio.Event()
        """The engine has, since its core was last looked at."""
        self._listening = False
        self._hung = ""

    @property
    def process_id(self) -> int | None:
        """The child's process id while it runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> EngineInfo:
        """Start the child and wait until its model is loaded.

        Raises:
            EngineStartError: the model cannot be loaded, or the child died or hung on the way
                and is gone.
        """
        self._hung = ""
        process = await self._spawn()
        watch = LoadWatch(
            hung_after_s=self._config.load_hung_after_s,
            limit_s=self._config.load_limit_s,
            work=partial(self._work, process.pid),
            busy=partial(group_is_busy, process.pid),
            clock=self._clock,
        )
        watching = asyncio.create_task(self._look_after(watch))
        self._listening = True
        try:
            answer = await self._until_ready(watch)
        except EngineDied as died:
            reason = self._hung or f"{await _ending(process, died)} while {watch.stage}"
            await self.stop()
            raise EngineStartError(reason) from died
        finally:
            self._listening = False
            watching.cancel()
        if isinstance(answer, str):
            await self.stop()
            raise EngineStartError(answer)
        self._ready = True
        self._choosing = asyncio.create_task(self._choose_cores(process.pid))
        if self._config.hung_after_s:
            self._watch = Watch(
                hung_after_s=self._config.hung_after_s,
                step_limit_s=self._config.step_limit_s,
                work=partial(self._work, process.pid),
                clock=self._clock,
            )
            self._watching = asyncio.create_task(self._look_after(self._watch))
        return answer

    async def _spawn(self) -> subprocess.Popen[bytes]:
        """A child that has been sent its configuration."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, str(theirs.fileno())]
            # Its own process group: an interrupt at the terminal reaches the front end only,
            # which then lets running sequences finish.
            try:
                if self._config.tensor_parallel > 1:
                    self._meeting = new_meeting_folder()
                process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                    env=with_large_pages(_CACHE_BOUNDS | child_environment()),
                )
            except OSError as error:
                ours.close()
                self._forget_meeting()
                raise EngineStartError(f"the engine process cannot be started: {error}") from error
        self._process = process
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(frames.encode_config(self._config))
        if self._meeting is not None:
            start = RankStart(rank=0, folder=str(self._meeting))
            self._writer.write(rank_frames.encode(start))
        return process

    def _forget_meeting(self) -> None:
        """Delete what ranks that were killed on their way left; others have done so themselves."""
        folder, self._meeting = self._meeting, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _until_ready(self, watch: LoadWatch) -> EngineInfo | str:
        """The child's last message of its start: its facts, or why it cannot start."""
        said_s = 0.0
        while True:
            answer = await self._read(frames.decode_start)
            if not isinstance(answer, Loading):
                return answer
            if answer.stage != watch.stage or watch.took_s - said_s >= _SAY_LOADING_S:
                said_s = watch.took_s
                log.info(
                    "engine loads stage=%r s=%.0f memory_mib=%d",
                    answer.stage,
                    watch.took_s,
                    answer.memory_bytes >> 20,
                )
            watch.heard(answer)

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
                report = await self._read(frames.decode_report)
                if isinstance(report, StepOutput):
                    if self._watch is not None:
                        self._watch.heard(None)
                    if report.outputs:
                        self._computed.set()
                    return report
                if self._watch is not None:
                    self._watch.heard(report)
        finally:
            self._listening = False

    async def restart(self) -> EngineInfo:
        """Replace a dead (or wedged) child by a fresh one that knows no branch."""
        await self.stop()
        return await self.start()

    async def stop(self) -> None:
        """End the child and wait for it. Safe to call twice."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = self._watch = None
        if self._choosing is not None:
            self._choosing.cancel()
            self._choosing = None
            self._cores.back()  # the next engine may run wherever this process may
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._writer = self._reader = None
        process, self._process = self._process, None
        ready, self._ready = self._ready, False
        if process is None:
            return
        if ready and not await _has_ended(process):
            log.warning("engine ignored the end of its socket, killing it pid=%d", process.pid)
        # One that still loads reads nothing from its socket and has nothing to lose.
        process.kill()
        if not await _has_ended(process):
            log.error("engine cannot be killed, its disk or device hangs pid=%d", process.pid)
        self._forget_meeting()

    async def _choose_cores(self, process_id: int) -> None:
        """Keep this process off the core of the engine's main thread while that works; an engine
        at rest is not looked at."""
        while True:
            try:
                async with asyncio.timeout(RESTS_AFTER_S):
                    await self._computed.wait()
            except TimeoutError:
                self._cores.back()
                await self._computed.wait()
            self._computed.clear()
            self._cores.tend(process_id, self._clock())
            await asyncio.sleep(LOOK_S)

    async def _look_after(self, watch: Watch | LoadWatch) -> None:
        process, writer = self._process, self._writer
        assert process is not None
        assert writer is not None
        while True:
            await asyncio.sleep(watch.period_s)
            reason = watch.tick() if self._listening else None
            if reason is not None:
                if isinstance(watch, LoadWatch):  # told by the error that ``start`` raises
                    self._hung = f"the engine process was killed: {reason}"
                else:
                    log.error("engine hangs, killing it pid=%d reason=%s", process.pid, reason)
                    self._hung = f"it hung: {reason}; "
                process.kill()
                # Its end of the socket stays open as long as the system cannot end it.
                writer.transport.abort()
                return

    async def _read(self, decode: Callable[[bytes, bytes], _Decoded]) -> _Decoded:
        """The next frame. Raises EngineDied where there is none, or none of ours."""
        if self._reader is None:
            raise EngineDied("the engine is not running")
        try:
            prefix = await self._reader.readexactly(frames.PREFIX.size)
            head, body = frames.body_sizes(prefix)
            return decode(
                await self._reader.readexactly(head), await self._reader.readexactly(body)
            )
        except (asyncio.IncompleteReadError, OSError, frames.FrameError) as error:
            how = f"{self._hung}engine connection ended ({error})"
            if self._process is not None and not isinstance(error, frames.FrameError):
                how += f", {await _status(self._process)}"
            raise EngineDied(how) from error


async def _status(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that has closed its socket, in words."""
    if not await _has_ended(process, _STATUS_TIMEOUT_S):
        return "its process goes on"
    code = process.returncode
    return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


async def _has_ended(process: subprocess.Popen[bytes], timeout_s: float = _STOP_TIMEOUT_S) -> bool:
    """Whether the process ends within the time for that."""
    try:
        await asyncio.to_thread(process.wait, timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


async def _ending(process: subprocess.Popen[bytes], died: EngineDied) -> str:
    """How a child ended whose socket did, in words."""
    if isinstance(died.__cause__, frames.FrameError):
        return f"the engine process said something that is no message ({died.__cause__})"
    if not await _has_ended(process):
        return "the engine process closed its socket and goes on"
    code = process.returncode
    if code >= 0:
        return f"the engine process ended with status {code}, see its lines above,"
    name = signal.Signals(-code).name
    memory = ", as the system does where memory runs out," if name == "SIGKILL" else ""
    return f"the engine process was killed by {name}{memory}"


def _readable(connection: socket.socket, wait_s: float | None) -> bool:
    """Whether a read would return at once (data, or the end); None waits until it does."""
    # ``select`` knows descriptors below 1,024; this one's number is from the server, which has one
    # for each of its clients.
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(None if wait_s is None else 1000 * wait_s))


def readable_or_quiet(
    connection: socket.socket,
    wait_s: float | None,
    collections: WholeCollections,
    *,
    has_work: bool,
) -> bool:
    """``_readable``; waiting without work is a time for collections, also where a step comes
    between that only looks after the cache."""
    if has_work:
        collections.busy()
        return _readable(connection, wait_s)
    part_s = QUIET_S if wait_s is None else wait_s
    while not _readable(connection, part_s):
        collections.idle(part_s)
        if wait_s is not None:
            return False
    collections.busy()
    return True


def serve(connection: socket.socket, log_format: LogFormat = "text") -> None:
    """Load the configured model and run steps until the peer closes the socket."""
    sending = threading.Lock()

    def send(frame: bytes) -> None:
        with sending:
            connection.sendall(frame)

    config = frames.decode_config(*receive_frame(connection))
    folder = where_ranks_meet(connection, config)
    load_pulse = LoadPulse(
        lambda loading: send(frames.encode_loading(loading)),
        load_period_s(config.load_hung_after_s, config.load_limit_s),
    )
    try:
        others = other_ranks(config, load_pulse.enters, log_format, folder)
        load_pulse.enters("importing torch")
        with importing():
            from runtime.engine.engine import EngineBroken
            from runtime.process.loading import load_engine
        engine = load_engine(config, enters=load_pulse.enters, others=others)
    except ImportError as error:
        send(frames.encode_refusal(f"this installation is not complete: {error}"))
        return
    except LoadError as error:
        send(frames.encode_refusal(str(error)))
        return
    finally:
        load_pulse.end()
    keep_short()
    collections = WholeCollections(time.monotonic)
    send(frames.encode_ready(engine.info))

    def tell(beat: Beat) -> None:
        send(frames.encode_beat(beat))

    def take_messages() -> None:
        """Hand over what has arrived; wait for it as long as the engine has nothing to do."""
        pulse.rests()
        while readable():
            pulse.works()
            engine.submit(frames.decode_messages(*receive_frame(connection)))
            pulse.rests()
        pulse.works()

    def readable() -> bool:
        has_work = engine.has_work
        wait_s = engine.pause_s if has_work else engine.idle_s
        return readable_or_quiet(connection, wait_s, collections, has_work=has_work)

    pulse = Pulse(tell, period_s(config.hung_after_s))
    try:
        while True:
            take_messages()
            output = engine.step()
            if output is not None:
                send(frames.encode_step(output))
    except EngineBroken as broken:
        LAST_WORDS.say(broken)
        sys.exit(1)
    finally:
        pulse.end()
        engine.close()


def main() -> None:
    """Entry point of the child: one argument, the number of the inherited socket."""
    parser = argparse.ArgumentParser(description="Keepwarm's engine; started by the server.")
    parser.add_argument("--log-format", default="text", choices=get_args(LogFormat))
    parser.add_argument("socket_fd", type=int)
    arguments = parser.parse_args()
    # It ends with its socket: a supervisor that signals all processes of a service at once means
    # the server, which lets running turns finish first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr("info", arguments.log_format, process="engine")
    with (
        socket.socket(fileno=arguments.socket_fd) as connection,
        contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        try:
            serve(connection, arguments.log_format)
        except frames.FrameError as error:
            log.error("the server said something that is no message: %s", error)
            sys.exit(1)


if __name__ == "__main__":
    main()
