"""A process that reads large frames and bodies, and the event loop's end of it.

Checking a large request takes the interpreter a fifth of a second, for which a thread would
hold the event loop up as well. So a child (``python -m sessions.wire.read_process``) does it. It
gets the bytes as they came and answers with typed pieces (``sessions.turns.reading``) over a
socket pair: a prefix with kind and length, JSON behind it, no pickle, and last how many there were;
here each piece is taken in a turn of the loop of its own. One job at a time: whose turn it is is
``sessions.wire.fair_reading``'s business.

Always true: a job ends within ``limit_s``; a child that dies, hangs, says something else or not all
of it is killed, and the next job begins a fresh one.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from runtime.importing import child_words
from runtime.niceness import stand_behind
from sessions.turns.reading import (
    FromPieces,
    Piece,
    Read,
    ReadContext,
    prepared,
    read_frame,
    to_pieces,
)
from sessions.wire.http_dialects import BODIES, Body, ReadBody, Style, read_body
from tools_api.chat_families import chat_format_for
from tools_api.chat_generic import chat_format_described
from tools_api.limits import Limits

log = logging.getLogger(__name__)

READ_LIMIT_S = 10.0
"""A job that is not done by then has hung: the largest frame takes under a second."""
NICENESS = 5
"""Steps by which the child is nicer: streams come before the reading of long requests."""
STOPPED_S = 1.0
"""Seconds that a child which has nothing to read may be stopped; then it is given up."""
_PREFIX = struct.Struct("<4sBI")
_MAGIC = b"KWR1"
_CONFIG, _FRAME, _BODY, _STYLE, END, _NO_TEXT, _DATA = range(32, 39)
"""Kinds of frames beside the pieces of ``sessions.turns.reading``."""
_MAX_BYTES = 256 * 1024 * 1024


class ReaderLost(Exception):
    """The child died, hung or lost its mind over this job. The next one gets a fresh child."""


class NoText(Exception):
    """The frame's bytes are not UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """The server's settings that the child has to know; crosses to it as JSON."""

    limits: Limits
    models: frozenset[str] | None
    """Names that a request may use; None: that is looked at later."""
    model_type: str
    specials: frozenset[str]
    """Texts of the tokenizer's special tokens."""
    chat_format: str | None = None
    """The description of the chat format; None: the special tokens choose it."""

    def context(self) -> ReadContext:
        """The context with which frames are read."""
        has_token = self.specials.__contains__
        if self.chat_format is None:
            chat_format = chat_format_for(self.model_type, has_token)
        else:
            chat_format = chat_format_described(self.chat_format, has_token)
        return ReadContext(limits=self.limits, models=self.models, chat_format=chat_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """The result of a reading job: the request that was read."""

    body: ReadBody
    """The body of a frame: without a style."""
    cpu_s: float
    """The CPU time that it took the child."""


class ReadProcess:
    """One child at a time; one job at a time. All calls from one event loop."""

    def __init__(self, config: ReadConfig, *, limit_s: float = READ_LIMIT_S) -> None:
        self._config = config
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = False
        self._stopped_s: float | None = None
        """When the child was first seen to be stopped; None: it runs."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def process_id(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._process is None else self._process.pid

    def trouble(self) -> str | None:
        """Why it does not read, looked at again and again; None: it does, or the next job gets
        another child. One that was stopped is given up after a while."""
        if self._process is None or not _is_stopped(self._process.pid):
            self._stopped_s = None
            return None
        now = time.monotonic()
        self._stopped_s = self._stopped_s or now
        if now - self._stopped_s > STOPPED_S and not self._busy:
            log.error("reader was stopped, the next job gets another")
            self._process.kill()
        return "the process that reads large requests is stopped"

    async def start(self) -> None:
        """Start the child, without waiting until it has loaded what it needs."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*child_words("sessions.wire.read_process"), str(theirs.fileno())]
            environment = {"PATH": os.environ.get("PATH", "")}
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            try:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                    env=environment,
                )
            except OSError:
                ours.close()
                raise
        stand_behind(self._process.pid, NICENESS)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        config, models = asdict(self._config), self._config.models
        config["models"] = None if models is None else list(models)
        config["specials"] = list(self._config.specials)
        self._writer.write(_frame(_CONFIG, orjson.dumps(config)))

    async def stop(self) -> None:
        """End the child. Safe to call twice."""
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = self._reader = None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def read(self, job: bytes | Body) -> ReadResult:
        """Have a text frame or a body read.

        Raises:
            ReaderLost: there is no answer. NoText: the frame is none of text.
        """
        done, self._busy = False, True
        try:
            if self._process is None or self._process.poll() is not None:
                await self.stop()
                await self.start()
            async with asyncio.timeout(self._limit_s):
                outcome = await self._ask(job)
            done = True
            return outcome
        except NoText:
            done = True
            raise
        except Exception as error:  # whatever the child said
            reason = f"{type(error).__name__}: {error}"
            log.error("reader lost, the next job gets another reason=%s", reason[:200])
            raise ReaderLost(reason) from error
        finally:
            self._busy = False
            if not done:  # also where the caller is cancelled in mid-answer
                await asyncio.shield(self.stop())

    async def _ask(self, job: bytes | Body) -> ReadResult:
        assert self._writer is not None
        self._writer.writelines(job_frames(job))
        pieces, style, is_text, count = FromPieces(), None, True, 0
        while True:
            kind, data = await self._receive()
            if kind == END:
                cpu_s = _cpu_s(data, count)
                if not is_text:
                    raise NoText
                return ReadResult(body=ReadBody(read=pieces.read(), style=style), cpu_s=cpu_s)
            count += 1
            if kind == _NO_TEXT:
                is_text = False
            elif kind == _STYLE:
                style = Style(**orjson.loads(data))
            else:
                pieces.add(kind, data)
            await asyncio.sleep(0)

    async def _receive(self) -> Piece:
        assert self._reader is not None
        kind, size = _sizes(await self._reader.readexactly(_PREFIX.size))
        return kind, await self._reader.readexactly(size)


