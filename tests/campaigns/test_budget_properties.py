"""Nothing is ever overspent, and every account of a token and a nano-dollar is the same account.

Random trees of sessions with parallel turns, forks, cancels, lost clients, lost engines and lost
servers, on a simulated engine, through the real connections and a journal, whose commits come when
they come: what a server had not committed when it died is gone, and what its turns held is spent.
Of a turn that was refused for want of the journal what it consumed is written later.
``KEEPWARM_BUDGET_OPERATIONS`` sets how many operations; see CONTRIBUTING.md.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import le
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from runtime.messages import FinishReason, GenerationRequest
from sessions.durable.account import KINDS, NOTHING, Account, Amount
from sessions.durable.ledger import PriceTable, TurnReport, TurnUsage, nano_dollars
from sessions.durable.reservation import amount_of
from sessions.journal.encoding import decode_turn
from sessions.journal.journal import Journal
from sessions.journal.records import (
    JOURNAL_UNAVAILABLE,
    TENANT_ACCOUNT,
    TurnRecord,
    session_account,
    tree_account,
)
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import Verdict
from sessions.pages.metrics import Metrics
from sessions.tenants import TenantPolicy, Tenants
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, token_ids
from tools_api.requests import Bounds

OPERATIONS = int(os.environ.get("KEEPWARM_BUDGET_OPERATIONS", "10000"))
SEEDS = [101, 102]
TENANTS = ("acme", "other")
PRICES = PriceTable(
    input_uncached=150_000_001, input_cached=37_500_003, output=600_000_007, reasoning=1_900_000_009
)
METRIC_OF = {
    "input_tokens": "keepwarm_input_tokens_total",
    "cached_tokens": "keepwarm_cached_tokens_total",
    "output_tokens": "keepwarm_output_tokens_total",
    "reasoning_tokens": "keepwarm_reasoning_tokens_total",
    "cost": "keepwarm_cost_nanodollars_total",
}


@dataclass(frozen=True)
class Sum:
    """What one account has to say."""

    turns: int = 0
    usage: TurnUsage = field(default_factory=TurnUsage)
    cost: int = 0

    def plus(self, usage: TurnUsage, cost: int) -> "Sum":
        return Sum(self.turns + 1, self.usage + usage, self.cost + cost)


class BudgetRig(JournalRig):
    """Remembers what was written."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        self.written: list[TurnRecord] = []
        super().__init__(journal, **options)
        self.hold = True

    def commit(self, verdict: Verdict | None = None) -> None:
        if verdict is None:
            record = self.held[0][1].asked
            assert isinstance(record, TurnRecord)
            self.written.append(record)
        super().commit(verdict)

    def pay(self) -> None:
        self.written += self.unpaid
        super().pay()


