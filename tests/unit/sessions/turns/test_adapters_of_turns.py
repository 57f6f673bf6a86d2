"""A turn is computed with the adapter that its request names, and so is all that is for it."""

from collections.abc import Sequence
from typing import Any

import pytest

from sessions.durable.ledger import PriceTable
from sessions.journal.records import TurnRecord
from sessions.tenants import TenantPolicy, Tenants, TokenPrices
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.recast_loops import G, result, sums_up, threshold
from tests.support.sessions_rig import END, Rig, call, tool
from tests.unit.sessions.turns.test_ahead import Loop, compute_ahead

ADAPTERS = frozenset({"law", "sql"})
LONG = "You are a careful agent of a shop. " * 8
LIMITED = Tenants(
    [],
    {
        "one": TenantPolicy(models=frozenset({"sql"})),
        "base": TenantPolicy(models=frozenset({"default"})),
        "both": TenantPolicy(models=frozenset({"m", "law"})),
    },
)


def rig(**fields: Any) -> Rig:
    made = Rig(**fields)
    made.model.adapters, made.model.told_to_all = ADAPTERS, None
    return made


@pytest.mark.parametrize(
    ("named", "adapter"),
    [({}, None), ({"model": "default"}, None), ({"model": "m"}, None), ({"model": "sql"}, "sql")],
)
def test_a_name_means_the_model_or_an_adapter(named: Any, adapter: str | None) -> None:
    served = rig()
    response = served.connect().turn(input="hi", **named)
    assert served.engine.last.adapter == adapter
    assert response["model"] == named.get("model", "default")
    report = served.reports[-1]
    assert (report.model, report.adapter) == (response["model"], adapter)


@pytest.mark.parametrize(
    ("tenant", "may"),
    [
        ("one", {"sql"}),
        ("base", {None, "default", "m"}),
        ("both", {None, "default", "m", "law"}),
        ("acme", {None, "default", "m", "law", "sql"}),
    ],
)
def test_who_is_limited_gets_the_adapters_that_are_listed(tenant: str, may: set[Any]) -> None:
    served = rig(tenants=LIMITED)
    for name in (None, "default", "m", "law", "sql", "other"):
        fields = {} if name is None else {"model": name}
        client = served.connect(tenant)
        if name in may:
            assert client.turn(input="hi", **fields)["status"] == "completed"
            continue
        (event,) = client.create(input="hi", **fields)
        assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
        assert (name or "default") in event["error"]["message"]


def test_a_faulty_request_does_not_tell_whether_there_is_an_adapter() -> None:
    served = rig(tenants=LIMITED)
    told = []
    for name in ("sql", "other"):
        for fields in ({"input": 5}, {"input": "hi", "temperature": 9}, {}):
            (event,) = served.connect("base").create(model=name, **fields)
            told.append((event["error"]["code"], event["error"]["param"]))
    assert told[:3] == told[3:]


def test_a_session_goes_on_under_another_name_with_the_same_text() -> None:
    served = rig()
    client = served.connect()
    first = client.turn("one" + END, input="hi", model="sql", keepwarm={"session": "s"})
    for number, (named, adapter) in enumerate(
        [({"model": "law"}, "law"), ({"model": "m"}, None), ({"model": "sql"}, "sql")]
    ):
        client.create(input=f"go on {number}", **named, keepwarm={"session": "s"})
        request = served.engine.last
        assert request.adapter == adapter
        assert request.base_branch_id is not None
        held = served.engine.prompt(request)
        served.reply("two" + END)
        assert client.response["previous_response_id"] is not None
        assert b"one" in bytes(token for token in held if token < 256)
    assert client.response["keepwarm"]["session"] == "s"
    assert first["keepwarm"]["turn"] + 3 == client.response["keepwarm"]["turn"]


