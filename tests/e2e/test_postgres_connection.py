"""Connections to PostgreSQL through a real PgBouncer: in session mode all is as without one, in any
other it is refused before a row is touched."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

from cluster.rows import MemberRows
from sessions.journal.bell import CHANNEL
from sessions.journal.errors import JournalError, JournalPooled, JournalUnavailable
from sessions.journal.only_one import OnlyOne
from sessions.journal.postgres import PostgresJournal
from sessions.journal.postgres_connection import MARK, JournalConnection, connected
from tests.e2e import test_postgres as direct
from tests.support.journals import record
from tests.support.pgbouncer import MISSING, PROGRAM, Pooler, pooler
from tests.support.postgres import MISSING as NO_POSTGRES
from tests.support.postgres import PROGRAMS, PostgresServer, postgres_server
from tests.unit.sessions.journal import test_journal as promises

pytestmark = [
    pytest.mark.skipif(PROGRAMS is None, reason=NO_POSTGRES),
    pytest.mark.skipif(PROGRAM is None, reason=MISSING),
]
_databases = itertools.count(1)
AS_WITHOUT = [
    direct.test_an_owner_that_slept_is_refused_when_it_wakes,
    direct.test_two_servers_that_make_the_same_rows_at_once_lose_none,
    direct.test_who_wants_a_session_and_who_lets_it_go_are_told,
    direct.test_two_servers_that_take_shares_at_once_are_given_no_more_than_there_is,
    direct.test_of_servers_that_take_an_id_at_once_one_has_it,
    direct.test_servers_read_each_others_curves,
    direct.test_sessions_are_listed_shown_and_deleted_by_command_beside_their_server,
]
for _test in AS_WITHOUT:
    globals()[_test.__name__] = _test
for _name in dir(promises):
    _promise = getattr(promises, _name)
    if _name.startswith("test_") and "journal" in getattr(_promise, "__annotations__", {}):
        globals()[_name] = _promise


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def standing(database: PostgresServer) -> Iterator[Pooler]:
    """One in session mode for tests that change nothing about it."""
    with pooler(database) as made:
        yield made


@pytest.fixture
def changing(database: PostgresServer) -> Iterator[Pooler]:
    """One for a test alone."""
    with pooler(database) as made:
        yield made


def database_of(database: PostgresServer, pooled: str) -> str:
    """The same database without the pooler."""
    return database.address.replace("/postgres", f"/{pooled.rpartition('/')[2]}")


def named(database: PostgresServer, address: str) -> str:
    """The address of an empty database."""
    name = f"pooled{next(_databases)}"
    with psycopg.connect(database.address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return address.replace("/postgres", f"/{name}")


@pytest.fixture
def address(database: PostgresServer, standing: Pooler) -> str:
    return named(database, standing.address)


@pytest.fixture
def journal(address: str) -> Iterator[PostgresJournal]:
    opened = direct.opened_as(address, "a")
    yield opened
    opened.close()


def test_a_pooled_session_has_our_limits_and_what_the_address_says(address: str) -> None:
    asked = r"-capplication_name%3Dmine%5C%20own%20--geqo%3Doff%20-c%20statement_timeout%3D0"
    with connected(f"{address}?options={asked}") as connection:
        assert connection.mark, "a pooler is seen"
        settings = (
            "statement_timeout", "idle_in_transaction_session_timeout", "synchronous_commit",
            "application_name", "geqo", "client_encoding", MARK,
        )  # fmt: skip
        found = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in settings]
    expected = ("5s", "5s", "on", "mine own", "off", "UTF8", connection.mark)
    assert found == [(each,) for each in expected]


def test_a_direct_session_has_them_and_no_mark(database: PostgresServer) -> None:
    with connected(f"{database.address}&options=-csearch_path%3Dmine") as connection:
        assert connection.mark == ""
        assert connection.execute("SHOW statement_timeout").fetchone() == ("5s",)
        assert connection.execute("SHOW search_path").fetchone() == ("mine",)
        connection.rollback()
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_what_a_pooler_cannot_carry_of_an_address_is_named(address: str) -> None:
    with pytest.raises(JournalError, match="has the option '-e', and the pooler"):
        connected(f"{address}?options=-e")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("settings", [{}, {"server_round_robin": 1, "min_pool_size": 3}])
@pytest.mark.parametrize("ignored", ["", "options"])
def test_a_pooler_that_gives_sessions_away_is_refused_and_left_as_it_was(
    database: PostgresServer, mode: str, settings: dict[str, str | int], ignored: str
) -> None:
    settings = {**settings, "ignore_startup_parameters": ignored} if ignored else settings
    with pooler(database, pool_mode=mode, **settings) as made:
        address = named(database, made.address)
        for patient in (False, True):
            with pytest.raises(JournalPooled, match="pool_mode = session, server_reset_query"):
                PostgresJournal(address, fingerprint=b"f", owner="a", patient=patient)
        rows = MemberRows(address, "c")
        with pytest.raises(JournalPooled):
            rows.read()
        rows.close()
        with psycopg.connect(address, autocommit=True) as other:
            assert other.execute("SHOW statement_timeout").fetchone() == ("0",)
            assert other.execute("SELECT to_regclass('journal')").fetchone() == (None,)


def test_a_pooler_that_does_not_tidy_up_is_refused(database: PostgresServer) -> None:
    with pooler(database, server_reset_query="") as made:
        address = named(database, made.address)
        connected(address).close()
        with pytest.raises(JournalPooled):
            connected(address)


def until_refused(call: Callable[[], object]) -> None:
    """Ask until it is in a session of somebody else."""
    for _ in range(100):
        call()
    raise AssertionError("a session that was given away is used")


def until_taken(call: Callable[[], object]) -> None:
    """Ask until all sessions that others left are tidied up."""
    for _ in range(100):
        with suppress(JournalUnavailable):
            call()
            return
    call()


def test_a_pooler_that_is_changed_meanwhile_is_noticed_and_taken_again(
    database: PostgresServer, changing: Pooler
) -> None:
    address = named(database, changing.address)
    journal, balance = direct.opened_as(address, "a"), OnlyOne(lambda: connected(address), "x")
    heard = threading.Semaphore(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sessions.journal.bell._LOOK_EVERY_S", 0.01)
        patch.setattr("sessions.journal.bell.RETRY_S", 0.01)
        journal.listen(heard.release)
        assert heard.acquire(timeout=10)
        assert balance.holds()
        assert journal.append([record("r1")]) == [True]
        changing.change(pool_mode="transaction")
        with ExitStack() as others:
            journal.look()
            balance.holds()
            for _ in range(4):  # in transactions, in the sessions that were ours
                others.enter_context(psycopg.connect(address)).execute("SELECT 1")
            with pytest.raises(JournalPooled):
                until_refused(journal.look)
            with pytest.raises(JournalPooled):
                until_refused(balance.holds)
            with pytest.raises(JournalUnavailable):
                until_refused(lambda: journal.append([record("r2", session="x")]))
        changing.change(pool_mode="session")
        until_taken(journal.look)
        until_taken(balance.holds)
        assert journal.append([record("r2", session="y")]) == [True]
        while heard.acquire(blocking=False):
            pass
        until = time.monotonic() + 20
        with psycopg.connect(database_of(database, address), autocommit=True) as teller:
            while not heard.acquire(timeout=0.1):
                teller.execute("SELECT pg_notify(%s, 'a')", (CHANNEL,))
                assert time.monotonic() < until, "it does not listen any more"
    balance.leave()
    journal.close()


def test_one_alone_is_the_balance_through_a_pooler_and_lets_go_when_it_dies(address: str) -> None:
    opened = []

    def open_second() -> JournalConnection:
        opened.append(connected(address))
        return opened[-1]

    first, second = OnlyOne(lambda: connected(address), "x"), OnlyOne(open_second, "x")
    assert [each.holds() for each in (first, second, first)] == [True, False, True]
    first.leave()
    assert second.holds()
    assert not first.holds()
    first.leave()
    (dies,) = opened
    with socket.socket(fileno=os.dup(dies.pgconn.socket)) as raw:
        raw.shutdown(socket.SHUT_RDWR)  # as when its process is killed
    until = time.monotonic() + 20
    while not first.holds():
        assert time.monotonic() < until
    first.leave()
    dies.close()


def test_a_database_that_is_away_or_full_behind_a_pooler_is_said_in_time_and_asked_again(
    database: PostgresServer,
) -> None:
    with postgres_server() as own, pooler(own, server_login_retry=1) as made:
        journal = direct.opened_as(made.address, "a")
        own.stop()
        with pytest.raises(JournalUnavailable):
            journal.append([record("r1")])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sessions.journal.postgres_connection.FIRST_ANSWER_S", 0.5)
            patient = PostgresJournal(made.address, fingerprint=b"f", owner="b", patient=True)
            with pytest.raises(JournalUnavailable):
                patient.look()
        own.start()
        until = time.monotonic() + 30
        for each in (journal, patient):
            while True:
                try:
                    each.look()
                    break
                except JournalUnavailable:
                    assert time.monotonic() < until
        assert journal.append([record("r1")]) == [True]
        assert patient.turn("t", "r1") is not None
        made.change(server_login_retry=1, default_pool_size=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sessions.journal.postgres_connection.FIRST_ANSWER_S", 0.5)
            with pytest.raises(JournalUnavailable, match="no connection to spare"):
                PostgresJournal(made.address, fingerprint=b"f", owner="c")
        for each in (journal, patient):
            each.close()
