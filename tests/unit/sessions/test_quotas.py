"""A tenant gets what its minute holds, is told when there is more, and harms no other."""

import random
from collections.abc import Mapping

import pytest

from sessions.durable.ledger import PriceTable
from sessions.quotas import Draw, Drawn, Quotas
from sessions.tenants import ApiKey, TenantPolicy, Tenants, TokenPrices
from tests.support.clock import FakeClock
from tests.support.sessions_rig import END, Rig
from tools_api.errors import ApiError

KEY = ApiKey.of("key-of-acme", tenant="acme")


def quotas(clock: FakeClock, **policy: int) -> Quotas:
    return Quotas(Tenants([KEY], {"acme": TenantPolicy(**policy)}), clock)


def wait_s(held: Quotas, tenant: str = "acme") -> float:
    """0 if a turn may start, and has; else the seconds it is told to wait."""
    try:
        held.for_tenant(tenant).begin_turn()
    except ApiError as error:
        return error.retry_after_s or -1.0
    return 0.0


def test_a_minutes_turns_may_come_at_once_and_then_evenly() -> None:
    clock = FakeClock(50.0)
    held = quotas(clock, turns_per_minute=3)
    assert [wait_s(held) for _ in range(4)] == [0, 0, 0, 20]
    clock.now_s += 19.9
    assert wait_s(held) == pytest.approx(0.1)
    clock.now_s += 0.2
    assert wait_s(held) == 0
    clock.now_s += 3600
    assert [wait_s(held) > 0 for _ in range(4)] == [False, False, False, True]


def test_tokens_are_taken_at_the_end_and_what_was_overdrawn_is_waited_for() -> None:
    clock = FakeClock(0.0)
    held = quotas(clock, tokens_per_minute=600)
    assert wait_s(held) == 0
    held.for_tenant("acme").spend(599)
    assert wait_s(held) == 0
    held.for_tenant("acme").spend(301)
    assert wait_s(held) == pytest.approx(30.1)
    clock.now_s += 30.1
    assert wait_s(held) == 0


def test_the_longer_wait_is_told_with_the_limit_that_causes_it() -> None:
    held = quotas(FakeClock(0.0), turns_per_minute=1, tokens_per_minute=60)
    held.for_tenant("acme").begin_turn()
    held.for_tenant("acme").spend(200)
    with pytest.raises(ApiError, match=r"60 tokens a minute; try again in 141 s"):
        held.for_tenant("acme").begin_turn()


def test_another_tenant_and_one_without_limits_wait_for_nobody() -> None:
    held = quotas(FakeClock(0.0), turns_per_minute=1)
    assert wait_s(held) == 0
    assert wait_s(held) > 0
    assert [wait_s(held, "other") for _ in range(100)] == [0.0] * 100


def test_other_limits_hold_at_once_and_a_limit_that_is_gone_leaves_no_debt() -> None:
    clock = FakeClock(0.0)
    tenants = Tenants([KEY], {"acme": TenantPolicy(tokens_per_minute=60)})
    held = Quotas(tenants, clock)
    held.for_tenant("acme").spend(6000)
    assert wait_s(held) > 0
    tenants.replace([KEY], {})
    assert wait_s(held) == 0
    tenants.replace([KEY], {"acme": TenantPolicy(tokens_per_minute=60)})
    assert wait_s(held) == 0