def test_what_was_computed_with_another_adapter_is_no_hit_and_its_reason_is_told() -> None:
    served = rig()
    client = served.connect()
    fields: Any = {"instructions": LONG, "keepwarm": {"session": "s"}}
    client.turn(input="hi", model="sql", **fields)
    client.turn(input="and now", model="law", **fields)
    report = served.reports[-1]
    assert report.usage.cached_tokens == 0
    assert report.miss_causes.keys() == {"model_changed", "new_input"}
    client.turn(input="again", model="law", **fields)
    assert served.reports[-1].usage.cached_tokens > 0
    assert "model_changed" not in served.reports[-1].miss_causes


def test_another_adapter_is_not_held_for_a_cached_one() -> None:
    """What a budget has to hold before the engine says what is cached."""
    served = rig(prices=PriceTable(input_uncached=10**6, input_cached=0, output=0))
    client = served.connect()
    fields: Any = {"instructions": LONG, "keepwarm": {"session": "s"}}
    client.turn(input="hi", model="sql", **fields)
    account = served.store.tenant("acme").session("s").ledger.account
    held = []
    for name in ("law", "law"):
        client.create(input="on", model=name, **fields)
        held.append(account.held.input_uncached)
        served.reply("ok" + END)
    assert held[0] > len(LONG) > 100 > held[1]


def test_a_lost_engine_is_asked_again_for_the_same_adapter() -> None:
    served = rig()
    client = served.connect()
    client.turn(input="hi", model="sql", keepwarm={"session": "s"})
    client.create(input="go on", model="sql", keepwarm={"session": "s"})
    served.kill_engine()
    client.turn(input="go on", model="sql", keepwarm={"session": "s"})
    request = served.engine.last
    assert (request.adapter, request.base_branch_id) == ("sql", None)


def test_prefill_only_turns_forks_and_searches_have_the_requests_adapter() -> None:
    served = rig()
    client = served.connect()
    client.create(input="hi", model="law", generate=False)
    assert (served.engine.last.adapter, served.engine.last.max_new_tokens) == ("law", 0)
    served.reply("")
    first = client.response["id"]
    client.turn("a" + END, input="x", model="law", previous_response_id=first)
    client.turn("b" + END, input="y", model="law", previous_response_id=first)  # a fork
    assert served.engine.last.branch_id != served.engine.last.base_branch_id
    child = {"session": "child", "parent_session": client.response["keepwarm"]["session"]}
    client.turn(input="for a child", model="sql", keepwarm=child)
    assert [each.adapter for each in served.engine.requests[1:]] == ["law", "law", "sql"]


def test_a_context_is_summed_up_and_truncated_under_the_turns_adapter() -> None:
    served = rig(max_context_tokens=8192)
    client = served.connect()
    last = client.turn(call("g") + END, input="the task", tools=[G], model="sql")
    seen = set[str | None]()
    for number in range(30):
        answer = result(last["output"][-1]["call_id"], f"{number} " + "x" * 200)
        client.create(
            previous_response_id=last["id"], input=[answer], tools=[G], model="sql",
            context_management=threshold(1500),
        )  # fmt: skip
        if sums_up(served):
            seen.add(served.engine.last.adapter)
            served.reply("a summary" + END)
        seen.add(served.engine.last.adapter)
        served.reply(call("g") + END)
        last = client.response
    assert any(report.status == "compaction" for report in served.reports)
    assert {report.model for report in served.reports} == {"sql"}
    assert seen == {"sql"}


def test_what_is_computed_ahead_of_a_turn_has_the_adapter_of_the_one_before() -> None:
    loop = Loop()
    loop.rig.model.adapters, loop.rig.model.told_to_all = ADAPTERS, None
    while not loop.begun:
        assert len(loop.turns) < 40
        loop.go_on(model="sql")
    assert compute_ahead(loop.rig) == 2
    while loop.context is None:
        assert len(loop.turns) < 40
        loop.go_on(model="sql")
    assert loop.context["ahead"]
    assert {each.adapter for each in loop.rig.engine.requests[1:]} == {"sql"}