def _is_stopped(process_id: int) -> bool:
    """Whether a process is stopped by a signal, where the system tells."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return False
    state: bytes = stat.rpartition(b")")[2].lstrip()
    return state.startswith(b"T")


def _frame(kind: int, data: bytes) -> bytes:
    return _PREFIX.pack(_MAGIC, kind, len(data)) + data


def _sizes(prefix: bytes) -> tuple[int, int]:
    magic, kind, size = _PREFIX.unpack(prefix)
    if magic != _MAGIC or size > _MAX_BYTES:
        raise ValueError(f"a frame that starts with {prefix!r}")
    return kind, size


def _cpu_s(told: bytes, count: int) -> float:
    """The CPU time at the end of an answer of ``count`` frames."""
    end = orjson.loads(told)
    if end["frames"] != count:
        raise ValueError(f"an answer of {end['frames']!r} frames, and {count} came")
    seconds = end["cpu_s"]
    if not isinstance(seconds, float) or not 0.0 <= seconds < math.inf:
        raise ValueError(f"{seconds!r} seconds of CPU time")
    return seconds


def job_frames(job: bytes | Body) -> Iterator[bytes]:
    if isinstance(job, bytes):
        yield _frame(_FRAME, b"")
        data = job
    else:
        names = ("session", "request_id", "span", "counted")
        told = {"path": job.served.path} | {name: getattr(job, name) for name in names}
        yield _frame(_BODY, orjson.dumps(told))
        data = job.data
    yield _PREFIX.pack(_MAGIC, _DATA, len(data))
    yield data


# The child


def answer_frames(kind: int, told: bytes, data: bytes, context: ReadContext) -> Iterator[bytes]:
    """The child's answer to one job, the end apart."""
    style: Style | None = None
    if kind == _FRAME:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError:
            yield _frame(_NO_TEXT, b"")
            return
        read: Read = read_frame(text, context)
    else:
        fields = orjson.loads(told)
        path = fields.pop("path")
        served = next(each for each in BODIES if each.path == path)
        body = read_body(Body(served=served, data=data, **fields), context)
        read, style = body.read, body.style
    if style is not None:
        yield _frame(_STYLE, orjson.dumps(asdict(style)))
    for piece in to_pieces(prepared(read, context)):
        yield _frame(*piece)


def serve(connection: socket.socket) -> None:
    """Answer jobs until the peer closes the socket."""
    stream = connection.makefile("rwb")

    def receive(*kinds: int) -> tuple[int, bytes]:
        kind, size = _sizes(_exactly(stream.read, _PREFIX.size))
        if kind not in kinds:
            raise ValueError(f"a frame of kind {kind}, where one of {kinds} belongs")
        return kind, _exactly(stream.read, size)

    config = orjson.loads(receive(_CONFIG)[1])
    context = ReadConfig(
        limits=Limits(**config["limits"]),
        models=None if config["models"] is None else frozenset(config["models"]),
        model_type=config["model_type"],
        specials=frozenset(config["specials"]),
        chat_format=config["chat_format"],
    ).context()
    while True:
        kind, told = receive(_FRAME, _BODY)
        _, data = receive(_DATA)
        began, count = time.process_time(), 0
        for frame in answer_frames(kind, told, data, context):
            stream.write(frame)
            count += 1
        cpu_s = time.process_time() - began
        stream.write(_frame(END, orjson.dumps({"cpu_s": cpu_s, "frames": count})))
        stream.flush()


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """So many bytes of a stream. Raises EOFError: the peer has closed the socket before."""
    data = read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Entry point of the child: one argument, the number of the inherited socket."""
    # It ends with its socket, not by a signal that is meant for the service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):  # the end of the socket
        serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
