"""The journal in a real PostgreSQL: its promises, and two servers that share it."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from keepwarm.commands.main import main
from sessions.command.journal_options import look_at_journal, read_journal_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import resolve
from sessions.durable.account import Amount, Budget
from sessions.durable.conversations import moved, read_of
from sessions.journal.bell import CHANNEL
from sessions.journal.errors import (
    JournalError,
    JournalOtherVersion,
    JournalParentGone,
    JournalUnavailable,
)
from sessions.journal.inspection import Seen
from sessions.journal.ownership import DEAD_MS, Ownership
from sessions.journal.postgres import PostgresJournal
from sessions.journal.postgres_connection import STATEMENT_MS, JournalConnection, connected
from sessions.journal.samples import MINUTE_S, Sample
from sessions.journal.shares import Want
from sessions.journal.tables import FIRST_EPOCH, VERSION
from tests.support.journals import record, reservation
from tests.support.postgres import MISSING, PROGRAMS, postgres
from tests.unit.sessions.journal import test_batch as more_promises
from tests.unit.sessions.journal import test_journal as promises
from tests.unit.sessions.journal import test_journal_conversations as conversations
from tests.unit.sessions.journal import test_listing as listing_promises
from tests.unit.sessions.journal import test_usage as usage_promises
from tests.unit.sessions.journal import test_usage_reading as sums_promises
from tests.unit.sessions.wire.test_journal_desk import Bench, Client

pytestmark = pytest.mark.skipif(PROGRAMS is None, reason=MISSING)
_databases = itertools.count(1)

for _module in (promises, more_promises, usage_promises, sums_promises, listing_promises):
    for _name in dir(_module):
        # Every promise that is made of all journals is asked of this one too.
        _test = getattr(_module, _name)
        if _name.startswith("test_") and "journal" in getattr(_test, "__annotations__", {}):
            globals()[_name] = _test


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as address:
        yield address


@pytest.fixture
def address(server: str) -> str:
    """Of an empty database."""
    name = f"journal{next(_databases)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def journal(address: str) -> Iterator[PostgresJournal]:
    opened = opened_as(address, "a")
    yield opened
    opened.close()


def opened_as(address: str, owner: str) -> PostgresJournal:
    return PostgresJournal(address, fingerprint=b"f", owner=owner)


def test_two_servers_take_turns_at_one_chain_a_hundred_times(address: str) -> None:
    async def scenario() -> None:
        ids = iter(range(10_000))
        journals = [opened_as(address, owner) for owner in ("a", "b")]
        benches = [Bench(Path(), ids, journal=journal) for journal in journals]
        clients = [Client(bench) for bench in benches]
        parent: dict[str, str] = {}
        for n in range(100):
            event = await clients[n % 2].turn(keepwarm={"session": "s"}, **parent)
            assert event["type"] == "response.completed", event
            assert event["response"]["keepwarm"]["turn"] == n + 1
            parent = {"previous_response_id": event["response"]["id"]}
        session = journals[0].session("acme", "s")
        assert session is not None
        assert session.account.turns == 100
        assert len(journals[0].session_turns("acme", "s")) == 100
        for bench in benches:
            await bench.close()

    # The owner looks for wishes every 250 ms: the test need not wait that long.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.wire.session_sharing.POLL_S", 0.01)
        patch.setattr("sessions.journal.ownership.ASK_AGAIN_S", 0.005)
        asyncio.run(asyncio.wait_for(scenario(), 120))


def test_an_owner_that_slept_is_refused_when_it_wakes(address: str) -> None:
    """As after SIGSTOP: its heartbeats stop, another takes over, its append comes late."""
    a, b = opened_as(address, "a"), opened_as(address, "b")
    first = record("r1")
    assert a.append([first]) == [True]
    now_ms = [1000]
    for journal in (a, b):
        own = Ownership(journal=journal, now_ms=lambda _: now_ms[0], waiter=a.ownership.waiter)
        object.__setattr__(journal, "_ownership", own)
    a.ownership.beat()
    now_ms[0] += DEAD_MS + 1
    claimed = b.claim("t", "s", 0.0)
    assert claimed is not None
    assert claimed.epoch == 2
    late, other = record("r2", parent=first, epoch=1), record("r9", session="mine")
    assert a.append([late, other]) == [False, True]
    assert a.turn("t", "r2") is None
    assert b.append([record("r3", parent=first, epoch=2)]) == [True]
    session = b.session("t", "s")
    assert session is not None
    assert (session.account.turns, session.head_id) == (2, "r3")
    a.close()
    b.close()


def test_two_servers_that_make_the_same_rows_at_once_lose_none(address: str) -> None:
    a, b = opened_as(address, "a"), opened_as(address, "b")

    def fill(journal: PostgresJournal, letter: str) -> None:
        for n in range(50):
            turn = record(f"{letter}{n}", session=f"{letter}{n}", accounts=("tenant",))
            while True:
                try:
                    assert journal.append([turn]) == [True]
                    break
                except JournalUnavailable:
                    continue

    async def both() -> None:
        await asyncio.gather(asyncio.to_thread(fill, a, "a"), asyncio.to_thread(fill, b, "b"))

    asyncio.run(both())
    assert a.account("t", "tenant").turns == 100
    a.close()
    b.close()


def test_conversations_are_kept_and_moved_as_in_a_file(journal: PostgresJournal) -> None:
    conversations.test_it_is_changed_from_the_version_that_is_there_alone(journal)
    one = conversations.ONE
    turn = replace(conversations.turn_of(one, "resp_1"), epoch=FIRST_EPOCH)
    assert journal.put_conversation("t", one, version=None)
    assert journal.append([turn]) == [True]
    stands = moved(one, read_of(one), "resp_1", turn.entry)
    assert journal.conversation("t", one.id) == stands
    late = conversations.turn_of(replace(one, edits=7), "resp_2")
    with pytest.raises(JournalParentGone):
        journal.append([replace(late, epoch=FIRST_EPOCH)])
    journal.expire(journal.clock_s() + 1000)
    assert journal.conversation("t", one.id) is None
    assert journal.turn("t", "resp_1") is None


def test_two_servers_that_change_a_conversation_at_once_lose_no_item(address: str) -> None:
    journals = [opened_as(address, owner) for owner in ("a", "b")]
    one = conversations.ONE
    made = [journal.put_conversation("t", one, version=None) for journal in journals]
    assert made == [True, False]

    def change(number: int) -> int:
        journal, tries = journals[number % 2], 0
        while True:
            tries += 1
            found = journal.conversation("t", one.id)
            assert found is not None
            kept = found.changed({**found.metadata, str(number): ""})
            if journal.put_conversation("t", kept, version=found.version):
                return tries

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(24)))
    found = journals[0].conversation("t", one.id)
    assert found is not None
    assert set(map(str, range(24))) <= set(found.metadata)
    assert found.version == one.version + 24
    for journal in journals:
        journal.close()


def test_a_server_that_cuts_its_connections_is_asked_again(
    address: str, journal: PostgresJournal
) -> None:
    journal.append([record("r1")])
    with psycopg.connect(address, autocommit=True) as other:
        others = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        other.execute(
            f"SELECT pg_terminate_backend(pid) FROM ({others} AND datname IS NOT NULL) AS x"
        )
    with pytest.raises(JournalUnavailable):
        journal.append([record("r2")])
    assert journal.append([record("r2")]) == [True]
    assert journal.turn("t", "r1") is not None


def test_a_server_that_only_reads_now_is_asked_again_on_a_new_connection(address: str) -> None:
    """As behind a failover: who was the first is the standby, and says 25006."""
    name = address.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(address, autocommit=True) as other:
        journal = opened_as(address, "a")
        assert journal.append([record("r1")]) == [True]
        other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        journal.close()
        journal = opened_as(address, "a")
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match="read-only transaction"):
                journal.append([record("r2")])
        assert journal.turn("t", "r1") is not None
        other.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
        with pytest.raises(JournalUnavailable):
            journal.append([record("r2")])  # on the connection that has read
        assert journal.append([record("r2")]) == [True]
        journal.close()


def test_an_address_nobody_listens_at_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable) as refused:
        opened_as(f"postgresql:///x?host={tmp_path}", "a")
    assert "\n" not in str(refused.value)


def test_what_the_address_says_of_the_schema_and_the_network_stays(address: str) -> None:
    kept: dict[str, Any] = {}

    def keep(**given: Any) -> None:
        kept.update(given)
        raise psycopg.OperationalError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalConnection, "connect", keep)
        with pytest.raises(psycopg.OperationalError):
            connected("postgresql://me:p%40%3A%2F@db,other/x?keepalives_idle=60")
    assert (kept["host"], kept["password"], kept["keepalives_idle"]) == ("db,other", "p@:/", "60")
    assert kept["tcp_user_timeout"] <= STATEMENT_MS, "a host that is gone is given up"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA mine")
        there = f"{address}&options=-csearch_path%3Dmine%20-cstatement_timeout%3D0"
        opened_as(there, "a").close()
        schemas = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'journal'"
        assert connection.execute(schemas.encode()).fetchall() == [("mine",)]
        with connected(there) as other:
            assert other.execute("SHOW statement_timeout").fetchone() == ("5s",)


def test_a_database_that_cannot_hold_every_text_gets_no_tables(server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE l ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(JournalError, match="encoding LATIN1, and a journal needs UTF8"):
        opened_as(server.replace("/postgres?", "/l?"), "a")
    with psycopg.connect(server.replace("/postgres?", "/l?")) as connection:
        assert connection.execute("SELECT to_regclass('journal')").fetchone() == (None,)


def test_every_text_is_kept_whatever_encoding_the_environment_names(address: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGCLIENTENCODING", "LATIN1")
        journal = opened_as(address, "a")
    assert journal.append([record("r1", session="\u65e5")]) == [True]
    assert journal.session("t", "\u65e5") is not None
    journal.close()


def test_a_user_who_may_not_write_is_told_before_a_turn_is(address: str) -> None:
    opened_as(address, "a").close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        journal = opened_as(address.replace("user=keepwarm", "user=reader"), "b")
        with pytest.raises(JournalUnavailable, match="this user may not INSERT in the table"):
            journal.look()
        with pytest.raises(JournalUnavailable, match="permission denied"):
            journal.append([record("r1")])
        right = "INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"
        connection.execute(f"GRANT {right} TO reader".encode())
        journal.look()
        assert journal.append([record("r1")]) == [True]
        connection.execute("DROP TABLE curve")
        with pytest.raises(JournalUnavailable, match="in the table 'curve'"):
            journal.look()
        journal.close()


def test_a_database_that_takes_nobody_more_is_asked_again_after_the_start(address: str) -> None:
    opened_as(address, "a").close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 0")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO few")
        few = address.replace("user=keepwarm", "user=few")
        with pytest.raises(JournalUnavailable, match="too many connections"):
            opened_as(few, "b")
        journal = PostgresJournal(few, fingerprint=b"f", owner="b", patient=True)
        connection.execute("ALTER ROLE few CONNECTION LIMIT 5")
        journal.look()
        assert journal.append([record("r1")]) == [True]
        journal.close()


def looked(address: str) -> Seen | None:
    """As ``keepwarm doctor`` does."""
    values = resolve("serve", SERVE_SETTINGS, typed={"journal": address}, environment={})
    return look_at_journal(read_journal_options(values, {}), b"f")


def test_who_looks_makes_no_tables_and_hears_what_keeps_a_server_from_it(address: str) -> None:
    assert looked(address) is None
    with psycopg.connect(address, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('journal')").fetchone() == (None,)
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(JournalUnavailable, match="this user may not make one: grant CREATE"):
        looked(address.replace("user=keepwarm", "user=guest"))
    journal = opened_as(address, "a")
    journal.append([record("r1")])
    assert looked(address) == Seen(sessions=1, num_bytes=0, whole=True)
    journal.close()
    journal.close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE journal SET commits = 99")
    with pytest.raises(JournalOtherVersion):
        looked(address)


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_a_journal_of_another_version_is_refused_and_left_as_it_is(
    address: str, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    opened_as(address, "a").close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE journal SET commits = %s", (version,))
    said = f"tables of version {version}, and this program reads version {VERSION} alone"
    with pytest.raises(JournalOtherVersion, match=said):
        opened_as(address, "a")
    status, _, err = ran(capsys, "list", "--journal", address)
    assert (status, err.count("\n")) == (1, 1)
    assert said in err
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT commits FROM journal").fetchone() == (version,)


def test_who_wants_a_session_and_who_lets_it_go_are_told(address: str) -> None:
    """Nobody looks by himself here: an hour passes between two looks."""
    a, b = opened_as(address, "a"), opened_as(address, "b")
    for journal in (a, b):
        journal.append([record("r1" if journal is a else "r2", session=journal.owner)])
        journal.ownership.beat()
    asked, listening, free = threading.Event(), threading.Event(), threading.Event()
    a.listen(asked.set)
    b.listen(listening.set)
    assert asked.wait(10), "once it listens it looks for what was asked before"
    assert listening.wait(10)
    asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.journal.ownership.ASK_AGAIN_S", 3600.0)

        def claim() -> None:
            assert b.claim("t", "a", 3600.0) is not None
            free.set()

        claiming = threading.Thread(target=claim)
        claiming.start()
        assert asked.wait(10)
        assert a.ownership.wanted() == [("t", "a")]
        a.release("t", ["a"])
        assert free.wait(10)
        claiming.join()
    a.close()
    b.close()


def test_a_listener_that_loses_its_connection_listens_again(address: str) -> None:
    heard = threading.Semaphore(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.journal.bell.RETRY_S", 0.01)
        journal = opened_as(address, "a")
        journal.listen(heard.release)
        assert heard.acquire(timeout=10)
        with psycopg.connect(address, autocommit=True) as other:
            cut = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            )
            other.execute(cut)
            assert heard.acquire(timeout=10), "it looks at once for what it may have missed"
            for server in ("somebody else", "a"):
                other.execute("SELECT pg_notify(%s, %s)", (CHANNEL, server))
            assert heard.acquire(timeout=10)
            assert not heard.acquire(blocking=False)
        journal.close()


def test_servers_read_each_others_curves(address: str) -> None:
    first, second = opened_as(address, "a"), opened_as(address, "b")
    mine = Sample(width_s=MINUTE_S, number=9, tenant="", body=b"mine")
    theirs = replace(mine, body=b"theirs")
    first.keep_samples([mine])
    second.keep_samples([theirs])
    assert first.samples("", MINUTE_S, 0, own=False) == [theirs]
    assert second.samples("", MINUTE_S, 0, own=False) == [mine]
    both = first.samples("", MINUTE_S, 0, own=True)
    assert sorted(each.body for each in both) == [b"mine", b"theirs"]
    first.close()
    second.close()


def test_two_servers_that_take_shares_at_once_are_given_no_more_than_there_is(
    address: str,
) -> None:
    journals = [opened_as(address, owner) for owner in ("a", "b")]
    for journal in journals:
        journal.ownership.beat()
    want = Want(name="tenant", budget=Budget(output=200), amount=Amount(output=3))

    def take(journal: PostgresJournal) -> int:
        given = 0
        for _ in range(50):
            (share,) = journal.ownership.claim_shares("t", [want])
            given += share.amount.output
        return given

    with ThreadPoolExecutor() as threads:
        assert sum(threads.map(take, journals)) == 200
    journals[0].close()
    (rest,) = journals[1].ownership.claim_shares(
        "t", [Want(name="tenant", budget=Budget(output=200), amount=Amount(output=200))]
    )
    assert rest.amount.output > 0, "who leaves gives back"
    journals[1].close()


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["sessions", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_sessions_are_listed_shown_and_deleted_by_command_beside_their_server(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, tenant = ("--journal", address), ("--tenant", "t")
    status, _, err = ran(capsys, "list", *place)
    assert (status, err.count("\n")) == (1, 1), "there is none, and none is made"
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT to_regclass('journal')").fetchone() == (None,)
    journal = opened_as(address, "a")
    first = record("r1")
    journal.append([first, record("r2", parent=first, session="fork")])
    journal.claim("t", "s", 0)
    journal.claim("t", "fork", 0)
    journal.reserve([reservation("r3", session="fork", epoch=1)])
    status, out, _ = ran(capsys, "list", *place, "--json")
    assert status == 0
    assert {each["session"] for each in json.loads(out)} == {"s", "fork"}
    assert ran(capsys, "list", *place, "--tenant", "other", "--json")[1].strip() == "[]"
    status, out, _ = ran(capsys, "show", *place, *tenant, "fork", "--json")
    assert [(each["response"], each["status"]) for each in json.loads(out)] == [
        ("r2", "completed"),
        ("r3", "running"),
    ]
    assert "r1" in ran(capsys, "show", *place, *tenant, "s")[1]
    status, out, _ = ran(capsys, "delete", *place, *tenant, "s", "--json")
    assert json.loads(out) == [{"deleted": "s", "ended": ["fork"]}]
    assert ran(capsys, "show", *place, *tenant, "s")[0] == 1
    assert ran(capsys, "delete", *place, *tenant, "s")[0] == 1
    with pytest.raises(JournalParentGone):
        journal.append([record("r4", parent=first)])
    assert journal.append([record("r5", session="new")]) == [True]
    assert ran(capsys, "vacuum", *place)[::2] == (
        1,
        "keepwarm: error: a journal in PostgreSQL is vacuumed by its own tools\n",
    )
    journal.close()


def test_of_servers_that_take_an_id_at_once_one_has_it(address: str) -> None:
    journals = [opened_as(address, owner) for owner in ("a", "b")]
    for journal in journals:
        journal.ownership.beat()

    def take(journal: PostgresJournal) -> list[bool]:
        return [journal.ownership.claim_request("t", f"q{n}") for n in range(50)]

    with ThreadPoolExecutor() as threads:
        here, there = threads.map(take, journals)
    assert all(mine != theirs for mine, theirs in zip(here, there, strict=True))
    journals[0].append([record("r1", request_id="q0")])
    first, second = journals
    assert second.ownership.claim_request("t", "q0"), "its turn is written"
    assert not first.ownership.claim_request("t", "q0")
    first.close()
    assert all(take(second)), "who leaves has none"
    second.close()
