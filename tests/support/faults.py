"""A served model that is done harm to, and what must hold whatever was done.

A turn is brought into a phase, a fault is injected, and then: the turn ends with exactly one
terminal event, the next turn runs within the time of a load and two seconds, ``/readyz`` says
200 exactly while turns can run, and the log says why in one line.
"""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import orjson
import psutil
from websockets.asyncio.client import ClientConnection, connect

from keepwarm.demo.child_server import ChildServer, child_server
from tests.support import forked_engine

HUNG_AFTER_S = 1.0
OPTIONS = [
    *("--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--threads", "1"),
    *(
        "--max-batch-tokens",
        "32",
        "--hung-after-s",
        f"{HUNG_AFTER_S:g}",
        "--startup-profile-ms",
        "0",
    ),
    *("--startup-profile-folder", "", "--max-draft-tokens", "0"),
]
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
SPARE_S = 2.0
PATIENCE_S = float(os.environ.get("KEEPWARM_FAULT_PATIENCE_S", "60"))
"""For anything at all. More than that where other work leaves little of the machine."""
PAD = 1 << 20
"""So many spaces make a frame large: for the reader, and more than a socket between processes
takes at once."""
TOOL = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
}
_numbers = itertools.count(1)


@dataclass(slots=True)
class Faulty:
    """A server, its processes, its log, and what it had at the start."""

    server: ChildServer
    log: Path
    report: Path
    read: int = 0
    at_rest: dict[str, float] = field(default_factory=dict)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.server.process.pid)

    def children(self, module: str) -> list[psutil.Process]:
        """The server's living children that run ``module``."""
        found = []
        for child in self.process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                itself = module in child.cmdline()
                forked = child.name() == forked_engine.NAME and module.endswith("engine_process")
                if (itself or forked) and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    @property
    def engines(self) -> list[psutil.Process]:
        """None while there is to be another."""
        return self.children("runtime.process.engine_process")

    @property
    def engine(self) -> psutil.Process:
        (engine,) = self.engines
        return engine

    @property
    def probes(self) -> list[psutil.Process]:
        return self.children("runtime.grammar.probe_process")

    @property
    def readers(self) -> list[psutil.Process]:
        """None between the death of one and the next large frame."""
        return self.children("sessions.wire.read_process")

    def page(self, path: str) -> tuple[int, str]:
        """Status and text."""
        client = HTTPConnection(self.server.url.split("/")[2], timeout=20)
        try:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def socket(self) -> connect:
        url = self.server.url.replace("http", "ws") + "/responses"
        return connect(url, compression=None, max_size=None, ping_interval=None)

    def lines(self) -> list[str]:
        """Log lines since the last call."""
        text = self.log.read_bytes()[self.read :]
        self.read += len(text)
        return text.decode().splitlines()

    def rest(self) -> dict[str, float]:
        """Descriptors, threads, tasks, and what turns hold, once nothing goes on any more."""
        _, metrics = self.page("/metrics")
        self.report.unlink(missing_ok=True)
        self.server.process.send_signal(signal.SIGUSR2)
        until(self.report.exists)
        return {
            "tasks": float(self.report.read_text()),
            "descriptors": float(self.process.num_fds()),
            "threads": float(self.process.num_threads()),
            "processes": float(len(self.process.children(recursive=True))),
            "engine descriptors": float(self.engine.num_fds()),
            "protected blocks": _metric(metrics, 'kv_blocks{state="protected"}'),
            "running turns": _metric(metrics, "turns_running"),
            "waiting turns": _metric(metrics, "turns_waiting"),
        }


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^keepwarm_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Poll until a condition of another process holds."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.01)


