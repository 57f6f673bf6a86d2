"""A server's work when the ground under it gives way.

    python -m benchmarks.ground --json

A row for each fault, at rest and under eight sessions that stream: ``not_ready_s`` from the fault
to the first 503 of ``/readyz``; ``acknowledged_after_s``, how long after it a turn was still
acknowledged; ``refused_ms`` p99 of creates while it lasted, and ``engine_steps`` in that time, once
the turns that ran had ended; ``log_lines`` of warnings and errors in its time, which is less than
a minute; ``ready_again_s`` from its end, where it has one. ``acknowledged_lost``: responses that
are neither in the journal nor in the saved file after the server was killed; where the fault itself
has destroyed them and the log says how many, ``told_lost``. The model is ``random:qwen3-tiny``.

``--smoke`` makes a few of them, and each once. PostgreSQL's row is left out where that is not
installed.
"""

import argparse
import asyncio
import contextlib
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks.ground_faults import DATABASE_GONE, ENDLESS, FAULTS, Fault, Ground, failing_disk
from benchmarks.report import Bar, parser, report
from keepwarm.demo.child_server import ChildServer, child_server
from sessions.journal.recovery import recover
from sessions.journal.sqlite import SqliteJournal
from sessions.tenants import DEFAULT_TENANT
from tests.support.postgres import PROGRAMS, PostgresServer, postgres_server

OPTIONS = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--threads", "1"]
OPTIONS += ["--startup-profile-ms", "0", "--startup-profile-folder", "", "--max-draft-tokens", "0"]
SESSIONS, TOKENS, ASKING = 8, 48, 3
LASTS_S = 3.0
"""A fault, once it was seen."""
PATIENCE_S = 12.0
SMOKE = (("fsync_eio", True), ("disk_full", False), ("removed", False))
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


@dataclass(slots=True)
class Served:
    """A server, its journal, and what it has acknowledged."""

    server: ChildServer
    log: Path
    ground: Ground
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Response ids, and when."""

    def page(self, path: str) -> tuple[int, str]:
        """Status and text; 0: no answer."""
        try:
            base = self.server.url.removesuffix("/v1")
            with urllib.request.urlopen(base + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def steps(self) -> float:
        """Steps of the engine, so far."""
        found = re.search(
            r"^keepwarm_engine_step_seconds_count (\S+)$", self.page("/metrics")[1], re.M
        )
        return float(found[1]) if found else 0.0

    def complaints(self, after: int = 0) -> list[str]:
        """Warnings and errors in the log, behind so many bytes."""
        text = self.log.read_bytes()[after:].decode()
        return [line for line in text.splitlines() if re.search(r" (WARNING|ERROR) ", line)]

    async def turn(self, session: str, number: int) -> tuple[str, float]:
        """Play one; returns its last event's type, and when it came."""
        url = self.server.url.replace("http", "ws") + "/responses"
        frame = {"type": "response.create", "input": f"turn {number}", "max_output_tokens": TOKENS}
        frame["keepwarm"] = {"session": session}
        async with connect(url, compression=None, open_timeout=30) as client:
            sent = time.monotonic()
            await client.send(orjson.dumps(frame).decode())
            while True:
                event = orjson.loads(await client.recv())
                if event["type"] in TERMINAL:
                    if event["type"] in ("response.completed", "response.incomplete"):
                        self.acknowledged[event["response"]["id"]] = time.monotonic()
                    return str(event["type"]), time.monotonic() - sent


async def _stream(served: Served, session: str, refused: list[float]) -> None:
    """Turn after turn; ``refused`` gets how long each took that was refused."""
    number = 0
    while True:
        number += 1
        with contextlib.suppress(OSError, WebSocketException, TimeoutError):
            ended, took_s = await served.turn(session, number)
            if ended == "error":
                refused.append(took_s)
        await asyncio.sleep(0.01)