@pytest.mark.parametrize("seed", range(10))
def test_no_stretch_of_time_holds_more_turns_than_the_bucket_and_what_it_gained(seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock(0.0)
    limit = rng.randint(1, 20)
    held = quotas(clock, turns_per_minute=limit)
    begun: list[float] = []
    for _ in range(400):
        clock.now_s += rng.choice([0.0, rng.expovariate(1.0), 60 / limit])
        if wait_s(held) == 0:
            begun.append(clock.now_s)
    for first, start in enumerate(begun):
        for last in range(first, len(begun)):
            gained = (begun[last] - start) * limit / 60
            assert last - first + 1 <= limit + gained + 1e-6


def test_models_are_allowed_by_any_of_their_names() -> None:
    tenants = Tenants([KEY], {"acme": TenantPolicy(models=frozenset({"m", "other"}))})
    held = Quotas(tenants, FakeClock(0.0))
    assert held.for_tenant("acme").allows_model({"default", "m"})
    assert not held.for_tenant("acme").allows_model({"default"})
    assert held.for_tenant("anyone").allows_model({"default"})


# In a connection


def rig(policies: Mapping[str, TenantPolicy]) -> Rig:
    return Rig(tenants=Tenants([KEY], policies))


def test_a_turn_beyond_the_limit_is_one_error_and_the_connection_goes_on() -> None:
    served = rig({"acme": TenantPolicy(turns_per_minute=1)})
    client = served.connect()
    assert client.turn(input="one")["status"] == "completed"
    (event,) = client.create(input="two")
    assert (event["type"], event["status"]) == ("error", 429)
    assert event["error"]["code"] == "rate_limit_exceeded"
    assert event["error"]["keepwarm"] == {"retry_after_ms": 60_000}
    assert served.connect("other").turn(input="x")["status"] == "completed"
    served.clock.now_s += 60
    assert client.turn(input="three")["status"] == "completed"


def test_what_is_refused_for_another_reason_takes_no_turn() -> None:
    served = rig({"acme": TenantPolicy(turns_per_minute=1)})
    client = served.connect()
    (event,) = client.create(input="one", model="unknown")
    assert event["error"]["code"] == "model_not_found"
    assert client.turn(input="one")["status"] == "completed"


def test_a_turns_computed_and_written_tokens_are_taken() -> None:
    served = rig({"acme": TenantPolicy(tokens_per_minute=1)})
    client = served.connect()
    usage = client.turn(input="one")["usage"]
    (event,) = client.create(input="two")
    computed = usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    spent = computed + usage["output_tokens"]
    assert event["error"]["keepwarm"]["retry_after_ms"] == spent * 60_000


def test_a_model_that_is_not_for_the_tenant_is_not_there() -> None:
    served = rig({"acme": TenantPolicy(models=frozenset({"another"}))})
    for fields in ({}, {"model": "default"}):
        (event,) = served.connect().create(input="x", **fields)
        assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
    assert served.connect("other").turn(input="x")["status"] == "completed"


def test_each_tenant_pays_its_own_prices_and_a_session_those_that_it_began_with() -> None:
    def policy(output: int) -> TenantPolicy:
        own = TokenPrices(input_uncached=0, input_cached=0, output=output)
        return TenantPolicy(prices=own)

    def cost(tenant: str, session: str) -> float:
        response = rig.connect(tenant).turn("ab" + END, input="hi", keepwarm={"session": session})
        paid = response["keepwarm"]["cost"]["turn"]
        assert isinstance(paid, float | int)
        return paid * 1e9 / response["usage"]["output_tokens"]

    tenants = Tenants([], {"dear": policy(7 * 10**6)})
    rig = Rig(prices=PriceTable(output=10**6), tenants=tenants)
    assert (cost("dear", "a"), cost("other", "a")) == (7, 1)
    assert rig.store.priced({"dear"})
    tenants.replace([], {"dear": policy(0), "other": policy(3 * 10**6)})
    assert (cost("dear", "a"), cost("dear", "b"), cost("other", "b")) == (7, 0, 3)
    assert not rig.store.priced({"dear"})


# Buckets that servers share


class Bucket:
    """The shared one, as the journal keeps it, in its simplest form."""

    def __init__(self, clock: FakeClock, limit: int) -> None:
        self.clock, self.limit = clock, limit
        self.level, self.at_s = float(limit), clock.now_s

    def give(self, draw: Draw) -> Drawn:
        gained = (self.clock.now_s - self.at_s) * self.limit / 60
        self.level, self.at_s = min(self.limit, self.level + gained), self.clock.now_s
        self.level -= draw.debt
        given = max(min(draw.amount, self.level), 0.0)
        given = float(int(given + 1e-9)) if draw.kind == "turns" else given
        self.level -= given
        lacks = (1 - self.level) * 60 / self.limit
        wait_s = 0.0 if given or not draw.amount else lacks
        return Drawn(kind=draw.kind, amount=given, left=self.level, wait_s=wait_s)


def servers(clock: FakeClock, count: int, **policy: int) -> list[Quotas]:
    tenants = Tenants([KEY], {"acme": TenantPolicy(**policy)})
    return [Quotas(tenants, clock, cluster="c") for _ in range(count)]


def begins(held: Quotas, bucket: Bucket) -> bool:
    quota = held.for_tenant("acme")
    quota.drawn([bucket.give(each) for each in quota.lacking()])
    return wait_s(held) == 0


def pay(held: Quotas, bucket: Bucket) -> None:
    for quota, each in held.debts():
        quota.drawn([bucket.give(each)])


@pytest.mark.samples(4)
@pytest.mark.parametrize("count", [1, 2, 4, 7])
@pytest.mark.parametrize("limit", [1, 60, 600])
def test_servers_together_begin_as_many_turns_as_one_does(count: int, limit: int) -> None:
    draw, clock = random.Random(limit + count), FakeClock(0.0)
    held, bucket = servers(clock, count, turns_per_minute=limit), Bucket(clock, limit)
    begun = 0
    for _ in range(3000):
        clock.now_s += 0.1
        for _ in range(3):
            begun += begins(draw.choice(held), bucket)
    most = limit + 300 * limit / 60
    assert begun <= most + 1e-6
    assert begun >= most - count * max(1, limit / 60) - 1


@pytest.mark.parametrize("count", [1, 4])
def test_servers_together_use_as_many_tokens_as_one_does(count: int) -> None:
    draw, clock, limit = random.Random(count), FakeClock(0.0), 6000
    held, bucket = servers(clock, count, tokens_per_minute=limit), Bucket(clock, limit)
    used = 0
    for _ in range(6000):
        clock.now_s += 0.1
        one = draw.choice(held)
        if begins(one, bucket):
            used += 700
            one.for_tenant("acme").spend(700)
        for each in held:
            pay(each, bucket)
    assert used == pytest.approx(limit + 600 * limit / 60, rel=0.02)


def test_a_bucket_that_is_known_to_be_empty_is_not_asked() -> None:
    clock = FakeClock(0.0)
    (held,), bucket = servers(clock, 1, turns_per_minute=1), Bucket(clock, 1)
    assert begins(held, bucket)
    assert not begins(held, bucket)
    assert not held.for_tenant("acme").lacking()
    clock.now_s += 60
    assert held.for_tenant("acme").lacking()
    assert begins(held, bucket)


def test_while_nothing_can_be_drawn_each_server_goes_on_with_its_part() -> None:
    clock = FakeClock(0.0)
    held = servers(clock, 4, turns_per_minute=240)
    begun = 0
    for each in held:
        each.servers.count = 4
    for _ in range(600):
        clock.now_s += 0.1
        for each in held:
            each.for_tenant("acme").unpaid(each.for_tenant("acme").lacking())
            begun += wait_s(each) == 0
    assert begun == pytest.approx(240, abs=8)
    bucket = Bucket(clock, 240)
    assert begins(held[0], bucket)  # and it draws again as soon as that is possible
    assert bucket.level == 236


def test_a_debt_that_could_not_be_paid_is_owed_still() -> None:
    clock = FakeClock(0.0)
    (held,), bucket = servers(clock, 1, tokens_per_minute=60), Bucket(clock, 60)
    assert begins(held, bucket)
    held.for_tenant("acme").spend(101)
    ((quota, debt),) = held.debts()
    assert (quota.tenant, debt.debt, held.debts()) == ("acme", 100.0, [])
    quota.unpaid([debt])
    pay(held, bucket)
    assert bucket.level == 60 - 1 - 100
    assert held.for_tenant("acme").standing()[0].used == 101


def test_servers_that_share_nothing_draw_nothing() -> None:
    held = quotas(FakeClock(0.0), turns_per_minute=1)
    assert not held.for_tenant("acme").lacking()
    assert not held.debts()