@contextmanager
def faulty_server(folder: Path, *options: str, forked: bool = False) -> Iterator[Faulty]:
    """A server to be done harm to, with further ``options``. ``forked``: its engines are there at
    once, as forks of its process."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "tasks"
    os.environ["FAULT_SUITE_REPORT"] = str(report)
    os.environ["FAULT_SUITE_FORKED"] = "1" if forked else ""
    arguments = [*OPTIONS, *options]
    with child_server(
        arguments, log=folder / "log", module="tests.support.fault_launcher"
    ) as server:
        faulty = Faulty(server, folder / "log", report)
        asyncio.run(_warm_up(faulty))
        until(lambda: len(faulty.probes) == 2)
        faulty.at_rest = faulty.rest()
        faulty.lines()
        yield faulty


async def _warm_up(faulty: Faulty) -> None:
    """What is made at first need is there before anything is counted."""
    async with faulty.socket() as client:
        for fields in ({"input": "hello"}, {"input": "hello", **_forced_call()}):
            turn = Turn(client)
            await turn.send(max_output_tokens=64, pad=PAD, **fields)
            assert (await turn.terminal())["type"] != "error"


def _forced_call() -> dict[str, Any]:
    return {"tools": [TOOL], "tool_choice": "required"}


class Turn:
    """One turn of a client, and every event that came."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.events: list[dict[str, Any]] = []

    async def send(self, *, pad: int = 0, **fields: Any) -> None:
        """``pad``: so many spaces more."""
        frame = orjson.dumps({"type": "response.create"} | fields).decode()
        await self.client.send(frame + " " * pad)

    async def until_type(self, *names: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = orjson.loads(await self.client.recv())
                self.events.append(event)
                if event["type"] in names or event["type"] in TERMINAL:
                    return event

    async def terminal(self) -> dict[str, Any]:
        ended = [event for event in self.events if event["type"] in TERMINAL]
        return ended[0] if ended else await self.until_type()


Phase = Callable[[Faulty, Turn], Awaitable[None]]


async def idle(faulty: Faulty, turn: Turn) -> None:
    """A connection without a turn."""


async def sent(faulty: Faulty, turn: Turn) -> None:
    await turn.send(input="x" * 600, max_output_tokens=200)


async def grammar(faulty: Faulty, turn: Turn) -> None:
    """A grammar that nobody has seen is being tried."""
    number = next(_numbers)
    properties = {f"p{number}_{i}": {"type": "string", "maxLength": 2} for i in range(120)}
    schema = {"type": "object", "properties": properties}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    spent = sum(p.cpu_times().user for p in faulty.probes)
    await turn.send(input="x", max_output_tokens=20, text={"format": form})
    for _ in range(100):
        if sum(p.cpu_times().user for p in faulty.probes) > spent:
            return
        await asyncio.sleep(0.002)


async def prefill(faulty: Faulty, turn: Turn) -> None:
    prompt = f"{next(_numbers)} " + "y" * 1500
    await turn.send(input=prompt, max_output_tokens=20)
    await turn.until_type("response.in_progress")


async def decode(faulty: Faulty, turn: Turn) -> None:
    await turn.send(input="z" * 20, max_output_tokens=600)
    await turn.until_type("response.output_text.delta")


async def tool(faulty: Faulty, turn: Turn) -> None:
    """A call has come; its tool runs."""
    await turn.send(input="x", max_output_tokens=64, **_forced_call())
    await turn.terminal()


async def read(faulty: Faulty, turn: Turn) -> None:
    """A large frame is with the reader, which is stopped and does not get to its end."""
    if not faulty.readers:  # killed when nothing was read
        first = Turn(turn.client)
        await first.send(input="x", max_output_tokens=1, pad=PAD)
        await first.terminal()
    (reader,) = faulty.readers
    reader.suspend()
    await turn.send(input="large", max_output_tokens=4, pad=PAD)
    for _ in range(8):  # the frame has come before them, and each is answered in a later turn
        await (await turn.client.ping())


PHASES: dict[str, Phase] = {
    phase.__name__: phase for phase in (idle, sent, grammar, prefill, decode, tool, read)
}


class Readiness:
    """Asks ``/readyz`` all the time, from a thread of its own."""

    def __init__(self, faulty: Faulty) -> None:
        self._faulty = faulty
        self._over = threading.Event()
        self.seen: list[int] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Readiness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(0.02)
            self.seen.append(self._faulty.page("/readyz")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    terminal: dict[str, Any] | None
    recovery_s: float
    """From the fault to the end of the first turn that went well."""
    load_s: float
    """Of that, what a new engine took to load, or a new probe or reader that the turn had to wait
    for; 0 where the old ones went on."""
    lines: list[str]
    ready: list[int]


def play(faulty: Faulty, phase: str, harm: Callable[[Faulty], None]) -> Outcome:
    """One fault in one phase; checks what must hold whatever the fault was."""
    return asyncio.run(_play(faulty, phase, harm))


async def _play(faulty: Faulty, phase: str, harm: Callable[[Faulty], None]) -> Outcome:
    faulty.lines()
    async with faulty.socket() as client:
        turn = Turn(client)
        await PHASES[phase](faulty, turn)
        with Readiness(faulty) as readiness:
            before = faulty.engine.pid
            harm(faulty)
            harmed, harmed_at = time.monotonic(), time.time()
            terminal = None if phase == "idle" else await turn.terminal()
            turns = [] if phase == "idle" else [turn]
            while not turns or turns[-1] is turn or not await _went_well(turns[-1]):
                turns.append(Turn(client))
                pad = PAD if phase == "read" else 0
                await turns[-1].send(input="again", max_output_tokens=4, pad=pad)
                assert time.monotonic() < harmed + PATIENCE_S, turns[-2].events[-1]
            recovery_s = time.monotonic() - harmed
        pong = await client.ping()
        await pong  # what else was under way has come before it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                while True:
                    turns[-1].events.append(orjson.loads(await client.recv()))
    events = [event for turn in turns for event in turn.events]
    ended = Counter(_response_id(event) for event in events if event["type"] in TERMINAL)
    assert set(ended.values()) == {1}, ended
    assert len(ended) == len(turns), (ended, len(turns))
    lines = faulty.lines()
    assert not [line for line in lines if "Traceback" in line], lines
    return Outcome(
        terminal=terminal,
        recovery_s=recovery_s,
        load_s=_helper_s(faulty, harmed_at)
        if faulty.engine.pid == before
        else _load_s(faulty, lines),
        lines=lines,
        ready=readiness.seen,
    )


def _helper_s(faulty: Faulty, since: float) -> float:
    """How old the first probe or reader is that was born since then."""
    born = [process.create_time() for process in (*faulty.probes, *faulty.readers)]
    return max((time.time() - at for at in born if at > since), default=0.0)


def _load_s(faulty: Faulty, lines: list[str]) -> float:
    """From the birth of the engine's process to its line that it is ready."""
    (line,) = [line for line in lines if "engine ready" in line]
    ready = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    return ready - faulty.engine.create_time()


async def _went_well(turn: Turn) -> bool:
    """Whether a turn was completed; one that an engine's death caught may be asked again."""
    last = await turn.terminal()
    reason = last.get("response", {}).get("keepwarm", {}).get("reason")
    assert last["type"] != "error", last
    assert last["type"] != "response.failed" or reason == "engine_died", last
    return last["type"] != "response.failed"


def _response_id(event: dict[str, Any]) -> str:
    response = event.get("response")
    return response["id"] if response else "error"


def reset(port: int, data: bytes = b"") -> socket.socket:
    """A connection that will end with a reset when it is closed."""
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if data:
        made.sendall(data)
    return made
