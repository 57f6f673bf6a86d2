"""Shares of accounts: what is taken, drawn and given back, and a server that died with one."""

from pathlib import Path

import pytest

from sessions.durable.account import NOTHING, Amount, Budget
from sessions.journal import shares
from sessions.journal.ownership import Ownership
from sessions.journal.shares import Want
from sessions.journal.sqlite import SqliteJournal
from tests.support.journals import record, reservation

BUDGET = Budget(output=12, cost=10**9)


def opened(path: Path, owner: str) -> tuple[SqliteJournal, Ownership]:
    journal = SqliteJournal(path, fingerprint=b"f", owner=owner, shared=True)
    assert journal.ownership is not None
    journal.ownership.beat()
    return journal, journal.ownership


def asked(own: Ownership, output: int) -> Amount:
    want = Want(name="tenant", budget=BUDGET, amount=Amount(output=output, input_cached=99))
    (share,) = own.claim_shares("t", [want])
    return share.amount


def test_two_servers_are_given_no_more_than_there_is_together(tmp_path: Path) -> None:
    (a, own), (b, other) = opened(tmp_path / "j", "a"), opened(tmp_path / "j", "b")
    assert asked(own, 8) == Amount(output=8), "of kinds without a bound there is no share"
    assert asked(other, 8) == Amount(output=4)
    drawn = (("tenant", ("output",)),)
    ended = record("r1", accounts=("tenant",), shares=drawn)
    assert ended.usage.output_tokens == 5
    assert a.append([ended]) == [True]
    assert asked(other, 8) == NOTHING
    own.return_share("t", "tenant")
    assert asked(other, 8) == Amount(output=3)
    beyond = record("r2", parent=ended, accounts=("tenant",), shares=drawn)
    assert a.append([beyond]) == [False], "it has no share any more"
    assert a.account("t", "tenant").turns == 1
    b.close()
    assert asked(own, 99) == Amount(output=7), "who leaves gives back"
    a.close()


def test_what_a_dead_server_had_is_spent_as_far_as_its_turns_held_it_and_else_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, own), (b, other) = opened(tmp_path / "j", "a"), opened(tmp_path / "j", "b")
    assert asked(own, 12) == Amount(output=12)
    a.reserve([reservation("r1", output=5, accounts=("tenant",))])
    assert asked(other, 12) == NOTHING
    monkeypatch.setattr(Ownership, "_lives", lambda _, __, owner: owner == "b")
    assert asked(other, 12) == Amount(output=7)
    assert b.account("t", "tenant").usage.output_tokens == 5
    assert [each.response_id for each in other.pop_settled()] == ["r1"]
    b.close()
    a.close()


def test_a_share_covers_what_is_bounded() -> None:
    assert shares.covers(Amount(output=5), Amount(output=6), ["cost"])
    assert not shares.covers(Amount(output=5), Amount(output=6), ["output"])
    assert not shares.covers(None, NOTHING, [])
