"""Servers of a cluster that die or hang in mid-turn: when their clients hear of that again, and
whether the books agree. Parts of ``benchmarks.replicas``."""

import asyncio
import contextlib
import os
import signal
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.replica_parts import (
    LONG,
    SHORT,
    Answer,
    Sizes,
    client,
    haproxy_before,
    replace_dead,
    told,
)
from cluster.haproxy_file import Listening, text
from keepwarm import Response
from sessions.journal.encoding import decode_turn
from sessions.journal.postgres import PostgresJournal
from tests.support.clusters import Cluster
from tests.support.journals import assert_books_agree

# Deaths


@dataclass(slots=True)
class Books:
    """What clients of sessions saw."""

    responses: dict[str, list[Response]] = field(default_factory=dict)

    def saw(self, session: str, *responses: Response) -> None:
        self.responses.setdefault(session, []).extend(responses)

    def faults(self, cluster: Cluster) -> list[str]:
        """Everything in which the journal does not agree with that."""
        found = []
        with contextlib.closing(
            PostgresJournal(cluster.database.address, fingerprint=b"", owner="books", beside=True)
        ) as journal:
            for name, seen in self.responses.items():
                found += self._of_session(journal, name, seen)
        return found

    def _of_session(
        self, journal: PostgresJournal, name: str, seen: Sequence[Response]
    ) -> Iterator[str]:
        record, rows = journal.session("default", name), journal.session_turns("default", name)
        if record is None:
            yield f"{name}: it is not there"
            return
        try:
            assert_books_agree(record, rows)
        except AssertionError as error:
            yield f"{name}: {error}"
        bodies = {row.response_id: decode_turn(row) for row in rows}
        if [row.response_id for row in rows if row.continuable] != [each.id for each in seen]:
            yield f"{name}: its turns are others than its client saw"
        shown = {
            each.id: bodies[each.id].terminal.count(each.text[:200].encode()) for each in seen
            if each.id in bodies and each.text.isascii() and '"' not in each.text[:200]
        }  # fmt: skip
        yield from (
            f"{name}: the output of {id_} differs" for id_, count in shown.items() if not count
        )
        cut = [body for id_, body in bodies.items() if id_ not in {each.id for each in seen}]
        if any(body.usage.output_tokens > LONG["max_output_tokens"] for body in cut):
            yield f"{name}: a turn that was cut holds more than it had reserved"
        counted = sum(each.usage.output_tokens for each in seen)
        counted += sum(body.usage.output_tokens for body in cut)
        if counted != record.account.usage.output_tokens:
            yield f"{name}: clients counted {counted}, the account {record.account.usage}"


async def interrupted(cluster: Cluster, name: str, number: int, books: Books) -> float:
    """The seconds until the client heard again of its turn whose server got a signal."""
    struck: list[int] = []

    def strike() -> None:
        struck.append(cluster.owner_of(name).process.pid)
        os.kill(struck[0], number)

    async def wake() -> None:
        if number == signal.SIGSTOP:
            os.kill(struck[0], signal.SIGCONT)
            await asyncio.sleep(3.0)  # what it does when it wakes

    return await struck_in_turn(cluster.url, name, strike, books, wake)


async def nothing() -> None:
    """Done between a turn that was struck and the next one."""


async def struck_in_turn(
    url: str,
    name: str,
    strike: Callable[[], None],
    books: Books,
    between: Callable[[], Awaitable[None]] = nothing,
) -> float:
    """The seconds until the client heard again of its turn in whose middle ``strike`` was done."""
    async with client(url) as own:
        session = own.session(name=name)
        books.saw(name, await session.respond("hello", **SHORT))
        runs = asyncio.Event()
        turn = asyncio.create_task(told(session, runs))
        await runs.wait()
        await asyncio.to_thread(strike)
        response, silent_s, _ = await turn
        await between()
        books.saw(name, response, await session.respond("and now?", **SHORT))
    return silent_s


async def kills(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    books, took = Books(), {True: list[float](), False: list[float]()}
    for number in range(sizes.kills):
        parent_lives = number % 2 == 0
        cluster.buries = parent_lives
        await asyncio.to_thread(replace_dead, cluster, sizes)
        for each in cluster.replicas:
            each._on_death = cluster._bury if parent_lives else lambda _: None
        silent_s = await interrupted(cluster, f"killed {number}", signal.SIGKILL, books)
        took[parent_lives].append(silent_s)
    await asyncio.to_thread(replace_dead, cluster, sizes)
    await asyncio.to_thread(kill_bars, answer, took, books, cluster, "")


def kill_bars(
    answer: Answer, took: dict[bool, list[float]], books: Books, cluster: Cluster, prefix: str
) -> None:
    """The bars of kills: seconds by whether the parent lives, and the books."""
    answer.figures[f"{prefix}kill_front_end_s"] = {"parent_lives": took[True], "both": took[False]}
    answer.bar(f"{prefix}kill_front_end_s_p50", statistics.median(took[True]), "<=", 3.0)
    answer.bar(f"{prefix}kill_both_s_p50", statistics.median(took[False]), "<=", 4.5)
    answer.bar(f"{prefix}kill_worst_s", max(took[True] + took[False]), "<=", 15.0)
    faults = books.faults(cluster)
    answer.figures[f"{prefix}books"] = faults
    answer.bar(f"{prefix}books_faults", len(faults), "<=", 0)


async def stalls(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    books, took = Books(), []
    for number in range(sizes.stalls):
        took.append(await interrupted(cluster, f"stopped {number}", signal.SIGSTOP, books))
        await asyncio.to_thread(replace_dead, cluster, sizes)
    answer.figures["stall_s"] = took
    answer.bar("stall_s_p50", statistics.median(took), "<=", 6.0)
    answer.bar("stall_worst_s", max(took), "<=", 15.0)
    faults = await asyncio.to_thread(books.faults, cluster)
    answer.bar("stall_books_faults", len(faults), "<=", 0)
    without = await stall_without_shutdown(cluster)
    answer.bar("stall_without_shutdown_s", without, ">=", 20.0)


async def stall_without_shutdown(cluster: Cluster) -> float:
    """The same behind an HAProxy that leaves the sockets of a server open which is down."""

    def write(listening: Listening) -> str:
        return text(listening).replace(" on-marked-down shutdown-sessions", "")

    with haproxy_before([each.address for each in cluster.replicas], write) as port:
        before, cluster.port = cluster.port, port
        try:
            return await interrupted(cluster, "not shut down", signal.SIGSTOP, Books())
        finally:
            cluster.port = before
