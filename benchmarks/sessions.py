"""Cost of sessions that last: the journal's commits, loads, memory and latency.

    python -m benchmarks.sessions --json

``journal_commit_over_fsync`` is the median time of one ``append`` over that of writing and syncing
the same bytes to a file beside it; ``journal_turns_per_s`` is 64 tasks on the writer, no sockets.
``open_100k_s`` opens a warm file of that many sessions of one turn; ``load_150_turns_ms`` reads a
chain of 150 turns, items parsed and linked, in one thread; turns are of about 8 KB.
``idle_session_bytes`` is the growth of resident memory by sessions whose entries fell out, each:
whole turns through connections, store and journal in this process, with a scripted engine. The two
ratios are a server with a journal over one without: a turn's latency with 8 sessions of
``random:qwen3-100m``, and turns a second with 64 of the shipped model; rounds in turns, medians.
``accounting_share_of_step`` is that of ``benchmarks.accounting``. What a request id costs a turn
on a journal that servers share has no bar: ``take_ms`` to take it before the turn is planned, and
``append_ms`` more to write the turn; medians, in SQLite and, where it is installed, PostgreSQL.
"""

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.report import Bar, parser, report
from keepwarm.demo.child_server import child_server
from sessions.journal.adoption import Loader, link_up
from sessions.journal.postgres import PostgresJournal
from sessions.journal.records import TurnRecord
from sessions.journal.sql import SqlJournal
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import JournalWriter, Ticket, Verdict
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.journals import record
from tests.support.postgres import PROGRAMS, postgres
from tests.support.wire_client import WireClient
from tools_api.limits import Limits

TURN_CHARS = 5_500
"""Characters of a turn, beside 560 token ids: about 8 KB in the file."""
TURN_IDS = 280


def turn(
    response_id: str,
    parent: TurnRecord | None = None,
    session: str = "s",
    request_id: str | None = None,
) -> TurnRecord:
    """A record of about 8 KB."""
    said = (response_id + " said ") * (TURN_CHARS // (len(response_id) + 6))
    return record(
        response_id,
        parent=parent,
        session=session,
        answer=said,
        size=TURN_IDS,
        request_id=request_id,
    )


def commit_over_fsync(folder: Path, rounds: int) -> tuple[float, dict[str, float]]:
    """The ratio, and both medians in milliseconds."""
    journal = SqliteJournal(folder / "commit", fingerprint=b"f")
    descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT)
    log_file = Path(f"{folder / 'commit'}-wal")
    commits, syncs, size = [], [], 0
    for n in range(rounds):
        before, ended = log_file.stat().st_size, turn(f"r{n}", session=f"s{n}")
        begun = time.perf_counter()
        journal.append([ended])
        commits.append(time.perf_counter() - begun)
        grown = log_file.stat().st_size - before
        size = grown if grown > 0 else size  # a log that was begun anew: as the last one
        data = os.urandom(size)
        begun = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        syncs.append(time.perf_counter() - begun)
    journal.close()
    os.close(descriptor)
    commit, sync = statistics.median(commits), statistics.median(syncs)
    return commit / sync, {"commit_ms": commit * 1000, "fsync_ms": sync * 1000, "bytes": size}


def turns_per_s(folder: Path, tasks: int, turns: int) -> float:
    """Tasks that each wait for a turn's record before they hand over the next."""

    async def run() -> float:
        journal = SqliteJournal(folder / "rate", fingerprint=b"f")

        def tell(pairs: Sequence[tuple[Ticket, Verdict]]) -> None:
            for ticket, verdict in pairs:
                assert verdict.written
                assert isinstance(ticket.key, asyncio.Future)
                ticket.key.set_result(None)

        writer = JournalWriter(journal, tell)
        made = [[turn(f"r{k}.{n}", session=f"s{k}") for n in range(turns)] for k in range(tasks)]

        async def play(mine: Sequence[TurnRecord]) -> None:
            for each in mine:
                told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                writer.append(each, told)
                await told

        begun = time.perf_counter()
        await asyncio.gather(*map(play, made))
        seconds = time.perf_counter() - begun
        writer.close()
        journal.close()
        return tasks * turns / seconds

    return asyncio.run(run())


