"""What is asked of the tiers between steps: blocks and states together."""

from radix_cache.nodes import Tier
from radix_cache.snapshots import StoredState
from radix_cache.tier_upkeep import TierUpkeep
from radix_cache.transfers import RunContent, StoredRun
from tests.support.caches import make_cache
from tests.support.state_turns import ids, turn
from tests.unit.radix_cache.test_lower_states import Book, lower, moves, tiered


def test_without_tiers_there_is_nothing_to_do() -> None:
    cache = make_cache()
    upkeep = TierUpkeep(cache.tree, None, cache.branches, cache.retention, None)  # type: ignore[arg-type]
    upkeep.tend()
    upkeep.copy_down()
    assert upkeep.states is None
    assert not upkeep.wants_tending
    assert not upkeep.is_reading(9)
    assert (upkeep.last_order, upkeep.num_pending_orders) == (0, 0)


def test_of_a_prompt_whose_state_is_gone_no_block_is_brought_up() -> None:
    """Keys and values without a state behind them save nothing."""
    book, text = Book(), list(range(100))
    cache = tiered(disk=8, book=book)
    turn(cache, "a", text[:22])
    cache.copy_down()
    runs = [
        StoredRun(content=order.content, blocks=order.target_blocks)
        for order in book.orders
        if isinstance(order.content, RunContent)
    ]
    states = [
        StoredState(content=order.content, slot=order.target_slot)
        for order in moves(cache)
        if order.content is not None
    ]
    prompt = {"branch_id": "n", "tenant": "t", "tokens": ids([*text[:22], 7])}
    for known, brought in ((states, 6), ([], 0)):
        book = Book()
        again = tiered(disk=8, book=book)
        assert again.load(runs, known) == (5, len(known))
        assert again.prefetch(**prompt) == brought  # type: ignore[arg-type]
        assert again.num_pending_orders == (2 if brought else 0)
        assert all(order.source is Tier.DISK for order in book.orders)
    full = tiered(disk=8, host=1)
    assert full.load(runs, states) == (5, 1)
    turn(full, "other", list(range(500, 540)), lease_s=50.0)
    held = next(iter(lower(full).kept[Tier.HOST].values()))
    held.pins = 1  # whose slot nobody may have: the state cannot come up
    assert full.prefetch(**prompt) == 0  # type: ignore[arg-type]
    held.pins = 0