class World:
    """A server, its clients, and what is remembered of it by somebody else."""

    def __init__(self, seed: int, open_journal: Callable[[], Journal]) -> None:
        self.rng = random.Random(seed)
        self.open_journal = open_journal
        self.metrics: list[Metrics] = []
        self.settled: list[TurnReport] = []
        """Of all lives of the server."""
        self.unchecked: list[TurnReport] = []
        """Not yet compared with what clients saw."""
        self.expected: dict[tuple[str, str], Sum] = {}
        """What each account of the journal has to say, by tenant and name."""
        self.touched: set[tuple[str, str]] = set()
        """Those that have changed since they were compared."""
        self.late: dict[str, TurnReport] = {}
        """Of turns whose usage waits for the journal."""
        self.twice = Counter[str]()
        """What was told in metrics and then settled anew: its server died before it was written."""
        self.cut_short = 0
        """Turns that ran when a server died."""
        self.events: dict[str, dict[str, Any]] = {}
        """Final responses that clients saw, by their ids."""
        self.generation = 1
        self.sessions: dict[tuple[str, str], dict[str, Any]] = {}
        self.responses: dict[str, list[tuple[str, str]]] = {name: [] for name in TENANTS}
        tenants = {
            name: TenantPolicy(
                budget=Bounds(
                    output=40 * OPERATIONS, reasoning=5 * OPERATIONS, cost=0.05 * OPERATIONS
                )
            )
            for name in TENANTS
        }
        self.rig = BudgetRig(open_journal(), prices=PRICES, tenants=Tenants([], tenants))
        self.taken = self.taken_records = 0
        self.start()

    # The server

    def start(self) -> None:
        """A server begins a life, with the accounts that the journal has."""
        self.metrics.append(Metrics())
        for record in self.rig.left:
            self.metrics[-1].turn_cut_short(record)
        self.clients = [self.rig.connect(self.rng.choice(TENANTS)) for _ in range(6)]
        self.retired: list[Client] = []
        """Nobody asks for anything there any more, but turns may still run."""
        self.seen: Counter[Client] = Counter()
        self.accounts: list[tuple[Account, Amount, Amount]] = []
        """With what was spent and held when they were checked."""
        self.tracked: dict[Account, tuple[str, str]] = {}
        """Their tenants and their names in the journal."""
        for name in TENANTS:
            self.track(self.rig.store.tenant(name).account, name, TENANT_ACCOUNT)

    def crash(self) -> None:
        """The server dies: what its turns held counts as spent, within every budget."""
        self.take_reports()
        rig = self.rig
        for record in rig.noted.values():
            self.charge(record)
            self.cut_short += 1
        for report in self.late.values():
            self.twice.update(
                dict(zip(METRIC_OF, (*counts(report.usage), report.cost), strict=True))
            )
        self.late.clear()
        bounds = [(account.budget.bounds(), key) for account, key in self.tracked.items()]
        rig.journal.close()
        rig.journal = self.open_journal()
        rig.restart()
        for limits, key in bounds:
            spent = rig.journal.account(*key).spent
            assert all(getattr(spent, kind) <= limit for kind, limit in limits.items()), key
        self.start()
        self.check_journal()

    def charge(self, record: TurnRecord) -> None:
        for name in (session_account(record.session), *record.accounts):
            key = (record.tenant, name)
            self.expected[key] = self.expected.get(key, Sum()).plus(record.usage, record.cost)
            self.touched.add(key)

    def take_reports(self) -> None:
        records = self.rig.written[self.taken_records :]
        self.taken_records += len(records)
        by_id = {record.response_id: record for record in records}
        for record in records:
            self.charge(record)
        new = self.rig.reports[self.taken :]
        self.taken += len(new)
        self.settled += new
        for report in new:
            self.unchecked.append(report)
            self.metrics[-1].turn_finished(report)
            if report.reason == JOURNAL_UNAVAILABLE:
                self.late[report.response_id] = report
            else:
                self.check_row(report, by_id.get(report.response_id))
        for record in records:
            if record.response_id in self.late:
                self.check_row(self.late.pop(record.response_id), record)
        for client in list(self.retired):
            self.take_events(client)
            if not client.connection.num_active:
                self.retired.remove(client)
        for client in self.clients:
            self.take_events(client)

    def check_row(self, report: TurnReport, record: TurnRecord | None) -> None:
        """What was reported is what the journal has."""
        if record is None:
            assert report.usage == TurnUsage()
            assert report.cost == 0
            return
        row = self.rig.journal.ended_turn(report.tenant, report.response_id)
        assert row is not None
        body = decode_turn(row)
        assert (body.usage, body.cost, body.saved) == (report.usage, report.cost, report.saved)
        assert (row.session, body.number, body.status) == (
            report.session, report.turn, report.status
        )  # fmt: skip

    def take_events(self, client: Client) -> None:
        for event in client.events[self.seen[client] :]:
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                self.events[event["response"]["id"]] = event["response"]
            assert event["type"] != "error" or event["error"]["code"] in (
                "previous_response_not_found",
                "response_not_found",
                "context_length_exceeded",
                "request_cancelled",
            ), event
        self.seen[client] = len(client.events)

    # What happens

    def operate(self) -> None:
        rng, rig = self.rng, self.rig
        kind = rng.choices(
            (
                "step",
                "create",
                "commit",
                "refuse",
                "cancel",
                "leave",
                "forget",
                "engine",
                "server",
                "names",
            ),
            (60, 22, 15, 1, 2, 2, 1, 0.15, 0.15, 1),
        )[0]
        if kind == "step" and rig.engine.open:
            self.step(rng.choice(list(rig.engine.open.values())).request)
        elif kind == "create":
            self.create(rng.choice(self.clients))
        elif kind == "commit":
            self.commit(rng.randint(1, 4))
        elif kind == "refuse" and rig.held:
            rig.commit(Verdict(written=False, reason="unavailable"))
        elif kind == "cancel":
            rng.choice(self.clients).send(type="response.cancel", stream_id=rng.choice("abcd"))
        elif kind == "leave":
            self.leave(rng.randrange(len(self.clients)))
        elif kind == "forget":
            rig.engine.cached.clear()
        elif kind == "engine":
            rig.store.engine_lost()
            rig.engine.restart()
            for client in (*self.clients, *self.retired):
                rig.carry(client, client.connection.engine_died())
        elif kind == "server":
            self.crash()
        elif kind == "names":
            self.generation += 1
        self.take_reports()
        self.check()

    def commit(self, most: int = 10**9) -> None:
        for _ in range(min(most, len(self.rig.held))):
            self.rig.commit()

    def leave(self, at: int) -> None:
        gone = self.clients[at]
        gone.disconnect()
        self.retired.append(gone)  # its turns may wait for their commits
        self.clients[at] = self.rig.connect(self.rng.choice(TENANTS))

    def step(self, request: GenerationRequest) -> None:
        rng, engine = self.rng, self.rig.engine
        turn = engine.open[request.request_id]
        left = request.max_new_tokens - len(turn.emitted)
        cached = None
        if not turn.started and rng.random() < 0.3:
            cached = rng.randint(0, len(turn.tokens) - 1)  # another one than was reckoned with
        if request.max_new_tokens == 0:
            self.rig.deliver(engine.output(request, [], FinishReason.PREFILLED, cached=cached))
            return
        text = "x" * min(left, rng.choice((0, 1, 1, 2, 7, 40, 90)))
        if request.request_id in self.thinking and not turn.emitted and left > 2:
            text = "<think>" + text[: left - 2]
        elif request.request_id in self.thinking and rng.random() < 0.3 and len(text) > 1:
            text = "</think>" + text[1:]
        finish = None
        if rng.random() < 0.15 and text:
            text, finish = text[: -1 if not text.endswith(">") else None], FinishReason.STOP
            text += END if len(text) < left or not text else ""
            finish = FinishReason.STOP if text.endswith(END) else None
        tokens = token_ids(text)[:left]
        if finish is None and len(tokens) == left:
            finish = FinishReason.LENGTH
        self.rig.deliver(engine.output(request, tokens, finish, cached=cached))

    @property
    def thinking(self) -> set[str]:
        return {r.request_id for r in self.rig.engine.requests[-60:] if r.sampling.seed == 7}

    def create(self, client: Client) -> None:
        rng, rig, tenant = self.rng, self.rig, client.connection.tenant.name
        name = f"s{self.generation}.{rng.randrange(8)}"
        thinks = rng.random() < 0.25
        options: dict[str, Any] = {"sampling": {"seed": 7 if thinks else 1}}
        fields: dict[str, Any] = {"input": "hi" * rng.randint(1, 30)}
        earlier = self.responses[tenant]
        if earlier and rng.random() < 0.35:
            _, response_id = rng.choice(earlier[-30:])
            fields["previous_response_id"] = response_id  # often a fork, beside a running turn
        else:
            options["session"] = name
            if (tenant, name) not in self.sessions:
                self.sessions[tenant, name] = options
                options |= self.budgets()
                older = [n for t, n in self.sessions if t == tenant and n != name]
                if older and rng.random() < 0.5:
                    options["parent_session"] = rng.choice(older[-8:])
                at = rng.randrange(len(self.clients))
                self.retired.append(self.clients[at])
                client = self.clients[at] = rig.connect(tenant)  # nothing waits there
        if rng.random() < 0.2:
            options["budget"] = [
                *options.get("budget", []),
                {"scope": "turn", rng.choice(KINDS[:-1]): rng.randint(0, 300)},
            ]
        if thinks:
            fields["reasoning"] = {"effort": "high"}
        if rng.random() < 0.3:
            fields["text"] = {"format": {"type": "json_object"}}
        if rng.random() < 0.05:
            fields["generate"] = False
        if rng.random() < 0.6:
            fields["max_output_tokens"] = rng.choice((1, 20, 300, 700))
        client.create(**fields, keepwarm=options, stream_id=rng.choice("abcd"))
        session = rig.store.tenant(tenant).known_session(name)
        if session is not None:
            for each in (session, *session.parents()):
                self.track(each.ledger.account, tenant, session_account(each.name))
                self.track(each.ledger.tree, tenant, tree_account(each.name))
        self.note_responses(client, tenant)

    def note_responses(self, client: Client, tenant: str) -> None:
        for event in client.events[-3:]:
            if event["type"] in ("response.completed", "response.incomplete", "response.created"):
                self.responses[tenant].append((tenant, event["response"]["id"]))

    def budgets(self) -> dict[str, Any]:
        """Of a session that is new, so that no bound is ever below what is spent."""
        rng = self.rng
        most = {"input_uncached": 3000, "input_cached": 6000, "output": 2500, "reasoning": 400}
        made = []
        for scope in ("session", "tree"):
            budget: dict[str, Any] = {
                kind: rng.randint(0, bound) for kind, bound in most.items() if rng.random() < 0.3
            }
            if rng.random() < 0.4:
                budget["cost"] = rng.randint(0, 2_500_000) / 10**9
            made.append(budget | {"scope": scope, "soft": {"output": 100}})
        return {"budget": made}

    # What must hold

    def check(self) -> None:
        """Of the accounts that have changed."""
        for at, (account, spent, held) in enumerate(self.accounts):
            if account.spent is spent and account.held is held:
                continue
            self.accounts[at] = (account, account.spent, account.held)
            assert all(left >= 0 for left in account.left().bounds().values()), account
            assert all(getattr(account.held, kind) >= 0 for kind in KINDS), account

    def track(self, account: Account, tenant: str, name: str) -> None:
        if account not in self.tracked:
            self.tracked[account] = (tenant, name)
            self.accounts.append((account, Amount(), Amount()))

    def check_journal(self) -> None:
        """Of the accounts that have changed."""
        for key in self.touched:
            account = self.rig.journal.account(*key)
            assert Sum(account.turns, account.usage, account.cost) == self.expected[key], key
        self.touched.clear()

    def check_all(self) -> None:
        """Everybody's books agree, once what has ended is committed."""
        self.commit()
        self.rig.pay()
        self.take_reports()
        assert not self.late
        self.check_journal()
        running = Counter[tuple[str, str]]()
        for client in (*self.clients, *self.retired):
            for job in client.connection.jobs:
                if job.turn is not None and job.noted is not NOTHING:
                    running[job.turn.plan.tenant, job.turn.plan.session] += 1
                    assert job.turn.num_output_tokens <= job.noted.output
        for session in self.rig.store.any_sessions():
            tenant, name = session.tenant, session.name
            expected = self.expected.get((tenant, session_account(name)), Sum())
            assert (session.ledger.usage, session.ledger.cost) == (expected.usage, expected.cost)
            held = self.rig.journal.reservations(tenant, name)
            assert len(held) == running[tenant, name]
            amounts = (amount_of(record.usage, record.cost) for record in held)
            noted = reduce(Amount.plus, amounts, Amount())
            assert all(map(le, noted, session.ledger.account.held)), (noted, session.ledger.account)
        for account, key in self.tracked.items():
            expected = self.expected.get(key, Sum())
            assert account.spent == amount_of(expected.usage, expected.cost), key
        if not len(self.rig.store.running):
            assert all(account.held == Amount() for account, _, _ in self.accounts)
        while self.unchecked:
            report = self.unchecked.pop()
            assert report.cost == PRICES.cost(report.usage)
            event = self.events.pop(report.response_id, None)
            if event is not None and event["status"] == report.status and event["usage"]:
                assert told(event) == (counts(report.usage), report.cost)

    def check_metrics(self) -> None:
        """Over all lives they say what the journal's accounts do."""
        sums = Counter[str]()
        for metrics in self.metrics:
            sums.update(values(metrics.registry))
        sums.subtract(self.twice)
        accounts = [self.rig.journal.account(tenant, TENANT_ACCOUNT) for tenant in TENANTS]
        usage = sum((account.usage for account in accounts), TurnUsage())
        cost = sum(account.cost for account in accounts)
        expected = dict(zip(METRIC_OF, (*counts(usage), cost), strict=True))
        assert {kind: sums[kind] for kind in METRIC_OF} == expected


