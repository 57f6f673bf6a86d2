"""A tenants file is read again whole, or what held before goes on holding."""

import logging
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from sessions.command.prices import check_budgets
from sessions.command.reload import reload_tenants
from sessions.durable.ledger import PriceTable
from sessions.tenants import ApiKey, Principal, Tenants, TokenPrices
from sessions.tenants_file import key_row

OLD = ApiKey.of("old-key-of-acme", tenant="acme", name="old")
NEW = ApiKey.of("new-key-of-acme", tenant="acme", name="new")


class Revoked:
    def __init__(self) -> None:
        self.principals: set[Principal] = set()

    def __call__(self, principals: Collection[Principal]) -> int:
        self.principals |= set(principals)
        return len(principals)


def test_a_good_file_holds_from_now_on_and_ends_what_it_no_longer_lets_in(tmp_path: Path) -> None:
    path, tenants, revoked = tmp_path / "tenants.toml", Tenants([OLD]), Revoked()
    path.write_text(key_row(NEW))
    assert reload_tenants(path, tenants, revoked)
    assert revoked.principals == {OLD.principal}
    assert tenants.authenticate("old-key-of-acme") is None
    assert tenants.authenticate("new-key-of-acme") == NEW.principal


@pytest.mark.parametrize("bad", ["", "[[keys]]\nname = 3\n", None])
def test_a_bad_file_changes_nothing_and_the_log_says_why(
    tmp_path: Path, bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, tenants, revoked = tmp_path / "tenants.toml", Tenants([OLD]), Revoked()
    if bad is not None:
        path.write_text(key_row(NEW) * 0 + bad)
    assert not reload_tenants(path, tenants, revoked)
    assert tenants.authenticate("old-key-of-acme") == OLD.principal
    assert not revoked.principals
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert str(path) in record.getMessage()


def test_no_pipe_is_waited_for_while_the_server_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, tenants = tmp_path / "tenants.toml", Tenants([OLD])
    os.mkfifo(path)
    assert not reload_tenants(path, tenants, Revoked())
    assert tenants.authenticate("old-key-of-acme") == OLD.principal
    assert "a pipe whose writer did not end within 0 s" in caplog.text


def test_limits_and_prices_hold_from_now_on_all_or_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, tenants = tmp_path / "tenants.toml", Tenants([OLD])
    table = "[tenants.acme]\nconnections = 2\nprices = {input = 1, cached = 0, output = 1}\n"
    path.write_text(key_row(OLD) + table)
    check = partial(check_budgets, prices=PriceTable())
    assert reload_tenants(path, tenants, Revoked(), check)
    held = tenants.policy_of("acme")()
    assert held.connections == 2
    assert held.prices == TokenPrices(input_uncached=10**9, input_cached=0, output=10**9)
    for wrong in (
        "connections = 9\nprices = {input = 1}\n",
        "connections = 9\nbudget = {cost = 1.0}\n",
    ):
        caplog.clear()
        path.write_text(f"{key_row(OLD)}[tenants.acme]\n{wrong}")
        assert not reload_tenants(path, tenants, Revoked(), check)
        assert "tenants acme" in caplog.text
        assert tenants.policy_of("acme")() is held
