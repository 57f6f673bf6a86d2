"""Nothing is ever overspent, and every account of a token and a nano-dollar is the same account.

Random trees of sessions with parallel turns, forks, cancels, lost clients, lost engines and lost
servers, on a simulated engine, through the real connections. ``KEEPWARM_BUDGET_OPERATIONS`` sets
how many operations; see CONTRIBUTING.md.
"""

import os
import random
from collections import Counter
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from runtime.messages import FinishReason, GenerationRequest
from sessions.durable.account import KINDS, Account, Amount
from sessions.durable.ledger import PriceTable, TurnReport, TurnUsage, nano_dollars
from sessions.durable.reservation import amount_of
from sessions.pages.metrics import Metrics
from sessions.tenants import TenantPolicy, Tenants
from tests.support.sessions_rig import END, Client, Rig, token_ids
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


class World:
    """A server, its clients, and what is remembered of it by somebody else."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.metrics: list[Metrics] = []
        self.settled: list[TurnReport] = []
        """Of all lives of the server: what a journal would hold."""
        self.unchecked: list[TurnReport] = []
        """Of this life, not yet compared with what clients saw."""
        self.lost: Counter[str] = Counter()
        """Of tenants: nano-dollars that crashes of the server cut short."""
        self.events: dict[tuple[int, str], dict[str, Any]] = {}
        """Final responses that clients saw, by the server's life and their ids."""
        self.generation = 0
        tenants = {
            name: TenantPolicy(
                budget=Bounds(
                    output=40 * OPERATIONS, reasoning=5 * OPERATIONS, cost=0.05 * OPERATIONS
                )
            )
            for name in TENANTS
        }
        self.tenants = Tenants([], tenants)
        self.spent: dict[str, Amount] = {}
        self.start()

    # The server

    def start(self) -> None:
        """A server begins a life, with tenants' accounts as they were."""
        self.rig = Rig(prices=PRICES, tenants=self.tenants)
        self.metrics.append(Metrics())
        self.taken = 0
        self.responses: dict[str, list[tuple[str, str]]] = {name: [] for name in TENANTS}
        self.new: set[tuple[str, str]] = set()
        self.sessions: dict[tuple[str, str], dict[str, Any]] = {}
        self.generation += 1
        self.clients = [self.rig.connect(self.rng.choice(TENANTS)) for _ in range(6)]
        self.retired: list[Client] = []
        """Nobody asks for anything there any more, but turns may still run."""
        self.seen: Counter[Client] = Counter()
        self.accounts: list[tuple[Account, Amount, Amount]] = []
        """With what was spent and held when they were checked."""
        for name in TENANTS:
            account = self.rig.store.tenant_accounts.of(name)
            account.spent = self.spent.get(name, Amount())
            self.add_accounts(account)

    def crash(self) -> None:
        """The server dies: what its turns held counts as spent."""
        self.take_reports()
        self.check_all()
        for name in TENANTS:
            account = self.rig.store.tenant_accounts.of(name)
            held = Amount(**orjson.loads(orjson.dumps(account.held._asdict())))
            self.spent[name] = account.spent.plus(held)
            self.lost[name] += held.cost
        self.start()

    def take_reports(self) -> None:
        new = self.rig.reports[self.taken :]
        self.taken += len(new)
        self.settled += new
        for report in new:
            self.unchecked.append(report)
            self.metrics[-1].turn_finished(report)
        for client in list(self.retired):
            self.take_events(client)
            if not client.connection.num_active:
                self.retired.remove(client)
        for client in self.clients:
            self.take_events(client)

    def take_events(self, client: Client) -> None:
        for event in client.events[self.seen[client] :]:
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                self.events[len(self.metrics), event["response"]["id"]] = event["response"]
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
            ("step", "create", "cancel", "leave", "forget", "engine", "server", "new names"),
            (70, 22, 2, 2, 1, 0.15, 0.05, 1),
        )[0]
        if kind == "step" and rig.engine.open:
            self.step(rng.choice(list(rig.engine.open.values())).request)
        elif kind == "create":
            self.create(rng.choice(self.clients))
        elif kind == "cancel":
            rng.choice(self.clients).send(type="response.cancel", stream_id=rng.choice("abcd"))
        elif kind == "leave":
            self.leave(rng.randrange(len(self.clients)))
        elif kind == "forget":
            rig.engine._cached.clear()
        elif kind == "engine":
            rig.store.engine_lost()
            rig.engine.restart()
            for client in (*self.clients, *self.retired):
                rig.carry(client, client.connection.engine_died())
        elif kind == "server":
            self.crash()
        elif kind == "new names":
            self.generation += 1
        self.take_reports()
        self.check()

    def leave(self, at: int) -> None:
        gone = self.clients[at]
        gone.disconnect()
        self.take_events(gone)
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
        rng, rig, tenant = self.rng, self.rig, client.connection._tenant
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
                self.new.add((tenant, name))
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
        session = rig.store.known_session(tenant, name)
        if options.get("session") == name and session is not None and (tenant, name) in self.new:
            self.new.discard((tenant, name))
            self.add_accounts(session.ledger.account, session.ledger.tree)
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

    def add_accounts(self, *accounts: Account) -> None:
        self.accounts += [(account, Amount(), Amount()) for account in accounts]

    def check_all(self) -> None:
        """Everybody's books agree."""
        open_turns = self.rig.store.running_turns
        by_session: dict[tuple[str, str], list[TurnReport]] = {}
        for report in self.rig.reports:
            by_session.setdefault((report.tenant, report.session), []).append(report)
        for (tenant, name), reports in by_session.items():
            session = self.rig.store.known_session(tenant, name)
            assert session is not None
            usage = sum((report.usage for report in reports), TurnUsage())
            cost = sum(report.cost for report in reports)
            assert (session.ledger.usage, session.ledger.cost) == (usage, cost)
            assert session.ledger.account.spent == amount_of(usage, cost)
        if not open_turns:
            assert all(account.held == Amount() for account, _, _ in self.accounts)
        for tenant in TENANTS:
            mine = [report for report in self.settled if report.tenant == tenant]
            cost = sum(report.cost for report in mine) + self.lost[tenant]
            account = self.rig.store.tenant_accounts.of(tenant)
            assert account.spent.cost == cost
        while self.unchecked:
            report = self.unchecked.pop()
            assert report.cost == PRICES.cost(report.usage)
            event = self.events.pop((len(self.metrics), report.response_id), None)
            if event is not None and event["status"] == report.status and event["usage"]:
                assert told(event) == (counts(report.usage), report.cost)

    def check_metrics(self) -> None:
        sums = Counter[str]()
        for metrics in self.metrics:
            sums.update(values(metrics.registry))
        usage = sum((report.usage for report in self.settled), TurnUsage())
        cost = sum(report.cost for report in self.settled)
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
def test_nothing_is_overspent_and_all_books_agree(seed: int) -> None:
    world = World(seed)
    for number in range(OPERATIONS // len(SEEDS)):
        world.operate()
        if number % 500 == 499:
            world.check_all()
    for client in (*world.clients, *world.retired):
        client.disconnect()
    world.take_reports()
    world.check_all()
    world.check_metrics()
    reasons = Counter((report.status, report.reason) for report in world.settled)
    print(f"seed={seed} turns={len(world.settled)} lives={len(world.metrics)} {reasons}")
    assert reasons["failed", "budget_exhausted"] > 20
    assert reasons["incomplete", "budget_exhausted"] > 10
    assert reasons["completed", None] > 50
    assert len(world.metrics) > 1
