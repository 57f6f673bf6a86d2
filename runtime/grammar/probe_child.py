"""A process that checks grammars: it is started, asked, watched, killed and followed by the next.

Parent and child exchange length-prefixed orjson frames over the child's pipes. This is the
parent's half; it runs in one event loop, does no work of its own and does not import torch.

Always true: a check ends within its limits whatever the schema; a child that was interfered with,
or that hardly ran, says nothing about a schema.
"""

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from runtime.child_environment import child_environment
from runtime.grammar.probe_process import LENGTH, OUT_OF_MEMORY, frame
from runtime.grammar.refusal import BROKEN, GrammarRefused
from runtime.importing import child_words
from runtime.niceness import stand_behind
from tools_api.grammar import GrammarSpec

log = logging.getLogger(__name__)

_NICENESS = 10
_MAX_FRAME_BYTES = 64 * 1024 * 1024
_START_TIMEOUT_S = 60
_DYING_S = 5.0
_PATIENCE = 30
"""Times its limit that a check may last where the child does not get to run."""
_ATTEMPTS = 3
_FOREIGN_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""No grammar ends the child by one of these."""


class ProbeError(Exception):
    """The probe process cannot be started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """The cost that one grammar may have, how long a refusal is remembered, and when there are to
    be how many children."""

    seconds: float = 2.0
    """Seconds of CPU time that a trial may take."""
    memory_bytes: int = 512 * 1024 * 1024
    """Above what the child holds between checks."""
    refusal_life_s: float = 30.0
    """A refusal is repeated from memory for so long: a client that retries costs nothing."""
    checks_per_process: int = 500
    """Another child takes over after that many, so that nothing it leaks adds up."""
    others_after_s: float = 30.0
    """After the first child: a server's start is over by then."""
    lasts_s: float = 0.1
    """A check that takes so long has the others started at once. Few honest ones do."""


class Disturbed(ProbeError):
    """Somebody interfered with the process; that says nothing about the grammar."""


class Starved(ProbeError):
    """The process hardly ran; that says nothing about the grammar either."""


class ProbeChild:
    """One child process, and the next one where it is due. One check at a time."""

    def __init__(self, arguments: list[str], limits: ProbeLimits) -> None:
        self._arguments = arguments
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._checks = 0
        self._next: asyncio.Task[asyncio.subprocess.Process] | None = None
        """A process that starts, to take over."""

    async def start(self) -> None:
        self._process, self._checks = await start_process(self._arguments), 0

    @property
    def is_ready(self) -> bool:
        """Whether a check does not have to wait for a process that starts."""
        return self._process is not None or self._next is None or self._next.done()

    async def until_ready(self) -> None:
        if self._next is not None:
            await asyncio.wait({self._next})

    async def check(self, spec: GrammarSpec) -> GrammarRefused | None:
        """Try a grammar, again if somebody interfered with the process."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._check(spec)
            except Disturbed as disturbed:
                log.warning("grammar probe disturbed attempt=%d reason=%s", attempt, disturbed)
        return GrammarRefused(BROKEN)

    async def _check(self, spec: GrammarSpec) -> GrammarRefused | None:
        await self._take_over()
        self._checks += 1
        try:
            answer = await self._answer(asdict(spec))
        except TimeoutError:
            stopped = self._process is not None and _is_stopped(self._process.pid)
            await self._replace()
            if stopped:
                raise Disturbed("it was stopped") from None
            return GrammarRefused(f"compiling it takes more than {self._limits.seconds:g} s")
        except Starved:
            await self._replace()
            raise
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._replace(dying=True)
            megabytes = self._limits.memory_bytes >> 20
            if code is not None and -code in _FOREIGN_SIGNALS:
                raise Disturbed(f"it was ended by {signal.Signals(-code).name}") from None
            # The Rust allocator aborts when the address space is used up.
            if code in (OUT_OF_MEMORY, -6):
                return GrammarRefused(f"compiling it needs more than {megabytes} MiB")
            return GrammarRefused(BROKEN)
        except BaseException:
            await self._end_process()  # an answer may be half read
            raise
        if self._checks >= self._limits.checks_per_process:
            self._prepare()
        if answer is None:
            return None
        path = answer["path"]
        return GrammarRefused(
            answer["message"],
            answer["keyword"],
            None if path is None else tuple(path),
            answer["block"],
        )

    async def kill(self) -> None:
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, ProbeError):
                await _end(await self._next)  # it was ready already
            self._next = None
        await self._end_process()

    async def _take_over(self) -> None:
        """Have a process: the one that is there, or the next one where it is ready or needed."""
        lost = self._process is None or self._process.returncode is not None
        if lost and self._process is not None:
            log.warning("grammar probe had ended status=%s", self._process.returncode)
        if self._next is not None and (lost or self._next.done()):
            following, self._next = self._next, None
            try:
                process = await following
            except ProbeError as error:
                if lost:
                    raise
                log.warning("grammar probe not renewed reason=%s", error)
                return
            await self._end_process()
            self._process, self._checks = process, 0
        elif lost:
            await self._end_process()
            await self.start()

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The child's answer. Where the system does not say what the child uses, time counts.

        Raises:
            TimeoutError: it has used up its time, or was stopped.
            Starved: it hardly got any.
        """
        assert self._process is not None
        pid, loop = self._process.pid, asyncio.get_running_loop()
        limit_s, begun_at, had_s = self._limits.seconds, loop.time(), _cpu_s(pid)
        left_s, asking = limit_s, asyncio.ensure_future(self._ask(question))
        try:
            while True:
                await asyncio.wait({asking}, timeout=left_s)
                if asking.done():
                    return await asking
                passed_s, has_s = loop.time() - begun_at, _cpu_s(pid)
                if had_s is None:
                    left_s = limit_s - passed_s
                elif has_s is not None:
                    left_s = limit_s - (has_s - had_s)
                if left_s <= 0.0 or _is_stopped(pid):
                    raise TimeoutError
                if passed_s >= _PATIENCE * limit_s:
                    raise Starved(f"it did not get {limit_s:g} s of CPU time")
                left_s = max(left_s, limit_s / 20)
        finally:
            asking.cancel()

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(frame(question))
        await self._process.stdin.drain()
        answer: dict[str, Any] | None = await _read(self._process)
        return answer

    def _prepare(self) -> None:
        """Start the next process, if it does not start yet."""
        if self._next is None:
            self._next = asyncio.create_task(start_process(self._arguments))

    async def _replace(self, *, dying: bool = False) -> int | None:
        """End the process and start the next one without waiting for it."""
        code = await self._end_process(dying=dying)
        self._prepare()
        return code

    async def _end_process(self, *, dying: bool = False) -> int | None:
        process, self._process = self._process, None
        return None if process is None else await _end(process, dying=dying)


