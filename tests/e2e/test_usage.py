"""Usage, accounts and lists of one server and the next agree to the nano-dollar, in every store.

Random agents play turns with tools, labels, keys and sub-agents over hours; servers die in
mid-turn. What ``/v1/usage`` tells is compared with the accounts and with the ledgers' own words.
"""

import asyncio
import csv
import io
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
import psycopg
import pytest

from keepwarm.demo.child_server import child_server
from sessions.durable.ledger import PriceTable
from sessions.http.message import HttpResponse
from sessions.journal.journal import Journal
from sessions.journal.postgres import PostgresJournal
from sessions.journal.records import TENANT_ACCOUNT, session_account
from sessions.journal.sqlite import SqliteJournal
from sessions.pages.sessions_listing import SessionsListing
from sessions.pages.usage_report import UsageReport
from sessions.tenants import ApiKey, BudgetTerms, Principal, Role, TenantPolicy, Tenants
from sessions.tenants_file import key_row
from tests.support.exchange import make_call
from tests.support.journal_rig import JournalRig
from tests.support.openapi import Contract
from tests.support.postgres import MISSING, PROGRAMS, postgres
from tests.support.sessions_rig import END, Client, call, tool
from tools_api.errors import ApiError
from tools_api.requests import Bounds

PRICES = PriceTable(input_uncached=123_457, input_cached=12_347, output=1_000_003)
BEGIN_S = 1_800_000_000
TOOLS = ("grep", "ls", "make")
STORES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.skipif(PROGRAMS is None, reason=MISSING)),
]
_databases = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as address:
        yield address


@pytest.fixture
def journal(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Journal]:
    opened: Journal
    if store == "sqlite":
        opened = SqliteJournal(tmp_path / "j", fingerprint=b"f")
    else:
        address, name = request.getfixturevalue("server"), f"usage{next(_databases)}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        at = address.replace("/postgres?", f"/{name}?")
        opened = PostgresJournal(at, fingerprint=b"f", owner="one")
    yield opened
    opened.close()


class Hours(JournalRig):
    """A server whose wall clock the test moves."""

    now_s = float(BEGIN_S)

    def _with_journal(self) -> None:
        self.store.wall_clock = lambda: self.now_s
        super()._with_journal()
        self.service = replace(self.service, wall_clock=lambda: self.now_s, label_sources=("user",))

    def under(self, tenant: str, key: str) -> Client:
        client = self.connect(tenant)
        client.connection.ask_under(key)
        return client

    async def _beside(self, _: str, work: Any) -> Any:
        return work()

    def asked(self, path: str, tenant: str | None = None, *pairs: tuple[str, str]) -> HttpResponse:
        """What a tenant's key is answered; None: an operator's."""
        who = Principal(tenant="ops", role=Role.OPERATOR)
        if tenant is not None:
            who = Principal(tenant=tenant)
        request = replace(make_call(target=f"{path}?{urlencode(pairs)}"), principal=who)
        report = UsageReport(self.journal, self._beside, wall_clock=self.service.wall_clock)
        listing = SessionsListing(
            store=self.store,
            journal=self.journal,
            beside=self._beside,
            log_of=lambda _tenant, _name: None,
            clock=self.service.clock,
            wall_clock=self.service.wall_clock,
        )
        show = report.show
        if path == "/sessions.json":
            show = listing.show_list if ("list", "1") in pairs else listing.show_one
        return asyncio.run(show(request))

    def usage(self, tenant: str | None = None, **parameters: str) -> dict[str, Any]:
        """All pages as one."""
        stretch = {
            "from": str(BEGIN_S - BEGIN_S % 3600),
            "to": str(BEGIN_S - BEGIN_S % 3600 + 60 * 86_400),
        }
        pairs = [*(stretch | parameters).items()]
        body: dict[str, Any] = orjson.loads(self.asked("/v1/usage", tenant, *pairs).body)
        rows = body["data"]
        while (cursor := body["next_cursor"]) is not None:
            body = orjson.loads(self.asked("/v1/usage", tenant, *pairs, ("cursor", cursor)).body)
            rows += body["data"]
        return body | {"data": rows}

    def listed(self, tenant: str | None = None, *pairs: tuple[str, str]) -> list[dict[str, Any]]:
        """All pages as one."""
        rows, more = list[dict[str, Any]](), list[tuple[str, str]]()
        while True:
            answer = self.asked("/sessions.json", tenant, ("list", "1"), *pairs, *more)
            body = orjson.loads(answer.body)
            rows += body["rows"]
            if body["next_cursor"] is None:
                return rows
            more = [("cursor", body["next_cursor"])]