def counts(usage: TurnUsage) -> tuple[int, int, int, int]:
    return (
        usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens
    )  # fmt: skip


def told(response: dict[str, Any]) -> tuple[tuple[int, int, int, int], int]:
    usage = response["usage"]
    return (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    ), nano_dollars(response["keepwarm"]["cost"]["turn"])


def values(registry: CollectorRegistry) -> dict[str, int]:
    found = {kind: registry.get_sample_value(name) for kind, name in METRIC_OF.items()}
    return {kind: int(value or 0) for kind, value in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_overspent_and_all_books_agree(seed: int, tmp_path: Path) -> None:
    kept = MemoryJournal(b"f")
    kinds: list[Callable[[], Journal]] = [
        lambda: kept,
        lambda: SqliteJournal(tmp_path / "journal", fingerprint=b"f", synchronous="OFF"),
    ]
    world = World(seed, kinds[seed % 2])
    for number in range(OPERATIONS // len(SEEDS)):
        world.operate()
        if number % 500 == 499:
            world.check_all()
    for client in (*world.clients, *world.retired):
        client.disconnect()
    world.check_all()
    world.check_metrics()
    world.rig.journal.close()
    reasons = Counter((report.status, report.reason) for report in world.settled)
    lives = len(world.metrics)
    print(f"seed={seed} turns={len(world.settled)} {lives=} cut={world.cut_short} {reasons}")
    assert reasons["failed", "budget_exhausted"] > 20
    assert reasons["incomplete", "budget_exhausted"] > 10
    assert reasons["completed", None] > 50
    assert reasons["failed", JOURNAL_UNAVAILABLE] > 10
    assert lives > 1
    assert world.cut_short > 1