async def start_process(arguments: list[str]) -> asyncio.subprocess.Process:
    """Start ``runtime.grammar.probe_process`` with these arguments and wait until it is ready.

    Raises:
        ProbeError: there is none.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *child_words("runtime.grammar.probe_process"),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(),
        )
    except OSError as error:  # no descriptors, no memory
        raise ProbeError(f"the probe process cannot be started: {error}") from error
    stand_behind(process.pid, _NICENESS)  # from its first import on
    try:
        hello = await _hello(process)
        if "error" in hello:
            raise ProbeError(hello["error"])
    except BaseException:
        await _end(process)
        raise
    return process


async def _hello(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The first message of a process, when it is ready or cannot be."""
    reading = asyncio.ensure_future(_read(process))
    try:
        for _ in range(_START_TIMEOUT_S):
            await asyncio.wait({reading}, timeout=1.0)
            if reading.done():
                hello: dict[str, Any] = await reading
                return hello
            if _is_stopped(process.pid):
                raise Disturbed("it was stopped while it started")
    except asyncio.IncompleteReadError:
        code = await _end(process, dying=True)
        if code is not None and -code in _FOREIGN_SIGNALS:
            raise Disturbed(f"{signal.Signals(-code).name} while it started") from None
    finally:
        reading.cancel()
    raise ProbeError("the probe process did not start")


async def _read(process: asyncio.subprocess.Process) -> Any:
    """The next frame that a process says; one that is too long is as good as half of one."""
    assert process.stdout is not None
    prefix = await process.stdout.readexactly(LENGTH.size)
    (length,) = LENGTH.unpack(prefix)
    if length > _MAX_FRAME_BYTES:
        raise asyncio.IncompleteReadError(prefix, LENGTH.size + length)
    return orjson.loads(await process.stdout.readexactly(length))


async def _end(process: asyncio.subprocess.Process, *, dying: bool = False) -> int | None:
    """End a process and return its exit status.

    Args:
        dying: it is about to end by itself. Killed in that moment, its status is lost:
            ``Popen.kill`` takes it away from asyncio.
    """
    if dying:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _DYING_S)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    code = await process.wait()
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(ConnectionError):
        await process.stdin.wait_closed()
    return code


def _cpu_s(pid: int) -> float | None:
    """CPU time of a process; None where the system does not say, or no file can be opened."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_stopped(pid: int) -> bool:
    """Whether the system says that a process is stopped; False where it does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False