def request_id_ms(folder: Path, rounds: int) -> dict[str, float]:
    """The time that a request id costs a turn of a journal that servers share; PostgreSQL's part is
    left out where that is not installed."""
    sqlite = SqliteJournal(folder / "ids", fingerprint=b"f", owner="me", shared=True)
    found = _request_id_ms(sqlite, rounds, "sqlite")
    if PROGRAMS is not None:
        with postgres() as address:
            found |= _request_id_ms(
                PostgresJournal(address, fingerprint=b"f", owner="me"), rounds, "postgres"
            )
    return found


def _request_id_ms(journal: SqlJournal, rounds: int, store: str) -> dict[str, float]:
    owner = journal.ownership
    assert owner is not None
    taken, more = list[float](), list[float]()
    for n in range(rounds):
        request_id = f"request {n}"
        taken.append(_timed(lambda id_=request_id: owner.claim_request("t", id_)))
        written = dict[str | None, float]()
        for id_ in (None, request_id) if n % 2 else (request_id, None):
            made = turn(f"{store}{n}.{id_}", session=f"s{n}.{id_}", request_id=id_)
            written[id_] = _timed(lambda record=made: journal.append([record]))
        more.append(written[request_id] - written[None])
    journal.close()
    take, append = statistics.median(taken), statistics.median(more)
    return {f"{store}_take_ms": take * 1000, f"{store}_append_ms": append * 1000}


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def open_many(folder: Path, sessions: int) -> float:
    """Seconds to open a file of that many sessions, which has been opened before."""
    journal = SqliteJournal(folder / "many", fingerprint=b"f")
    for first in range(0, sessions, 500):
        some = range(first, min(first + 500, sessions))
        journal.append([turn(f"r{n}", session=f"s{n}") for n in some])
    journal.close()
    SqliteJournal(folder / "many", fingerprint=b"f").close()
    begun = time.perf_counter()
    journal = SqliteJournal(folder / "many", fingerprint=b"f")
    seconds = time.perf_counter() - begun
    journal.close()
    return seconds


def load_chain(folder: Path, turns: int, rounds: int) -> float:
    """Milliseconds to have a chain back, median."""
    journal = SqliteJournal(folder / "chain", fingerprint=b"f")
    parent: TurnRecord | None = None
    for n in range(turns):
        parent = turn(f"r{n}", parent)
        journal.append([parent])
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        loaded = Loader(journal, fingerprint=b"f").load("t", f"r{turns - 1}")
        assert loaded is not None
        link_up(loaded.turns, lambda _: None)
        times.append(time.perf_counter() - begun)
    journal.close()
    return statistics.median(times) * 1000


def idle_bytes(folder: Path, sessions: int) -> float:
    """Resident bytes that each of so many sessions leaves that fell out of memory: whole turns,
    each on a connection and in a named session of its own, two seconds apart, with the times and
    bounds of a server. The engine answers as a real one does, also that a released branch is gone.
    Before it is measured there are as many in memory as ever will be."""
    journal = SqliteJournal(folder / "idle", fingerprint=FINGERPRINT, synchronous="OFF")
    rig = JournalRig(journal, limits=Limits())
    pause_s = 2.0

    def play(names: range) -> None:
        for n in names:
            client = rig.connect()
            client.turn(input="0 " + "x" * 300, keepwarm={"session": f"idle{n}"})
            client.disconnect()
            rig.clock.advance(pause_s)
            if n % 100 == 0:
                rig.sweep()
                rig.forget_past()
        gc.collect()

    warm = round(1.5 * rig.service.limits.stored_response_ttl_s / pause_s)
    play(range(warm))
    before = _resident()
    play(range(warm, warm + sessions))
    grown = _resident() - before
    journal.close()
    return max(grown, 0) / sessions


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _play(url: str, sessions: int, turns: int, tokens: int) -> tuple[float, float]:
    """Median seconds of a turn, and turns a second."""
    times: list[float] = []

    async def agent() -> None:
        client, parent = await WireClient.open(url), {}
        for _ in range(turns):
            begun = time.perf_counter()
            fields: dict[str, Any] = {"input": "go on", "max_output_tokens": tokens, **parent}
            parent = {"previous_response_id": (await client.response(**fields))["id"]}
            times.append(time.perf_counter() - begun)
        await client.close()

    begun = time.perf_counter()
    await asyncio.gather(*(agent() for _ in range(sessions)))
    return statistics.median(times), sessions * turns / (time.perf_counter() - begun)