def play(rig: Hours, rng: random.Random, turns: int) -> dict[str, int]:
    """Turns of agents; returns how often each tool's output was read."""
    read, waiting = dict.fromkeys(TOOLS, 0), set[str]()
    for _ in range(turns):
        rig.now_s += rng.choice((1, 60, 3599, 3600, 86_400))
        tenant = rng.choice(("acme", "beta"))
        client = rig.under(tenant, f"{tenant}-{rng.randrange(2)}")
        name = rng.choice([f"s{n}" for n in range(12) if f"s{n}" not in waiting])
        told: dict[str, Any] = {"session": name}
        if rng.random() < 0.4:
            told["labels"] = {"team": rng.choice(("red", "=1+1", "Ü"))}
        fields: dict[str, Any] = {
            "tools": [tool(name) for name in TOOLS],
            "model": rng.choice(("m", "default")),
        }
        if rng.random() < 0.3:
            fields["user"] = rng.choice(("ada", "bob"))
        called = rng.choices(TOOLS, k=rng.randrange(4))
        said = "\n".join(map(call, called)) + END if called else "ok" + END
        response = client.turn(said, input="go", keepwarm=told, **fields)
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            continue
        if rng.random() < 0.2:
            waiting.add(name)
            continue
        rig.now_s += rng.choice((0, 1800))
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
            for item in calls
        ]
        for item in calls:
            read[item["name"]] += 1
        del told["session"]
        client.turn(
            "ok" + END,
            input=outputs,
            previous_response_id=response["id"],
            keepwarm=told,
            **fields,
        )
    return read


def nano(rows: list[dict[str, Any]]) -> int:
    return sum(row["cost_nano"] for row in rows)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("store", STORES)
