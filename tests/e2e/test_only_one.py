"""What only PostgreSQL can show: an advisory lock that one holds, and buckets that many draw on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from cluster.rows import MemberRows
from sessions.journal.errors import JournalUnavailable
from sessions.journal.members import MemberState, Presence, bell_of
from sessions.journal.only_one import OnlyOne
from sessions.journal.postgres import PostgresJournal
from sessions.journal.postgres_connection import connected
from sessions.quotas import Draw
from tests.support.postgres import MISSING, PROGRAMS, PostgresServer, postgres_server

pytestmark = pytest.mark.skipif(PROGRAMS is None, reason=MISSING)
SAID = Presence(cluster="c", address="10.0.0.1:80", identity="m", state=MemberState.READY)


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def contender(database: PostgresServer, name: str) -> OnlyOne:
    return OnlyOne(lambda: connected(database.address), name)


def test_one_holds_it_until_it_leaves_and_names_have_nothing_to_do_with_each_other(
    database: PostgresServer,
) -> None:
    first, second, other = (contender(database, name) for name in ("x", "x", "y"))
    assert [each.holds() for each in (first, second, other, first)] == [True, False, True, True]
    first.leave()
    assert second.holds()
    assert not first.holds()
    for each in (first, second, other):
        each.leave()


def test_whoever_loses_its_connection_asks_anew_and_may_find_another_one(
    database: PostgresServer,
) -> None:
    first, second = contender(database, "z"), contender(database, "z")
    assert first.holds()
    assert not second.holds()
    with psycopg.connect(database.address, autocommit=True) as boss:
        boss.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )
    with pytest.raises(JournalUnavailable):
        first.holds()
    assert second.holds()
    assert not first.holds()
    for each in (first, second):
        each.leave()


def test_a_database_that_is_away_says_so_and_is_asked_again(database: PostgresServer) -> None:
    one = contender(database, "w")
    assert one.holds()
    database.stop()
    for _ in range(2):
        with pytest.raises(JournalUnavailable, match=r"^PostgreSQL: "):
            one.holds()
    database.start()
    assert one.holds()
    one.leave()


def test_rows_are_the_one_balances_which_hears_of_changes(database: PostgresServer) -> None:
    heard = []
    first = MemberRows(database.address, "c", lambda: heard.append(1))
    second = MemberRows(database.address, "c", lambda: None)
    assert first.read() == []  # no server has opened a journal yet
    assert second.read() is None
    with psycopg.connect(database.address) as empty:
        assert empty.execute("SELECT to_regclass('member')").fetchone() == (None,)
    journal = PostgresJournal(database.address, fingerprint=b"f", owner="a")
    journal.ownership.join(SAID)
    (row,) = first.read() or []
    first.write({"a": 3}, ["a"])
    assert journal.ownership.beat(SAID, changed=True).told
    (after,) = first.read() or []
    assert (row.slot, after.slot, after.told_ms > 0) == (0, 3, True)
    first.bury(SAID.address)
    assert first.read() == []
    with psycopg.connect(database.address, autocommit=True) as teller:
        while not heard:
            teller.execute("SELECT pg_notify('keepwarm', %s)", (bell_of("c"),))
    first.close()
    assert second.read() == []
    second.close()
    journal.close()


def test_servers_that_draw_at_once_get_together_what_one_would(database: PostgresServer) -> None:
    journals = [PostgresJournal(database.address, fingerprint=b"f", owner=str(n)) for n in range(4)]
    of = Draw(cluster="c", kind="turns", limit=50, amount=1)

    def draw(journal: PostgresJournal) -> float:
        return sum(journal.ownership.draw("t", [of])[0].amount for _ in range(30))

    with ThreadPoolExecutor(4) as threads:
        given = sum(threads.map(draw, journals))
    assert 50 <= given <= 53  # a few more by the time that it takes
    for each in journals:
        each.close()
