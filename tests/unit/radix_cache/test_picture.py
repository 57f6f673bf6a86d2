"""The picture shows the tree's upper part, within bounds, and nothing of another tenant."""

from radix_cache.cache import PrefixCache
from radix_cache.nodes import BlockClass
from radix_cache.picture import HEAD_TOKENS, MAX_BRANCHES, MAX_CHILDREN
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock


def shared(cache: PrefixCache, name: str, seed: int, **fields: object) -> None:
    """A transcript of which the first twelve tokens are everybody's."""
    tokens = transcript(24, seed=seed)
    tokens[:12] = transcript(12, seed=99)
    run_turn(cache, tokens, name, **fields)


def test_what_is_shared_stands_once_and_names_who_goes_on_from_it() -> None:
    cache = make_cache()
    shared(cache, "a", 1)
    shared(cache, "b", 2)
    root, *below = cache.picture(None, 50)
    assert (root.parent, root.start, root.tokens, root.children, root.holders) == (
        None,
        0,
        12,
        2,
        0,
    )
    assert root.head == tuple(transcript(12, seed=99).tolist())[:HEAD_TOKENS]
    assert [(node.parent, node.start, node.tokens) for node in below] == [(0, 12, 12)] * 2
    assert {branch for node in below for branch in node.branches} == {"a", "b"}


def test_the_state_is_that_of_whoever_holds_it_most_strongly() -> None:
    clock = FakeClock()
    cache = make_cache(clock=clock)
    run_turn(cache, transcript(8, seed=1), "idle")
    run_turn(cache, transcript(8, seed=2), "leased", lease_s=5.0)
    run_turn(cache, transcript(8, seed=3), "running")
    open_turn(cache, transcript(12, seed=3), "running")
    clock.advance(2.0)
    states = {node.branches: (node.klass, node.lease_s) for node in cache.picture(None, 50)}
    assert states["idle",] == (BlockClass.IDLE, 0.0)
    assert states["leased",] == (BlockClass.LEASED, 3.0)
    assert states["running",][0] == BlockClass.RUNNING


def test_a_tenant_sees_its_own_and_what_is_published_without_others_uses() -> None:
    cache = make_cache(64)
    run_turn(cache, transcript(8, seed=7), "published", tenant=None)
    run_turn(cache, transcript(8, seed=1), "mine", tenant="me")
    run_turn(cache, transcript(8, seed=2), "theirs", tenant="other")
    open_turn(cache, transcript(12, seed=7), "their turn", tenant="other")
    seen = cache.picture("me", 50)
    assert {node.owner for node in seen} == {"", "me"}
    assert {branch for node in seen for branch in node.branches} == {"mine"}
    published = next(node for node in seen if node.owner == "")
    assert (published.age, published.holders) == (0, 0)
    assert published.klass < BlockClass.RUNNING
    assert {node.owner for node in cache.picture(None, 50)} >= {"me", "other"}


def test_it_is_bounded_in_nodes_children_and_names() -> None:
    cache = make_cache(256)
    for seed in range(MAX_CHILDREN + 6):
        run_turn(cache, transcript(8, seed=seed + 1), f"s{seed}")
    for number in range(MAX_BRANCHES + 2):
        run_turn(cache, transcript(8, seed=1), f"again{number}")
    assert len(cache.picture(None, 500)) == MAX_CHILDREN
    assert len(cache.picture(None, 5)) == 5
    crowd = max(cache.picture(None, 500), key=lambda node: node.holders)
    assert (crowd.holders, len(crowd.branches)) == (MAX_BRANCHES + 3, MAX_BRANCHES)


def test_parents_stand_before_their_children_and_looking_changes_nothing() -> None:
    cache = make_cache(128)
    for seed in range(8):
        shared(cache, f"s{seed}", seed)
    before = cache.stats()
    picture = cache.picture(None, 100)
    assert all(node.parent is None or node.parent < at for at, node in enumerate(picture))
    assert cache.stats() == before
    cache.check()


def test_each_tenants_blocks_are_counted_once_and_published_ones_for_nobody() -> None:
    cache = make_cache(64)
    run_turn(cache, transcript(8, seed=7), "published", tenant=None)
    run_turn(cache, transcript(8, seed=1), "mine", tenant="me")
    assert cache.tenant_blocks(9) == {"me": 2}
    shared_one = open_turn(cache, transcript(12, seed=1), "mine too", tenant="me")
    run_turn(cache, transcript(8, seed=2), "theirs", tenant="other")
    assert shared_one is not None
    assert cache.tenant_blocks(9)["other"] == 2
    assert cache.tenant_blocks(9)["me"] >= 3  # what runs has blocks of its own beside the tree's
    assert len(cache.tenant_blocks(1)) == 1
