"""Turns of a tenant whose limits several servers share: two servers begin what one would."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions.journal.errors import JournalUnavailable
from sessions.journal.ownership import Ownership
from sessions.tenants import ApiKey, TenantPolicy, Tenants
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.timed_journal import TimedJournal

TENANTS = Tenants(
    [ApiKey.of("key-of-acme", tenant="acme")], {"acme": TenantPolicy(turns_per_minute=3)}
)


class Servers:
    """Two servers of a cluster over one file, and the clock of their database."""

    def __init__(self, file: Path) -> None:
        self.now_ms = 1_000_000
        self.rigs = []
        for name in ("a", "b"):
            journal = TimedJournal(
                file, lambda: self.now_ms, fingerprint=FINGERPRINT, owner=name, shared=True
            )
            assert journal.ownership is not None
            journal.ownership.beat()
            rig = JournalRig(journal, tenants=TENANTS)
            rig.store.quotas.servers.cluster = "c"
            self.rigs.append(rig)

    def pass_time(self, seconds: float) -> None:
        self.now_ms += round(1000 * seconds)
        for rig in self.rigs:
            rig.clock.now_s += seconds


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path / "j")
    yield made
    for rig in made.rigs:
        rig.journal.close()


def begins(rig: JournalRig) -> bool:
    client = rig.connect("acme")
    client.create(input="hello")
    last: dict[str, Any] = client.last
    if last["type"] == "error":
        assert last["error"]["code"] == "rate_limit_exceeded"
        return False
    return True


def test_two_servers_begin_together_what_one_would(servers: Servers) -> None:
    here, there = servers.rigs
    assert [begins(rig) for rig in (here, there, here, there, here)] == [True] * 3 + [False] * 2
    servers.pass_time(20)
    assert [begins(rig) for rig in (there, here)] == [True, False]


def test_while_the_journal_cannot_be_asked_a_server_goes_on_with_its_part(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = servers.rigs
    here.store.quotas.servers.count = 2

    def away(*_: object) -> None:
        raise JournalUnavailable("away")

    monkeypatch.setattr(Ownership, "draw", away)
    assert [begins(here), begins(here)] == [True, False]
    servers.pass_time(40)
    assert [begins(here), begins(here)] == [True, False]
