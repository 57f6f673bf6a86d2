"""Under pressure the blocks of the tenant furthest above its share go first, and no others."""

import random

import pytest

from radix_cache.cache import PrefixCache
from radix_cache.edge import PieceShop
from radix_cache.nodes import Account
from radix_cache.tenant_shares import ACTIVE_S, Demand, TenantShares
from radix_cache.transfers import BlockMove
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock

BLOCK = 4


class InstantMover:
    """Between device and host an order counts as done when it is given."""

    def move(self, move: BlockMove) -> None: ...


SHOP = PieceShop(BLOCK)


def make_owner(name: str, blocks: int) -> Account:
    owner = Account(name)
    owner.class_blocks[0] = blocks
    return owner


def test_active_tenants_have_equal_shares_and_others_none() -> None:
    clock = FakeClock(0.0)
    shares = TenantShares((100, 50, 0), clock=clock)
    red, blue, old = (make_owner(name, 40) for name in ("red", "blue", "old"))
    shares.used(old)
    clock.now_s = 1.0
    shares.used(red)
    shares.used(blue)
    assert [shares.excess(owner, 0) for owner in (red, blue, old)] == [7, 7, 7]
    clock.now_s = ACTIVE_S
    assert [shares.excess(owner, 0) for owner in (red, blue, old)] == [-10, -10, 40]
    assert set(shares.active()) == {red, blue}


def test_a_tenant_stays_active_for_ten_minutes_after_its_last_use() -> None:
    clock = FakeClock(0.0)
    shares = TenantShares((100, 0, 0), clock=clock)
    red = make_owner("red", 1)
    shares.used(red)
    clock.now_s = ACTIVE_S - 1
    assert red in shares.active()
    clock.now_s = ACTIVE_S
    assert red not in shares.active()


def test_what_is_wanted_and_what_runs_count_as_had_and_published_blocks_for_nobody() -> None:
    shares = TenantShares((100, 0, 0), clock=lambda: 0.0)
    red, operator = make_owner("red", 10), make_owner("", 90)
    red.private_blocks = 5
    shares.used(red)
    shares.used(operator)
    assert shares.excess(red, 0) == -85
    assert shares.excess(red, 0, Demand(account=red, blocks=20)) == -65
    assert shares.excess(red, 0, Demand(account=operator, blocks=20)) == -85
    assert shares.excess(operator, 0) == 0


@pytest.mark.parametrize("size", [1, 50, 64, 1000, 4096])
def test_a_level_is_positive_exactly_above_the_share_and_changes_where_it_says(size: int) -> None:
    shares = TenantShares((size, 0, 0), clock=lambda: 0.0)
    for excess in range(-200, 201):
        level, step = shares.level(excess, 0), shares.to_next_level(excess, 0)
        assert (level > 0) == (excess > 0)
        assert step >= 1
        assert shares.level(excess - step, 0) == level - 1
        assert shares.level(excess - step + 1, 0) == level


def kept(cache: PrefixCache, tenant: str, seed: int, length: int) -> int:
    probe = transcript(length + 1, seed=seed)
    return cache.match_length(branch_id="probe", tenant=tenant, tokens=probe)


@pytest.mark.parametrize("lease_s", [0.0, 60.0], ids=["idle", "leased"])
@pytest.mark.parametrize("tiers", [False, True], ids=["device", "tiers"])
def test_a_flood_of_one_tenant_leaves_another_what_is_within_its_share(
    lease_s: float, tiers: bool
) -> None:
    """The attack of the audit: 24 turns of one tenant, and 0 of 1,252 tokens of another left."""
    mover = InstantMover() if tiers else None
    cache = make_cache(64, mover=mover, host_blocks=64 if tiers else 0)
    run_turn(cache, transcript(64, seed=1), "mine", tenant="mild", lease_s=lease_s)
    for number in range(2, 60):
        run_turn(cache, transcript(48, seed=number), f"s{number}", tenant="wild", lease_s=lease_s)
    assert kept(cache, "mild", 1, 64) == 64


def test_one_tenant_alone_fills_everything_and_what_nobody_wants_stays() -> None:
    clock = FakeClock(0.0)
    cache = make_cache(64, clock=clock)
    run_turn(cache, transcript(64, seed=1), "mine", tenant="mild")
    for number in range(2, 5):
        run_turn(cache, transcript(64, seed=number), f"s{number}", tenant="wild")
    assert cache.stats().free == 0
    assert kept(cache, "wild", 2, 64) == kept(cache, "mild", 1, 64) == 64


def test_who_has_been_away_for_ten_minutes_goes_before_all_others() -> None:
    clock = FakeClock(0.0)
    cache = make_cache(64, clock=clock)
    run_turn(cache, transcript(192, seed=2), "s2", tenant="wild")
    clock.now_s = 1.0
    run_turn(cache, transcript(64, seed=1), "mine", tenant="mild")
    clock.now_s = ACTIVE_S + 0.5
    run_turn(cache, transcript(32, seed=4), "s4", tenant="wild")
    clock.now_s = ACTIVE_S + 1.5
    run_turn(cache, transcript(64, seed=3), "s3", tenant="wild")
    assert kept(cache, "mild", 1, 64) == 0
    assert kept(cache, "wild", 3, 64) == 64


@pytest.mark.samples(6)
@pytest.mark.parametrize("seed", range(20))
def test_whatever_others_do_a_tenant_within_half_its_share_keeps_its_tokens(seed: int) -> None:
    """Random floods of two tenants, some of whose turns run, beside one that holds less than half
    its share; the audit recounts everything after every call."""
    rng = random.Random(seed)
    cache = make_cache(rng.randint(48, 96), reserve_blocks=rng.randrange(4))
    most = cache.usable_blocks // 3 // 2
    length = (most - 1) * BLOCK
    run_turn(cache, transcript(length, seed=1), "mine", tenant="mild")
    running = []
    for number in range(40):
        tenant = rng.choice(["wild", "wild", "tame"])
        tokens = transcript(rng.randint(1, 16) * BLOCK, seed=rng.randint(10, 40))
        begun = cache.begin(branch_id=f"s{number}", tenant=tenant, tokens=tokens)
        wanted = cache.blocks_for(len(tokens)) - begun.num_blocks
        # As the scheduler does: what would not leave the others room waits.
        if wanted <= cache.available_blocks(begun) - most and wanted:
            cache.allocate(begun, wanted)
            cache.commit(begun, tokens)
        running.append(begun)
        while len(running) > rng.randrange(3):
            lease_s = rng.choice([0.0, None, 30.0])
            cache.finish(running.pop(rng.randrange(len(running))), lease_s=lease_s)
    cache.check()
    assert kept(cache, "mild", 1, length) >= 0.9 * (length - BLOCK)


def test_running_turns_count_in_what_a_tenant_holds() -> None:
    cache = make_cache(48)
    run_turn(cache, transcript(64, seed=1), "mine", tenant="mild")
    open_turn(cache, transcript(64, seed=2), "runs", tenant="wild")
    run_turn(cache, transcript(64, seed=3), "idle", tenant="wild")
    run_turn(cache, transcript(40, seed=4), "more", tenant="wild")
    assert kept(cache, "mild", 1, 64) == 64
    assert kept(cache, "wild", 3, 64) == 24
