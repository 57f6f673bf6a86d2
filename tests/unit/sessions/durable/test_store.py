"""Audiences, sessions and expiry of what is stored."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from sessions.durable.account import Amount, Budget
from sessions.durable.ledger import PriceTable
from sessions.durable.store import ConnectionStore, Store
from sessions.durable.transcript import ROOT_DIGEST, roll
from sessions.tenants import TenantPolicy, Tenants, TokenPrices
from tests.support.clock import FakeClock
from tests.support.entries import entry
from tests.support.sessions_rig import END, Rig
from tools_api.items import Item
from tools_api.limits import Limits
from tools_api.requests import Bounds


def digests(items: Sequence[Item]) -> list[bytes]:
    return list(accumulate(items, roll, initial=ROOT_DIGEST))


def store(clock: FakeClock, **limits: Any) -> Store:
    return Store(limits=replace(Limits(), **limits), prices=PriceTable(), clock=clock)


def test_the_longest_idle_session_goes_at_one_beyond_the_bound() -> None:
    made = store(FakeClock(1000.0), max_sessions_per_tenant=2)
    first = made.tenant("t").session("a")
    made.tenant("t").session("b")
    made.tenant("t").session("a")
    made.tenant("t").session("c")
    assert {view.session for view in made.sessions()[1]} == {"a", "c"}
    assert made.tenant("t").session("a") is first


def test_sessions_that_began_with_equal_prices_have_them_together() -> None:
    def policies(output: int) -> dict[str, TenantPolicy]:
        prices = TokenPrices(input_uncached=0, input_cached=0, output=output)
        return {"t": TenantPolicy(prices=prices)}

    tenants = Tenants([], policies(1))
    made = Store(limits=Limits(), prices=PriceTable(), clock=FakeClock(1000.0), tenants=tenants)
    first, second = made.tenant("t").session("a"), made.tenant("t").session("b")
    tenants.replace([], policies(2))
    third = made.tenant("t").session("c")
    assert first.ledger.prices is second.ledger.prices
    assert [each.ledger.prices.output for each in (first, second, third)] == [1, 1, 2]


def test_a_session_in_use_is_not_dropped() -> None:
    clock = FakeClock(1000.0)
    made = store(clock, max_sessions_per_tenant=1)
    first = made.tenant("t").session("a")
    first.start_turn("r", None, clock())
    made.tenant("t").session("b")
    clock.advance(10_000)
    made.sweep()
    assert [view.session for view in made.sessions()[1]] == ["a"]
    first.end_turn("r", clock())
    assert made.tenant("t").session("a") is first


def test_a_bound_of_one_tenant_is_not_the_other_ones() -> None:
    made = store(FakeClock(1000.0), max_sessions_per_tenant=1)
    made.tenant("t").session("a")
    made.tenant("u").session("a")
    assert len(made.sessions()[1]) == 2


def test_a_look_at_sessions_costs_what_it_shows_however_many_there_are() -> None:
    class CountingClock(FakeClock):
        reads = 0

        def __call__(self) -> float:
            self.reads += 1
            return super().__call__()

    clock = CountingClock(1000.0)
    made = store(clock)
    for number in range(3000):
        clock.advance(0.001)
        for tenant in ("t", "u"):
            made.tenant(tenant).session(str(number))
    clock.reads = 0
    total, shown = made.sessions("t", 200)
    assert (total, clock.reads) == (3000, 200)
    assert [each.session for each in shown] == [str(n) for n in range(2999, 2799, -1)]
    total, shown = made.sessions(most=200)
    assert (total, clock.reads) == (6000, 400)
    assert {each.session for each in shown} == {str(n) for n in range(2900, 3000)}
    assert made.sessions("nobody", 200) == (0, [])


def test_an_expired_session_is_closed_and_its_name_free() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    first = made.tenant("t").session("a")
    clock.advance(made.limits.stored_response_ttl_s + 1)
    made.sweep()
    assert first.state.value == "closed"
    assert made.tenant("t").session("a") is not first
    assert made.tenant("t").above_or_before("a") is made.tenant("t").session("a")


def test_the_engine_is_told_when_the_last_response_of_a_branch_goes() -> None:
    rig = Rig(limits=replace(Limits(), max_stored_responses_per_tenant=2))
    client = rig.connect()
    first = client.turn("a" + END, input="hi")
    client.turn("b" + END, input="x", previous_response_id=first["id"])
    client.turn("c" + END, input="other")
    assert rig.engine.released == []
    client.turn("d" + END, input="another")
    assert rig.engine.released == ["branch_1"]


def test_a_connections_own_responses_have_their_own_bound() -> None:
    rig = Rig(limits=replace(Limits(), max_stored_responses_per_connection=2))
    client = rig.connect()
    oldest, *_, newest = [client.turn(input="hi", store=False)["id"] for _ in range(3)]
    assert rig.engine.released == ["branch_1"]
    (error,) = client.create(input="x", previous_response_id=oldest)
    assert error["error"]["code"] == "previous_response_not_found"
    assert client.turn(input="x", previous_response_id=newest)["status"] == "completed"


@pytest.mark.parametrize(
    ("limit", "private"),
    [("max_stored_bytes_per_connection", True), ("max_stored_bytes_per_tenant", False)],
)
def test_the_longest_unused_response_goes_at_one_byte_beyond_the_bound(
    limit: str, private: bool
) -> None:
    size = entry().size_bytes
    for most, first_is_there in ((2 * size, True), (2 * size - 1, False)):
        made = store(FakeClock(1000.0), **{limit: most})
        mine = ConnectionStore(made, tenant=made.tenant("t"), connection_id="c")
        for id_ in ("r1", "r2"):
            mine.keep(id_, entry(), mine.session("s"), private=private)
        assert (mine.response("r1") is not None) is first_is_there
        assert mine.response("r2") is not None


def test_a_private_head_gives_way_to_the_shared_one_when_it_is_dropped() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    mine = ConnectionStore(made, tenant=made.tenant("t"), connection_id="c")
    session = mine.session("s")
    shared, private = entry(answer="shared"), entry(answer="private")
    mine.keep("r1", shared, session, private=False)
    mine.keep("r2", private, session, private=True)
    heads = [mine.head(session)]
    mine.close()
    heads.append(mine.head(session))
    assert [head.entry for head in heads if head is not None] == [private, shared]


def over_http(made: Store, tenant: str = "t", *, continues_heads: bool = True) -> ConnectionStore:
    """What one HTTP request may continue."""
    whose = made.tenant(tenant)
    return ConnectionStore(
        made,
        tenant=whose,
        connection_id="c",
        private=whose.unlisted,
        continues_heads=continues_heads,
    )


def test_what_is_private_over_http_is_there_for_the_tenants_next_request() -> None:
    made = store(FakeClock(1000.0))
    first = over_http(made)
    session, private = first.session("s"), entry(answer="private")
    first.keep("r1", private, session, private=True, wire=b"{}")
    first.close()
    found = over_http(made).history(private.output_items, digests(private.output_items))
    assert found is not None
    assert (found[0].entry, found[0].wire) == (private, b"")
    head = over_http(made).head(session)
    assert head is not None
    assert head.entry is private
    assert made.tenant("t").responses.get("r1") is None
    elsewhere = ConnectionStore(made, tenant=made.tenant("t"), connection_id="websocket")
    assert elsewhere.history(private.output_items, digests(private.output_items)) is None
    assert (
        over_http(made, "other tenant").history(private.output_items, digests(private.output_items))
        is None
    )


def test_what_is_private_over_http_expires() -> None:
    clock = FakeClock(1000.0)
    made = store(clock, stored_response_ttl_s=60.0)
    mine, private = over_http(made), entry(answer="private")
    mine.keep("r1", private, mine.session("s"), private=True)
    clock.advance(60.1)
    made.sweep()
    assert len(made.tenant("t").unlisted.table) == 0


def test_who_sends_whole_histories_continues_no_head() -> None:
    made = store(FakeClock(1000.0))
    mine, said = over_http(made, continues_heads=False), entry(answer="said")
    session = mine.session("s")
    mine.keep("r1", said, session, private=False)
    assert mine.head(session) is None
    assert over_http(made).head(session) is not None
    assert mine.history(said.output_items, digests(said.output_items)) is not None


def test_a_session_is_looked_up_without_making_one() -> None:
    made = store(FakeClock(1000.0))
    assert over_http(made).known_session("s") is None
    session = over_http(made).session("s")
    assert over_http(made).known_session("s") is session
    assert made.tenant("other").known_session("s") is None


def names(made: Store, tenant: str | None = None) -> list[str]:
    return [view.session for view in made.sessions(tenant)[1]]


def test_sessions_are_shown_by_what_they_did_and_not_by_what_was_done_with_them() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    parent, child, other = (made.tenant("t").session(name) for name in ("parent", "child", "other"))
    for session in (parent, child, other):
        clock.advance(10.0)
        session.start_turn(session.name, None, clock())
    clock.advance(10.0)
    child.end_turn("child", clock())
    for _ in range(2):
        clock.advance(10.0)
        made.tenant("t").used(parent)  # a child draws on it
        made.tenant("t").session("parent")  # somebody has looked it up
    assert names(made) == ["child", "other", "parent"]
    ages = {view.session: view.idle_s for view in made.sessions()[1]}
    assert ages == {"child": 20.0, "other": 30.0, "parent": 50.0}
    parent.end_turn("parent", clock())
    assert names(made) == ["parent", "child", "other"]
    made.tenant("t").was_active(parent, 5000.0)
    assert names(made) == ["child", "other", "parent"]


def test_what_is_in_use_by_others_is_not_forgotten_though_it_does_nothing_itself() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    parent = made.tenant("t").session("parent")
    made.tenant("t").session("other")
    clock.advance(made.limits.stored_response_ttl_s)
    made.tenant("t").used(parent)
    clock.advance(1.0)
    made.sweep()
    assert names(made) == ["parent"]
    made.tenant("t").was_active(parent, 10 * made.limits.stored_response_ttl_s)
    made.sweep()
    assert names(made) == ["parent"], "a session that is loaded is not too old at once"


@pytest.mark.parametrize("seed", range(3))
def test_in_any_history_lists_of_one_tenant_and_of_all_are_in_order(seed: int) -> None:
    chance, clock = random.Random(seed), FakeClock(1000.0)
    made = store(clock)
    for number in range(300):
        clock.advance(chance.choice((0.0, 0.5)))
        session = made.tenant(chance.choice("tu")).session(f"s{chance.randrange(12)}")
        if session.in_use and chance.random() < 0.6:
            session.end_turn(session.running[0], clock())
        else:
            session.start_turn(f"r{number}", None, clock())
        for tenant in (None, "t", "u"):
            ages = [view.idle_s for view in made.sessions(tenant)[1]]
            assert ages == sorted(ages), f"seed {seed}"


def test_a_session_is_shown_with_every_budget_that_it_keeps_to() -> None:
    tenants = Tenants([], {"t": TenantPolicy(budget=Bounds(output=500, cost=0.000_009))})
    made = Store(limits=Limits(), prices=PriceTable(), clock=FakeClock(0.0), tenants=tenants)
    root, child = made.tenant("t").session("root"), made.tenant("t").session("child")
    child.parent = root
    root.ledger.account.budget = Budget(output=1)  # its own, and no child's
    root.ledger.tree.budget = Budget(output=100, cost=10_000)
    root.ledger.tree.spent = Amount(output=70, cost=400)
    root.ledger.tree.held = Amount(output=10)
    child.ledger.tree.budget = Budget(output=60)
    child.ledger.tree.soft = Budget(output=50)
    child.ledger.account.budget = Budget(reasoning=5)
    child.ledger.account.spent = Amount(reasoning=9)
    view = made.view(child)
    assert [(each.scope, each.owner, each.left) for each in view.budgets] == [
        ("session", "child", {"reasoning": 0}),
        ("tree", "child", {"output": 60}),
        ("tree", "root", {"output": 20, "cost": 9_600}),
        ("tenant", "t", {"output": 500, "cost": 9_000}),
    ]
    assert view.budgets[1].soft == {"output": 50}
    assert view.budget_left == {"reasoning": 0, "output": 20, "cost": 9_600}
    assert view.budget == {"reasoning": 5, "output": 100, "cost": 10_000}
    assert [each.scope for each in made.view(made.tenant("t").session("free")).budgets] == [
        "tenant"
    ]