def test_a_compaction_that_was_made_under_one_adapter_is_read_under_another() -> None:
    served = rig()
    client = served.connect()
    first = client.turn("an answer" + END, input="the task " + LONG, model="sql")
    compact = [{"type": "compaction", "compact_threshold": 30}]
    client.create(
        previous_response_id=first["id"], input="go on", model="sql", context_management=compact
    )
    if sums_up(served):
        served.reply("a summary" + END)
    served.reply("ok" + END)
    sealed = [item for item in client.response["output"] if item["type"] == "compaction"]
    assert sealed
    for name in ("law", "default"):
        response = client.turn(input=[*sealed, {"role": "user", "content": "go"}], model=name)
        assert response["status"] == "completed"


def test_tool_calls_are_constrained_under_an_adapter_as_without() -> None:
    served = rig()
    client = served.connect()
    for name in ("default", "sql"):
        client.turn(call("f", '{"n": 1}') + END, input="x", model=name,
                    tools=[tool("f", n={"type": "integer"})], tool_choice="required")  # fmt: skip
    base, under = served.engine.requests
    assert base.grammar is not None
    assert (base.grammar, base.banned_tokens) == (under.grammar, under.banned_tokens)


def test_an_adapter_has_its_own_prices_or_the_models() -> None:
    prices = PriceTable(output=10**6, adapters={"sql": PriceTable(output=5 * 10**6)})
    own = TokenPrices(input_uncached=0, input_cached=0, output=7 * 10**6)
    served = rig(prices=prices, tenants=Tenants([], {"dear": TenantPolicy(prices=own)}))

    def cost(name: str, tenant: str = "acme") -> float:
        fields: Any = {"model": name, "keepwarm": {"session": "s"}}
        response = served.connect(tenant).turn("ab" + END, input="hi", **fields)
        paid = round(response["keepwarm"]["cost"]["turn"] * 1e9)
        return paid / int(response["usage"]["output_tokens"])

    assert [cost(name) for name in ("default", "sql", "law", "sql", "m")] == [1, 5, 1, 5, 1]
    assert [cost(name, "dear") for name in ("default", "sql")] == [7, 7]
    ledger = served.store.tenant("acme").session("s").ledger
    assert ledger.cost == ledger.account.spent.cost == 13 * 3


def test_a_budget_of_money_is_held_at_the_adapters_prices() -> None:
    prices = PriceTable(output=10**6, adapters={"sql": PriceTable(output=10**8)})
    served = rig(prices=prices)
    client = served.connect()
    limits = []
    for name in ("default", "sql"):
        budget = [{"scope": "session", "cost": 1e-6}]
        client.create(input="hi", model=name, keepwarm={"session": name, "budget": budget})
        limits.append(served.engine.last.max_new_tokens)
        served.reply("ok" + END)
    assert limits == [1000, 10]


def test_the_cache_saves_at_the_adapters_prices() -> None:
    own = PriceTable(input_uncached=10**9, input_cached=0, output=0)
    served = rig(prices=PriceTable(output=10**6, adapters={"sql": own}))
    client = served.connect()
    for _ in range(2):
        client.turn(input="hi", instructions=LONG, model="sql", keepwarm={"session": "s"})
    report = served.reports[-1]
    assert report.saved == report.usage.cached_tokens * 1000 > 0
    assert client.response["keepwarm"]["cost"]["saved"] == report.saved / 1e9
    assert served.store.tenant("acme").session("s").ledger.saved == report.saved


def test_records_have_the_adapters_name_and_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PriceTable(output=5 * 10**6)
    journal, kept = MemoryJournal(), list[TurnRecord]()
    append = journal.append

    def keep(turns: Sequence[TurnRecord], reserved: Sequence[TurnRecord] = ()) -> list[bool]:
        kept.extend(turns)
        return append(turns, reserved)

    monkeypatch.setattr(journal, "append", keep)
    served = JournalRig(journal, prices=PriceTable(output=10**6, adapters={"sql": own}))
    served.model.adapters, served.model.told_to_all = ADAPTERS, None
    client = served.connect()
    for name in ("sql", "default"):
        client.turn(input="hi", model=name)
    assert [record.keys.model for record in kept] == ["sql", "default"]
    assert [record.price.output for record in kept] == [5 * 10**6, 10**6]