async def _until(served: Served, is_ready: bool) -> float:
    """Seconds until ``/readyz`` says so; infinite: it does not."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        status, _ = await asyncio.to_thread(served.page, "/readyz")
        if status in ((200,) if is_ready else (503, 0)):
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    return float("inf")


async def play(served: Served, fault: Fault, *, loaded: bool) -> dict[str, Any]:
    """One fault, from before it to after it."""
    refused, name = list[float](), fault.name
    for number in range(2):
        await served.turn(f"{name}.before", number)
    agents = [
        asyncio.create_task(_stream(served, f"{name}{n}", refused))
        for n in range(SESSIONS if loaded else 0)
    ]
    await asyncio.sleep(1.0 if loaded else 0.0)
    log_at, refused[:] = served.log.stat().st_size, []
    began = time.monotonic()
    end = await asyncio.to_thread(fault.make, served.ground)
    row: dict[str, Any] = {"fault": name, "loaded": loaded}
    row["not_ready_s"] = await _until(served, False)
    if fault.refuses:
        row |= await _while_it_lasts(served, fault, refused)
        acknowledged = [at - began for at in served.acknowledged.values() if at > began]
        row["acknowledged_after_s"] = max(acknowledged, default=0.0)
    if end is not None:
        await asyncio.to_thread(end)
        row["ready_again_s"] = await _until(served, True)
    for agent in agents:
        agent.cancel()
    await asyncio.gather(*agents, return_exceptions=True)
    row["log_lines"] = len(served.complaints(log_at))
    return row


async def _while_it_lasts(served: Served, fault: Fault, refused: list[float]) -> dict[str, Any]:
    """Others ask meanwhile: those whose turns ran may still wait for their records."""
    sessions = [f"{fault.name}.after{n}" for n in range(ASKING)]
    asking = [asyncio.create_task(_stream(served, each, refused)) for each in sessions]
    await asyncio.sleep(LASTS_S / 3)  # what ran has ended
    before = served.steps()
    await asyncio.sleep(LASTS_S)
    steps = served.steps() - before
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    times = sorted(refused)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))] * 1000 if times else float("inf")
    return {"refused_ms": p99, "refused": len(times), "engine_steps": steps}


@contextmanager
def serving(folder: Path, place: str, database: PostgresServer | None = None) -> Iterator[Served]:
    """A server whose journal is at ``place``; a disk that fails is under ``folder``'s journal."""
    log, control = folder / "log", folder / "control"
    with child_server([*OPTIONS, "--journal", place], log=log) as server:
        process = psutil.Process(server.process.pid)
        journal = folder / "disk" / "j.db"
        ground = Ground(process=process, journal=journal, control=control, database=database)
        yield Served(server, log, ground)


def _lost(served: Served, folder: Path) -> list[str]:
    """Records that were acknowledged and are nowhere: the server has been killed, as in a crash."""
    found: set[str] = set()
    places = [served.ground.journal, *folder.rglob("*.saved-*Z")]
    for n, path in enumerate(path for path in places if path.exists() and path.stat().st_size):
        with contextlib.suppress(Exception):
            recover(path, folder / f"recovered{n}")
            journal = SqliteJournal(folder / f"recovered{n}", fingerprint=b"")
            found |= {
                id_ for id_ in served.acknowledged if journal.turn(DEFAULT_TENANT, id_) is not None
            }
            journal.close()
    return [id_ for id_ in served.acknowledged if id_ not in found]


def on_sqlite(faults: Sequence[tuple[Fault, bool]]) -> list[dict[str, Any]]:
    """Rows of faults that one server is to see, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        rows = []
        with (
            failing_disk(folder / "disk", folder / "control"),
            serving(folder, str(folder / "disk/j.db")) as served,
        ):
            for fault, loaded in faults:
                rows.append(asyncio.run(play(served, fault, loaded=loaded)))
            served.server.process.kill()
            served.server.process.wait()
        lost = _lost(served, folder)
        told = re.findall(r"not_saved=(\d+)", served.log.read_text())
        for (fault, _), row in zip(faults, rows, strict=True):
            destroyed = sum(map(int, told)) if fault.destroys else 0
            row["acknowledged_lost"] = max(len(lost) - destroyed, 0)
            row["told_lost"] = destroyed
        return rows


def on_postgres(modes: Sequence[bool]) -> list[dict[str, Any]]:
    """Rows of a database that goes and comes back."""
    rows = []
    with (
        tempfile.TemporaryDirectory() as name,
        postgres_server() as database,
        serving(Path(name), database.address, database) as served,
    ):
        for loaded in modes:
            rows.append(asyncio.run(play(served, DATABASE_GONE, loaded=loaded)))
        ids = list(served.acknowledged)
        lost = sum(served.page(f"/v1/responses/{id_}")[0] != 200 for id_ in ids)
    return [row | {"acknowledged_lost": lost, "told_lost": 0} for row in rows]


def options() -> argparse.ArgumentParser:
    """The command line."""
    found = parser(__doc__)
    found.add_argument("--smoke", action="store_true", help="a few faults, each once")
    return found


def table(*, smoke: bool) -> list[dict[str, Any]]:
    """All rows."""
    by_name = {fault.name: fault for fault in FAULTS}
    both = [(fault, loaded) for fault in FAULTS for loaded in (False, True)]
    if smoke:
        both = [(by_name[name], loaded) for name, loaded in SMOKE]
    ending = [each for each in both if each[0].name not in ENDLESS]
    rows = on_sqlite(ending)
    for each in both:
        if each[0].name in ENDLESS:
            rows += on_sqlite([each])
    if not smoke and PROGRAMS is not None:
        rows += on_postgres((False, True))
    return rows


_BARS: dict[str, float] = {
    "not_ready_s": 2.0,
    "ready_again_s": 2.0,
    "acknowledged_after_s": 1.0,
    "refused_ms": 1200.0,
    "engine_steps": 0.0,
    "log_lines": 4.0,
    "acknowledged_lost": 0.0,
}


def main() -> int:
    """Measure, print, and return the exit code."""
    given = options().parse_args()
    rows = table(smoke=given.smoke)
    bars = [
        Bar(name=name, value=max(row[name] for row in rows if name in row), op="<=", bar=bar)
        for name, bar in _BARS.items()
    ]
    return report("ground", {"rows": rows, "smoke": given.smoke}, bars, as_json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
