"""Random trees of sessions whose turns and KV draw on the same budgets: nothing is overspent, and
ledger, journal and what was told are the same account.

KEEPWARM_BUDGET_OPERATIONS sets how many operations are played.
"""

import os
import random
from dataclasses import replace

import pytest

from runtime.messages import Residency
from sessions.durable.account import Account, Budget, BudgetExceeded
from sessions.durable.ledger import NOTHING_UNSETTLED, Ledger, PriceTable, TurnUsage
from sessions.durable.reservation import Reservation, TurnNeeds
from sessions.durable.residents import Residents
from sessions.durable.session import Session
from sessions.journal.records import TENANT_ACCOUNT, TurnRecord, session_account, tree_account
from sessions.turns.commits import residency_record
from tests.support.memory_journal import MemoryJournal

OPERATIONS = int(os.environ.get("KEEPWARM_BUDGET_OPERATIONS", "10000"))
PER_RUN = 500
LANES = 4
RUNS = max(1, OPERATIONS // (LANES * PER_RUN))
TENANT = "acme"


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.prices = PriceTable(
            input_uncached=rng.randint(0, 10**12),
            output=rng.randint(0, 10**12),
            residency=rng.choice([0, rng.randint(1, 10**13)]),
        )
        self.tenant = Account(scope="tenant", budget=self._budget())
        self.sessions: list[Session] = []
        for number in range(rng.randint(1, 10)):
            self._session(f"s{number}")
        self.residents = Residents(lambda session: session)
        self.branches: list[str] = []
        self.journal = MemoryJournal()
        self.running: dict[str, tuple[Session, Reservation]] = {}
        self.count = self.cut = self.refused = 0
        self.told_us = 0

    def _budget(self) -> Budget:
        rng = self.rng
        return Budget(
            residency=rng.choice([None, rng.randint(0, 10**9)]),
            cost=rng.choice([None, rng.randint(0, 10**9)]),
        )

    def _session(self, name: str) -> None:
        session = Session(name=name, tenant=TENANT, ledger=Ledger(self.prices), now=0.0)
        if self.sessions and self.rng.random() < 0.7:
            session.parent = self.rng.choice(self.sessions)
        ledger = session.ledger
        ledger.account.budget, ledger.tree.budget = self._budget(), self._budget()
        ledger.above = (*(each.ledger.tree for each in session.parents()), self.tenant)
        self.sessions.append(session)

    def step(self) -> None:
        self.rng.choice([self.begin, self.end, self.tell, self.tell, self.tell])()

    def begin(self) -> None:
        self.count += 1
        session, response_id = self.rng.choice(self.sessions), f"resp_{self.count}"
        needs = TurnNeeds(prompt_tokens=50, max_output=100, bound=False, thinks=False)
        reservation = Reservation(needs, session.ledger)
        try:
            reservation.admit(cached=self.rng.randint(0, 49))
        except BudgetExceeded:
            self.refused += 1
            return
        session.start_turn(response_id, None, 0.0)
        self.running[response_id] = session, reservation
        branch = f"b{self.rng.randint(1, 20)}"
        self.residents.writes(branch, session)
        self.branches.append(branch)

    def end(self) -> None:
        if not self.running:
            return
        response_id = self.rng.choice(list(self.running))
        session, reservation = self.running.pop(response_id)
        output = self.rng.randint(0, max(reservation.ask_at, 0))
        usage = TurnUsage(input_tokens=50, cached_tokens=0, output_tokens=min(output, 100))
        usage = replace(usage, cached_tokens=50 - reservation.uncached)
        settled, cost = reservation.settle(usage)
        session.end_turn(response_id, 0.0)
        record = residency_record(session, NOTHING_UNSETTLED, record_id=response_id, created_s=0.0)
        self.write(replace(record, status="failed", usage=settled, cost=cost, follows_turns=False))

    def tell(self) -> None:
        if not self.branches:
            return
        rows = [
            Residency(
                branch_id=self.rng.choice(self.branches),
                block_us=self.rng.randint(0, 10**8),
                gone=self.rng.random() < 0.1,
            )
        ]
        told = self.residents.told(rows)
        self.cut += len(told.drops)
        self.record(told.ended)

    def record(self, sessions: list[Session]) -> None:
        for session in sessions:
            self.count += 1
            unsettled = session.ledger.settle_residency()
            self.write(
                residency_record(session, unsettled, record_id=f"kv_{self.count}", created_s=0.0)
            )

    def write(self, record: TurnRecord) -> None:
        self.journal.append([record])
        self.told_us += record.usage.residency

    def check(self) -> None:
        accounts = [self.tenant]
        for session in self.sessions:
            accounts += session.ledger.accounts[:2]
        for account in accounts:
            assert account.spent.residency <= account.limits.residency
            assert account.spent.cost + account.held.cost <= account.limits.cost

    def close(self) -> None:
        while self.running:
            self.end()
        self.record(self.sessions)
        for session in self.sessions:
            ledger = session.ledger
            written = self.journal.account(TENANT, session_account(session.name))
            assert (ledger.usage, ledger.cost) == (written.usage, written.cost)
            assert ledger.turns == written.turns
            assert ledger.account.spent == written.spent
            tree = self.journal.account(TENANT, tree_account(session.name))
            assert ledger.tree.spent == tree.spent
        assert self.tenant.spent == self.journal.account(TENANT, TENANT_ACCOUNT).spent
        assert self.tenant.spent.residency == self.told_us


@pytest.mark.parametrize("lane", range(LANES))
def test_nothing_is_overspent_and_all_accounts_agree(lane: int) -> None:
    cut = refused = 0
    for run in range(RUNS):
        seed = lane * 1_000_000 + run
        world = World(seed)
        try:
            for _ in range(PER_RUN):
                world.step()
                world.check()
            world.close()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        cut, refused = cut + world.cut, refused + world.refused
    assert cut
    assert refused
