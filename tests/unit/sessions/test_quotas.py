"""A tenant gets what its minute holds, is told when there is more, and harms no other."""

import random
from collections.abc import Mapping

import pytest

from sessions.durable.ledger import PriceTable
from sessions.quotas import Quotas
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
        held.begin_turn(tenant)
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
    held.spend("acme", 599)
    assert wait_s(held) == 0
    held.spend("acme", 301)
    assert wait_s(held) == pytest.approx(30.1)
    clock.now_s += 30.1
    assert wait_s(held) == 0


def test_the_longer_wait_is_told_with_the_limit_that_causes_it() -> None:
    held = quotas(FakeClock(0.0), turns_per_minute=1, tokens_per_minute=60)
    held.begin_turn("acme")
    held.spend("acme", 200)
    with pytest.raises(ApiError, match=r"60 tokens a minute; try again in 141 s"):
        held.begin_turn("acme")


def test_another_tenant_and_one_without_limits_wait_for_nobody() -> None:
    held = quotas(FakeClock(0.0), turns_per_minute=1)
    assert wait_s(held) == 0
    assert wait_s(held) > 0
    assert [wait_s(held, "other") for _ in range(100)] == [0.0] * 100


def test_other_limits_hold_at_once_and_a_limit_that_is_gone_leaves_no_debt() -> None:
    clock = FakeClock(0.0)
    tenants = Tenants([KEY], {"acme": TenantPolicy(tokens_per_minute=60)})
    held = Quotas(tenants, clock)
    held.spend("acme", 6000)
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
    assert held.allows_model("acme", {"default", "m"})
    assert not held.allows_model("acme", {"default"})
    assert held.allows_model("anyone", {"default"})


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
