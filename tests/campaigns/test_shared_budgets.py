"""Two servers that spend from one tenant's and one tree's budget at once never overspend it.

Real connections on simulated engines, over one journal. Servers are stopped until the others take
them for dead, and wake; ``KEEPWARM_SHARED_OPERATIONS`` sets how much happens (CONTRIBUTING.md).
"""

import os
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from runtime.messages import FinishReason
from sessions.durable.account import Amount
from sessions.durable.ledger import PriceTable
from sessions.journal import ownership, shares
from sessions.journal.records import TENANT_ACCOUNT, tree_account
from sessions.journal.sqlite import SqliteJournal
from sessions.tenants import TenantPolicy, Tenants
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.sessions_rig import END, Client, token_ids
from tools_api.requests import Bounds

OPERATIONS = int(os.environ.get("KEEPWARM_SHARED_OPERATIONS", "1500"))
PRICES = PriceTable(input_uncached=3_000_000_000, input_cached=300_000_007, output=15_000_000_001)
TENANT = {"output": 6000, "input_uncached": 9000}
TREE = {"output": 2500, "input_cached": 9000}
COST = 0.2
"""Dollars, of the tenant."""


class World:
    """Two servers, and what the database says of them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        budget = Bounds(cost=COST, **TENANT)
        tenants = Tenants([], {"acme": TenantPolicy(budget=budget)})
        self.journals = [
            SqliteJournal(path, fingerprint=FINGERPRINT, owner=owner, shared=True) for owner in "ab"
        ]
        self.rigs = [JournalRig(each, prices=PRICES, tenants=tenants) for each in self.journals]
        for at, rig in enumerate(self.rigs):
            rig.numbers = count(1 + at * 10**6)
            rig.hold = True
        self.clients = [(at, self.connect(at)) for at in (0, 1) for _ in range(4)]
        self.seen: Counter[Client] = Counter()
        self.told: dict[str, dict[str, Any]] = {}
        """Ended responses that clients saw."""
        self.asleep: int | None = None
        self.beat()

    def connect(self, at: int) -> Client:
        return self.rigs[at].connect()

    def beat(self) -> None:
        """Of those that are awake."""
        for at, journal in enumerate(self.journals):
            if at != self.asleep:
                journal.ownership.beat()  # type: ignore[union-attr]

    def operate(self) -> None:
        rng = self.rng
        kind = rng.choices(("step", "create", "commit", "cancel", "sleep"), (60, 25, 30, 2, 1))[0]
        awake = [at for at in (0, 1) if at != self.asleep]
        at = rng.choice(awake)
        rig = self.rigs[at]
        if kind == "step" and rig.engine.open:
            self.step(rig)
        elif kind == "create":
            client = rng.choice([client for where, client in self.clients if where == at])
            self.create(client, at)
        elif kind == "commit" and rig.held:
            rig.commit()
        elif kind == "cancel":
            rng.choice(self.clients)[1].send(type="response.cancel", stream_id=rng.choice("ab"))
        elif kind == "sleep" and self.asleep is None:
            self.asleep = at
            self.journals[at].ownership.leave_members()  # type: ignore[union-attr]
        elif kind == "sleep":
            self.wake()
        self.take_events()

    def wake(self) -> None:
        """As ``JournalDesk.awake``."""
        at, self.asleep = self.asleep, None
        if at is not None:
            self.beat()
            self.rigs[at].recollection.shared.doubt()
            for session in list(self.rigs[at].store.any_sessions()):
                if not session.in_use:
                    self.rigs[at].store.tenant(session.tenant).forget_session(session.name)

    def step(self, rig: JournalRig) -> None:
        turn = self.rng.choice(list(rig.engine.open.values()))
        request = turn.request
        cached = None
        if not turn.started and self.rng.random() < 0.5:
            cached = self.rng.randint(0, len(turn.tokens) - 1)
        left = request.max_new_tokens - len(turn.emitted)
        text = "x" * min(left, self.rng.choice((0, 1, 7, 40, 90)))
        finish = None
        if text and self.rng.random() < 0.1:
            text, finish = text[:-1] + END, FinishReason.STOP
        elif len(text) == left:
            finish = FinishReason.LENGTH
        tokens = token_ids(text)[:left]
        rig.deliver(rig.engine.output(request, tokens, finish, cached=cached))

    def create(self, client: Client, at: int, **fields: Any) -> None:
        name = f"{at}.{self.rng.randrange(4)}"
        options: dict[str, Any] = {"session": name}
        if self.rng.random() < 0.6:
            options = {"session": f"below.{name}", "parent_session": "root"}
        if self.rng.random() < 0.2:
            fields["text"] = {"format": {"type": "json_object"}}
        most = self.rng.choice((20, 300, 700))
        text = "hi" * self.rng.randint(1, 20)
        fields = {"input": text, "max_output_tokens": most} | fields
        client.create(keepwarm=options, stream_id=self.rng.choice("ab"), **fields)

    def take_events(self) -> None:
        for _, client in self.clients:
            for event in client.events[self.seen[client] :]:
                response = event.get("response", {})
                if response.get("status") in ("completed", "incomplete") and response["usage"]:
                    self.told[response["id"]] = response
            self.seen[client] = len(client.events)

    # What must hold

    def spent_and_shared(self, name: str) -> tuple[Amount, Amount]:
        journal = self.journals[0]
        with journal.reading() as cursor:
            reserved = Amount()
            for each in shares.shares_of(cursor, "acme", name).values():
                reserved = reserved.plus(each)
        return journal.account("acme", name).spent, reserved

    def check(self) -> None:
        for name, bounds in (
            (TENANT_ACCOUNT, TENANT | {"cost": round(COST * 10**9)}),
            (tree_account("root"), TREE),
        ):
            spent, reserved = self.spent_and_shared(name)
            for kind, bound in bounds.items():
                together = getattr(spent, kind) + getattr(reserved, kind)
                assert together <= bound, (name, kind, spent, reserved)
        for rig in self.rigs:
            for account in rig.recollection.shared.drawn_on:
                assert account.reach is not None
                assert account.lacks(Amount()) is None, "it holds more than it was given"

    def finish(self) -> None:
        """All turns end, and what was not spent is free again."""
        self.wake()
        for rig in self.rigs:
            while rig.engine.open or rig.held:
                if rig.engine.open:
                    self.step(rig)
                else:
                    rig.commit()
        self.take_events()
        output = sum(response["usage"]["output_tokens"] for response in self.told.values())
        spent, reserved = self.spent_and_shared(TENANT_ACCOUNT)
        assert output <= spent.output, "what was acknowledged is paid for"
        assert reserved == Amount()


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server lives from its heartbeat to the end of it, however long this test takes."""
    monkeypatch.setattr(ownership, "DEAD_MS", 10**9)

    def leave_members(own: ownership.Ownership) -> None:
        with own.journal.writing() as cursor:
            cursor.execute("DELETE FROM member WHERE owner = ?", (own.journal.owner,))

    monkeypatch.setattr(ownership.Ownership, "leave_members", leave_members, raising=False)


@pytest.mark.usefixtures("beating")
@pytest.mark.parametrize("seed", [11, 12])
def test_two_servers_never_overspend_what_they_share(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "journal", seed)
    budget = {"scope": "tree", **TREE}
    world.rigs[0].hold = False
    root = {"session": "root", "budget": budget}
    world.connect(0).turn("ok" + END, input="a", max_output_tokens=20, keepwarm=root)
    world.rigs[0].hold = True
    for _ in range(OPERATIONS // 2):
        world.operate()
        world.check()
    world.finish()
    world.check()
    spent, _ = world.spent_and_shared(TENANT_ACCOUNT)
    reasons = Counter(
        report.reason for rig in world.rigs for report in rig.reports if report.status == "failed"
    )
    print(f"seed={seed} told={len(world.told)} spent={spent} {reasons}")
    assert spent.output == TENANT["output"], "it can be spent to the last token"
    assert len(world.told) > 10
    for journal in world.journals:
        journal.close()
