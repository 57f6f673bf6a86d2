"""States below the device, rule by rule; ``tests/campaigns`` plays them at random."""

from typing import Any

import pytest

from radix_cache.cache import PrefixCache
from radix_cache.lower_states import LowerStates
from radix_cache.nodes import Tier
from radix_cache.snapshots import BeginState, EndState, StateMove, StoredState
from radix_cache.transfers import BlockMove, RunContent, StoredRun
from tests.support.state_turns import begin, ids, stateful, turn


class Book:
    """Notes what is to be copied."""

    def __init__(self) -> None:
        self.orders: list[BlockMove] = []

    def move(self, move: BlockMove) -> None:
        self.orders.append(move)


def tiered(
    slots: int = 3,
    *,
    host: int = 4,
    disk: int = 0,
    blocks: int = 32,
    book: Book | None = None,
) -> PrefixCache:
    return stateful(
        slots,
        blocks=blocks,
        mover=book or Book(),
        host_blocks=64,
        host_states=host,
        disk_blocks=256 if disk else 0,
        disk_states=disk,
    )


def lower(cache: PrefixCache) -> LowerStates:
    assert cache.slots is not None
    assert cache.slots.kept.lower is not None
    return cache.slots.kept.lower


def moves(cache: PrefixCache) -> list[StateMove]:
    return [order for order in cache.take_state_orders() if isinstance(order, StateMove)]


def test_an_end_is_copied_to_host_memory_as_soon_as_its_turn_is_over() -> None:
    cache = tiered()
    turn(cache, "a", [1, 2, 3, 4, 5, 6])
    *_, ended, copied = cache.take_state_orders()
    assert isinstance(ended, EndState)
    assert isinstance(copied, StateMove)
    assert (copied.source, copied.target, copied.source_slot) == (
        Tier.DEVICE,
        Tier.HOST,
        ended.slot,
    )


def test_a_turn_begins_from_host_memory_where_its_slot_was_wanted() -> None:
    cache, text = tiered(1), list(range(40))
    turn(cache, "a", text[:10])
    turn(cache, "b", [9, 9, 9])
    (first, _) = moves(cache)
    sequence = begin(cache, "a", text[:12], base="a")
    assert sequence.num_cached_tokens == 10
    raised, began = cache.take_state_orders()
    assert isinstance(raised, StateMove)
    assert isinstance(began, BeginState)
    assert (raised.source_slot, raised.target_slot) == (first.target_slot, sequence.state_slot)
    assert (began.source, began.slot, began.position) == (began.slot, sequence.state_slot, 10)
    assert cache.stats().snapshots_raised == 1
    cache.finish(sequence)


def test_what_has_a_copy_below_goes_first_and_breaks_no_lease() -> None:
    cache = tiered(1)
    turn(cache, "a", list(range(8)), lease_s=50.0)
    turn(cache, "b", [9, 9])
    assert (cache.stats().leased, cache.stats().leases["broken"]) == (2, 0)
    assert turn(cache, "a", list(range(9)), base="a") == 8


def test_full_host_memory_keeps_what_costs_most() -> None:
    cache = tiered(1, host=1, blocks=64)
    turn(cache, "long", list(range(40)))
    turn(cache, "short", [9, 9, 9, 9])
    turn(cache, "last", [8, 8])
    tokens = ids([*range(40), 7])
    assert cache.match_length(branch_id="?", tenant="t", tokens=tokens) == 40
    assert cache.match_length(branch_id="?", tenant="t", tokens=ids([9, 9, 9, 9, 1])) == 0


def test_keys_and_values_come_back_with_the_state_behind_them_and_not_further() -> None:
    cache, text = tiered(4, blocks=8), list(range(100))
    turn(cache, "a", text[:22])
    turn(cache, "b", [200 + n for n in range(30)])
    sequence = cache.begin(branch_id="c", tenant="t", tokens=ids([*text[:22], 7, 8]))
    assert (sequence.num_cached_tokens, sequence.num_restorable_tokens) == (0, 22)
    assert sequence.num_restorable_blocks == 5
    cache.restore(sequence)
    assert (sequence.num_cached_tokens, sequence.num_blocks) == (22, 5)
    cache.allocate(sequence, 2)
    cache.finish(sequence)


def test_a_prompt_that_is_not_restored_begins_above_and_says_so() -> None:
    cache, text = tiered(4, blocks=8), list(range(100))
    turn(cache, "a", text[:22])
    turn(cache, "b", [200 + n for n in range(30)])
    sequence = cache.begin(branch_id="c", tenant="t", tokens=ids([*text[:22], 7, 8]))
    cache.allocate(sequence, 7)
    assert sequence.miss_causes == {"first_sight": 2, "evicted": 22}
    cache.finish(sequence)


@pytest.mark.parametrize("adapter", ["", "lora"])
def test_a_state_goes_to_the_disk_with_its_blocks_and_a_restart_finds_both(adapter: str) -> None:
    """Under the adapter that both were computed with."""
    book, text = Book(), list(range(100))
    cache = tiered(disk=8, book=book)
    turn(cache, "a", text[:22], adapter=adapter)
    cache.copy_down()
    states = [
        StoredState(content=order.content, slot=order.target_slot)
        for order in moves(cache)
        if order.content is not None
    ]
    runs = [
        StoredRun(content=order.content, blocks=order.target_blocks)
        for order in book.orders
        if isinstance(order.content, RunContent)
    ]
    again = tiered(disk=8, book=Book())
    assert again.load(runs, states) == (5, 1)
    prompt: dict[str, Any] = {"branch_id": "n", "tenant": "t", "tokens": ids([*text[:22], 7])}
    assert again.prefetch(**prompt, adapter="other") == 0
    prompt["adapter"] = adapter
    assert again.match_length(**prompt) == 0
    assert again.prefetch(**prompt) == 6
    last = again.last_order
    for order in moves(again):
        again.moved(order.number, ok=True)
    assert again.is_reading(last), "the keys and values before it"
    assert again.match_length(**prompt) == 0
    again.moved(last, ok=True)
    assert again.match_length(**prompt) == 22
    assert tiered(disk=8).load([], states) == (0, 0)


def test_a_state_that_cannot_be_written_or_read_is_not_there() -> None:
    cache = tiered(disk=8)
    turn(cache, "a", list(range(22)))
    cache.copy_down()
    below = lower(cache)
    (order,) = [each for each in moves(cache) if each.number]
    assert cache.num_pending_orders >= 1
    cache.moved(order.number, ok=False)
    assert (below.failed_states, len(below.kept[Tier.DISK])) == (1, 0)
    assert cache.match_length(branch_id="?", tenant="t", tokens=ids(range(23))) == 22
    cache.check()