def servers(
    folder: Path, options: Sequence[str], *, sessions: int, turns: int, tokens: int, rounds: int
) -> tuple[float, float]:
    """Latency and turns a second with a journal, over those without; medians of the rounds."""
    latency, rate = [], []
    for n in range(rounds):
        found = []
        for place in (":memory:", str(folder / f"server{n}")):
            with child_server([*options, "--journal", place], log=folder / "log") as server:
                asyncio.run(_play(server.url, 2, 1, tokens))
                found.append(asyncio.run(_play(server.url, sessions, turns, tokens)))
        (slow, few), (slow_kept, few_kept) = found
        latency.append(slow_kept / slow)
        rate.append(few_kept / few)
    return statistics.median(latency), statistics.median(rate)


def accounting_share() -> float | None:
    """The result of ``benchmarks.accounting``; None: it says nothing."""
    command = [sys.executable, "-m", "benchmarks.accounting", "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    for bar in orjson.loads(done.stdout)["bars"] if done.stdout else ():
        if bar["name"] == "accounting_share_of_step":
            return None if bar["value"] is None else float(bar["value"])
    return None


def options() -> argparse.ArgumentParser:
    """The command line."""
    found = parser(__doc__)
    found.add_argument("--smoke", action="store_true", help="everything once, and small")
    return found


def main() -> int:
    """Measure, print, and return the exit code."""
    given = options().parse_args()
    small = given.smoke
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        ratio, figures = commit_over_fsync(folder, 20 if small else 400)
        rate = turns_per_s(folder, 64, 2 if small else 100)
        ids = request_id_ms(folder, 10 if small else 400)
        opened = open_many(folder, 500 if small else 100_000)
        loaded = load_chain(folder, 150, 3 if small else 21)
        idle = idle_bytes(folder, 200 if small else 100_000)
        rounds = 1 if small else 5
        slow = ["--model", "random:qwen3-tiny" if small else "random:qwen3-100m"]
        latency, _ = servers(
            folder, slow, sessions=8, turns=2 if small else 6, tokens=16, rounds=rounds
        )
        shipped, many = servers(
            folder, (), sessions=64, turns=1 if small else 8, tokens=16, rounds=rounds
        )
    bars = [
        Bar(name="journal_commit_over_fsync", value=ratio, op="<=", bar=2.0),
        Bar(name="turn_latency_ratio", value=latency, op="<=", bar=1.05),
        Bar(name="journal_turns_per_s", value=rate, op=">=", bar=2000),
        Bar(name="server_turns_ratio", value=many, op=">=", bar=0.9),
        Bar(name="accounting_share_of_step", value=accounting_share(), op="<=", bar=0.01),
        Bar(name="open_100k_s", value=opened, op="<=", bar=2.0),
        Bar(name="idle_session_bytes", value=idle, op="<=", bar=1024),
        Bar(name="load_150_turns_ms", value=loaded, op="<=", bar=15.0),
    ]
    shown = figures | ids | {"turn_latency_ratio_shipped": shipped, "smoke": small}
    return report("sessions", shown, bars, as_json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