def test_sums_of_random_turns_are_the_accounts_to_the_nano_dollar(
    journal: Journal, seed: int
) -> None:
    rng, rig = random.Random(seed), Hours(journal, prices=PRICES)
    read = play(rig, rng, 40)
    accounts = journal.accounts_named(TENANT_ACCOUNT)
    whole = sum(account.cost for account in accounts.values())
    for bucket, group in itertools.product(
        ("1h", "1d", "1mo"), ("", "tenant", "key", "model", "tool", "label:team", "label:user")
    ):
        body = rig.usage(bucket=bucket, group_by=group, limit="7")
        assert nano(body["data"]) == body["total"]["cost_nano"] == whole > 0
        for count in ("turns", "input_tokens", "cached_tokens", "output_tokens", "saved_nano"):
            assert sum(row[count] for row in body["data"]) == body["total"][count], count
    for tenant, account in accounts.items():
        total = rig.usage(tenant)["total"]
        assert (total["cost_nano"], total["turns"]) == (account.cost, account.turns)
        assert total["input_tokens"] == account.usage.input_tokens
    by_tenant = {
        row["value"]: row["cost_nano"] for row in rig.usage(bucket="1mo", group_by="tenant")["data"]
    }
    assert sum(by_tenant.values()) == whole
    tools = rig.usage(bucket="1mo", group_by="tool")["data"]
    told = dict.fromkeys(TOOLS, 0)
    for row in tools:
        if row["value"] is not None:
            told[row["value"]] += row["calls"]
    assert told == read
    assert {row["value"] for row in rig.usage(group_by="key")["data"]} <= {
        f"{tenant}-{n}" for tenant in accounts for n in range(2)
    }
    asked = rig.asked(
        "/v1/usage",
        None,
        ("from", str(BEGIN_S - BEGIN_S % 3600)),
        ("to", str(BEGIN_S - BEGIN_S % 3600 + 60 * 86_400)),
        ("group_by", "label:team"),
        ("format", "csv"),
    )
    table = list(csv.DictReader(io.StringIO(asked.body.decode(), newline="")))
    assert sum(int(row["cost_nano"]) for row in table) == whole
    rows = rig.listed()
    assert nano(rows) == whole
    assert len({(row["tenant"], row["session"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_turn_that_was_cut_is_counted_when_its_account_gets_it(journal: Journal) -> None:
    rig = Hours(journal, prices=PRICES)
    client = rig.under("acme", "k")
    client.create(input="hello there", keepwarm={"session": "s", "labels": {"team": "red"}})
    assert journal.reservations("acme", "s")
    rig.now_s += 5 * 3600
    rig.restart()
    spent = journal.account("acme", session_account("s"))
    assert spent.cost > 0
    journal_now = rig.usage(**{"from": "0", "to": str(2_000_000_000 // 3600 * 3600)}, bucket="1mo")
    assert journal_now["total"]["cost_nano"] == spent.cost
    labelled = rig.usage(
        **{"from": "0", "to": str(2_000_000_000 // 3600 * 3600)},
        bucket="1mo",
        group_by="label:team",
    )
    assert [(row["value"], row["failed"]) for row in labelled["data"]] == [("red", 1)]


@pytest.mark.parametrize("store", STORES)
def test_a_turn_over_the_end_of_its_hour_belongs_to_the_hour_of_its_end(journal: Journal) -> None:
    rig = Hours(journal, prices=PRICES)
    rig.now_s = BEGIN_S - BEGIN_S % 3600 + 3599.5
    client = rig.under("acme", "k")
    client.create(input="hello", keepwarm={"session": "s"})
    rig.now_s += 1
    rig.reply("ok" + END)
    (row,) = rig.usage(bucket="1h")["data"]
    assert row["start"] == "2027-01-15T09:00:00Z"
    assert row["cost_nano"] == journal.account("acme", session_account("s")).cost > 0


@pytest.mark.parametrize("store", STORES)
def test_the_list_has_live_sessions_and_those_that_fell_out(journal: Journal) -> None:
    rig = Hours(journal, prices=PRICES)
    play(rig, random.Random(5), 15)
    before = {(row["tenant"], row["session"]): row for row in rig.listed()}
    client = rig.under("acme", "k")
    client.create(input="long", keepwarm={"session": "fresh", "budget": {"output": 500}})
    rows = rig.listed()
    assert (rows[0]["session"], rows[0]["state"], rows[0]["live"]) == ("fresh", "running", True)
    (bound,) = rows[0]["budgets"]
    assert (bound["scope"], bound["limit"]) == ("session", {"output": 500})
    assert 0 < bound["held"]["output"] <= 500
    assert len(rows) == len(before) + 1
    assert [row["session"] for row in rig.listed("acme", ("state", "running"))] == ["fresh"]
    assert rig.listed("beta", ("state", "running")) == []
    idle = rig.listed(None, ("state", "idle"))
    waits = rig.listed(None, ("state", "waiting_for_tools"))
    assert len(idle) + len(waits) + 1 == len(rows)
    red = rig.listed(None, ("label", "team:red"))
    assert {r["session"] for r in red} == {
        r["session"] for r in rows if r["labels"].get("team") == "red"
    }
    rig.reply("ok" + END)
    assert rig.listed()[0]["turns"] == 1


@pytest.mark.parametrize("store", STORES)
def test_a_tree_adds_up_with_each_share_and_bound(journal: Journal) -> None:
    rig = Hours(journal, prices=PRICES)
    client = rig.under("acme", "k")
    whole = {"scope": "tree", "cost": 50.0}
    client.turn(input="a", keepwarm={"session": "lead", "budget": whole, "labels": {"team": "red"}})
    for name, parent in (("a", "lead"), ("b", "lead"), ("aa", "a")):
        client.turn(input="more words", keepwarm={"session": name, "parent_session": parent})
    for restarted in (False, True):
        if restarted:
            rig.restart()
        body = orjson.loads(rig.asked("/sessions.json", "acme", ("session", "lead")).body)
        rows = body["tree"]["rows"]
        assert [
            (row["depth"], row["session"]) for row in rows if row["session"] in ("lead", "aa")
        ] == [
            (0, "lead"),
            (2, "aa"),
        ]
        assert nano(rows) == body["tree"]["cost_nano"] > 0
        assert body["tree"]["turns"] == 4
        assert sum(row["share"] for row in rows) == pytest.approx(1.0)
        (bound,) = body["bounds"]
        assert (bound["scope"], bound["owner"]) == ("tree", "lead")
        spent, left = bound["spent"]["cost"], bound["left"]["cost"]
        assert spent == pytest.approx(body["tree"]["cost"])
        assert left == pytest.approx(50.0 - spent)
        below = orjson.loads(rig.asked("/sessions.json", "acme", ("session", "aa")).body)
        assert below["parents"] == ["a", "lead"]
        assert below["session"]["labels"] == {"team": "red"}
        if restarted:
            break
    with pytest.raises(ApiError):
        rig.asked("/sessions.json", "beta", ("session", "lead"))


@pytest.mark.parametrize("store", ["sqlite"])
def test_pages_of_the_list_hold_each_session_once_in_every_order(journal: Journal) -> None:
    rig = Hours(journal, prices=PRICES)
    client = rig.under("acme", "k")
    for number in range(60):
        rig.now_s += 1
        client.turn(input="x" * (number % 7), keepwarm={"session": f"s{number}"})
    for order in ("recent", "cost", "again", "hit"):
        rows = rig.listed("acme", ("sort", order))
        assert len({row["session"] for row in rows}) == len(rows) == 60
    costs = [row["cost_nano"] for row in rig.listed("acme", ("sort", "cost"))]
    assert costs == sorted(costs, reverse=True)
    first = orjson.loads(rig.asked("/sessions.json", "acme", ("list", "1")).body)
    assert len(first["rows"]) == 50
    with pytest.raises(ApiError) as refused:
        rig.asked("/sessions.json", "beta", ("list", "1"), ("cursor", first["next_cursor"]))
    assert refused.value.param == "cursor"


MONTH_END_S = 1_801_440_000
"""2027-02-01T00:00:00Z."""


def bounded(**policy: Any) -> Tenants:
    return Tenants([], {"acme": TenantPolicy(**policy)})


def outputs(journal: Journal) -> dict[str, int]:
    """Output tokens by the names of accounts of days, months and keys."""
    found = journal.accounts_of_policies().items()
    return {name: account.usage.output_tokens for (_, name), account in found}


@pytest.mark.parametrize("store", STORES)
def test_a_months_budget_ends_with_it_and_outlives_a_restart(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    month = BudgetTerms(bounds=Bounds(output=9), every="month", warn_at=0.5)
    day = BudgetTerms(bounds=Bounds(output=3), every="day")
    rig = Hours(journal, prices=PRICES, tenants=bounded(periods=(month,), keys={"ci": (day,)}))
    rig.now_s = MONTH_END_S - 3 * 86_400.0

    def turn(key: str = "k", name: str = "s") -> dict[str, Any]:
        client = rig.under("acme", key)
        client.create(input="hi", keepwarm={"session": name})
        if client.types()[-1] != "failed":
            rig.reply("ok" + END)
        response: dict[str, Any] = client.response
        return response

    assert turn("ci", "a")["status"] == "completed"
    refused = turn("ci", "a")
    assert refused["keepwarm"]["reason"] == "budget_exhausted"
    assert "the key's budget of this day" in refused["error"]["message"]
    assert refused["error"]["message"].endswith("there is more from 2027-01-30T00:00:00Z")
    assert "budget is nearly spent" not in caplog.text
    assert turn()["status"] == "completed"
    assert caplog.text.count("budget is nearly spent") == 1
    told = orjson.loads(rig.asked("/sessions.json", "acme", ("session", "s")).body)["bounds"]
    (bound,) = [each for each in told if each["every"] == "month"]
    assert (bound["spent"], bound["left"], bound["warned"]) == (
        {"output": 6},
        {"output": 3},
        ["output"],
    )
    assert (bound["scope"], bound["owner"], bound["renews"]) == (
        "tenant",
        "acme",
        "2027-02-01T00:00:00Z",
    )
    rig.restart()
    assert turn()["status"] == "completed"
    assert turn()["error"]["message"].endswith("there is more from 2027-02-01T00:00:00Z")
    rig.now_s = MONTH_END_S - 1.0
    assert turn()["status"] == "failed"
    rig.now_s = float(MONTH_END_S)
    assert turn()["status"] == "completed"
    spent = outputs(journal)
    assert spent == {"tenant/2027-01": 9, "tenant/2027-02": 3, "key/ci/2027-01-29": 3}


@pytest.mark.parametrize("store", STORES)
def test_a_turn_across_the_end_of_a_month_is_charged_once_where_it_began(journal: Journal) -> None:
    month = BudgetTerms(bounds=Bounds(output=100), every="month")
    rig = Hours(journal, prices=PRICES, tenants=bounded(periods=(month,)))
    rig.now_s = MONTH_END_S - 0.5
    client = rig.under("acme", "k")
    client.create(input="hi", keepwarm={"session": "s"})
    rig.now_s += 1
    rig.reply("ok" + END)
    spent = outputs(journal)
    assert spent == {"tenant/2027-01": 3}
    client.turn(input="more", keepwarm={"session": "s"})
    spent = outputs(journal)
    assert spent == {"tenant/2027-01": 3, "tenant/2027-02": 3}
    total = rig.usage(bucket="1mo")["total"]
    assert (total["turns"], total["output_tokens"]) == (2, 6)


@pytest.mark.skipif(PROGRAMS is None, reason=MISSING)
@pytest.mark.parametrize("seed", [3, 4])
def test_servers_of_one_journal_keep_to_a_months_budget_together(server: str, seed: int) -> None:
    rng, bound = random.Random(seed), 30
    with psycopg.connect(server, autocommit=True) as connection:
        name = f"usage{next(_databases)}"
        connection.execute(f"CREATE DATABASE {name}".encode())
    at = server.replace("/postgres?", f"/{name}?")
    terms = (BudgetTerms(bounds=Bounds(output=bound), every="month"),)
    journals = [PostgresJournal(at, fingerprint=b"f", owner=owner) for owner in ("a", "b", "c")]
    rigs = [Hours(each, prices=PRICES, tenants=bounded(periods=terms)) for each in journals]
    ids = itertools.count(1)
    for rig in rigs:  # of one journal, so that no two servers make the same
        rig.service = replace(rig.service, new_id=lambda prefix: f"{prefix}_{next(ids)}")
    now_s, refused = MONTH_END_S - 86_400.0, 0
    for number in range(60):
        now_s += rng.choice((60, 3600, 86_400))
        rig = rng.choice(rigs)
        for each in rigs:
            each.now_s = now_s
        client = rig.under("acme", "k")
        client.create(input="hi", keepwarm={"session": f"s{number}"}, max_output_tokens=4)
        if client.types()[-1] == "failed":
            refused += 1
            months = journals[0].accounts_of_policies()
            now = max(month for _, month in months)
            assert months["acme", now].usage.output_tokens == bound
        else:
            rig.reply("ok" + END)
    months = journals[1].accounts_of_policies()
    assert refused
    assert len(months) >= 2
    assert all(account.usage.output_tokens <= bound for account in months.values())
    sums = {row["start"][:7]: row["output_tokens"] for row in rigs[0].usage(bucket="1mo")["data"]}
    told = {
        name.rpartition("/")[2]: account.usage.output_tokens
        for (_, name), account in months.items()
    }
    assert sums == told
    for journal in journals:
        journal.close()


KEY, WATCH = "key-of-acme", "key-of-watch"
TERMS = """
[tenants.acme]
budget = [{ cost = 100.0 }, { output = 1000, every = "month", warn_at = 0.001 }]
"""


def test_a_served_model_tells_one_sum_in_every_form(tmp_path: Path) -> None:
    keys, journal, log = tmp_path / "keys", tmp_path / "journal", tmp_path / "log"
    rows = [
        ApiKey.of(KEY, tenant="acme", name="ci"),
        ApiKey.of(WATCH, tenant="watch", role=Role.OPERATOR),
    ]
    keys.write_text("".join(map(key_row, rows)) + TERMS)
    options = ["--model", "random:qwen3-tiny", "--journal", str(journal), "--label-from", "user"]
    options += ["--tenants-file", str(keys), "--price", "input=1,cached=0.1,output=4"]
    with child_server(options, log=log) as server:
        hooks = {"response": [Contract.of_server(server.url).look]}
        with httpx.Client(base_url=server.url, timeout=60, event_hooks=hooks) as client:
            own = {"Authorization": f"Bearer {KEY}"}
            for number in range(3):
                body = {
                    "input": "hello",
                    "max_output_tokens": 4,
                    "user": "=ada",
                    "keepwarm": {"session": f"s{number % 2}", "labels": {"team": "red"}},
                }
                assert client.post("/responses", json=body, headers=own).status_code == 200
            told = client.get("/usage?group_by=key", headers=own).json()
            (row,) = told["data"]
            assert (row["value"], row["turns"]) == ("ci", 3)
            table = client.get("/usage?group_by=label:user&format=csv", headers=own).text
            (cells,) = csv.DictReader(io.StringIO(table, newline=""))
            assert cells["value"] == "'=ada"
            root = server.url.removesuffix("/v1")
            watch = {"auth": ("anyone", WATCH)}
            listed = client.get(f"{root}/sessions.json?list=1&label=team:red", **watch).json()  # type: ignore[arg-type]
            metrics = client.get(f"{root}/metrics", **watch).text  # type: ignore[arg-type]
            (bound,) = [each for each in listed["rows"][0]["budgets"] if each["every"] == "month"]
            assert bound["warned"] == ["output"]
        found = re.search(r'keepwarm_tenant_cost_nanodollars_total\{tenant="acme"\} (\S+)', metrics)
        assert found is not None
        sums = {
            int(cells["cost_nano"]),
            told["total"]["cost_nano"],
            sum(each["cost_nano"] for each in listed["rows"]),
            int(float(found[1])),
        }
    assert len(sums) == 1
    assert sums.pop() > 0
    assert "budget is nearly spent" in log.read_text()
