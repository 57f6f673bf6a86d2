"""Host memory and disk: what is evicted moves down, what is wanted comes back unharmed."""

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from radix_cache.transfers import BlockMove, BlockMover
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.clock import FakeClock
from tests.support.tiered_driver import ContentMover

BLOCK = 4


class OrderBook:
    """A mover that only writes orders down."""

    def __init__(self) -> None:
        self.orders: list[BlockMove] = []

    def move(self, move: BlockMove) -> None:
        self.orders.append(move)

    def from_or_to_disk(self) -> list[BlockMove]:
        return [order for order in self.orders if Tier.DISK in (order.source, order.target)]


def tiered_cache(mover: BlockMover, **knobs: Any) -> PrefixCache:
    """Four times as much host memory as there is on the device, unless ``knobs`` say otherwise."""
    return make_cache(mover=mover, **{"num_blocks": 8, "host_blocks": 32} | knobs)


def test_an_evicted_transcript_comes_back_from_host_memory() -> None:
    book = OrderBook()
    cache = tiered_cache(book)
    run_turn(cache, transcript(24, seed=1), "first")
    run_turn(cache, transcript(32, seed=2), "second")
    back = cache.begin(branch_id="first", tenant="t", tokens=transcript(26, seed=1))
    assert (back.num_cached_tokens, back.num_restorable_blocks) == (0, 6)
    assert back.miss_causes == {"first_sight": 2}
    cache.restore(back)
    assert (back.num_cached_tokens, back.num_restorable_blocks) == (24, 0)
    down, up = book.orders[0], book.orders[-1]
    assert (up.source, up.target) == (Tier.HOST, Tier.DEVICE)
    assert up.source_blocks.tolist() == down.target_blocks.tolist()
    assert up.target_blocks.tolist() == back.block_table.tolist()
    assert cache.stats().restored_tokens == 24


def test_host_resident_turns_are_warm() -> None:
    cache = tiered_cache(OrderBook())
    run_turn(cache, transcript(24, seed=1), "s")
    run_turn(cache, transcript(32, seed=2), "other")
    back = cache.begin(
        branch_id="s",
        tenant="t",
        tokens=transcript(26, seed=1),
        base_branch_id="s",
        base_offset=24,
    )
    assert back.warm


def test_a_turn_that_restores_nothing_pays_and_says_evicted() -> None:
    cache = tiered_cache(OrderBook())
    run_turn(cache, transcript(24, seed=1), "first")
    run_turn(cache, transcript(32, seed=2), "second")
    host_free = cache.stats().host_free
    back = open_turn(cache, transcript(26, seed=1), "first")
    assert back.num_cached_tokens == 0
    assert back.miss_causes == {"evicted": 24, "first_sight": 2}
    freed = cache.stats().host_free - host_free
    assert freed == 6 - 8, "six were computed again, the eight of the other moved down"


def test_restoring_without_room_changes_nothing() -> None:
    cache = tiered_cache(OrderBook())
    run_turn(cache, transcript(24, seed=1), "first")
    run_turn(cache, transcript(32, seed=2), "second")
    open_turn(cache, transcript(12, seed=3), "busy")
    back = cache.begin(branch_id="first", tenant="t", tokens=transcript(26, seed=1))
    before = cache.stats()
    with pytest.raises(OutOfBlocks, match="asked for 6 blocks, 5 are available"):
        cache.restore(back)
    assert cache.stats() == before


def test_a_running_turn_restores_nothing() -> None:
    cache = tiered_cache(OrderBook())
    with pytest.raises(ValueError, match="runs already"):
        cache.restore(open_turn(cache, transcript(5), "s"))


def test_full_host_memory_forgets_its_oldest_and_says_so_later() -> None:
    cache = tiered_cache(OrderBook(), host_blocks=6)
    for seed in (1, 2, 3):
        run_turn(cache, transcript(24, seed=seed), f"s{seed}")
    cached = [
        cache.match_length(branch_id="x", tenant="t", tokens=transcript(25, seed=seed))
        for seed in (1, 2, 3)
    ]
    assert cached == [0, 24, 24]
    assert cache.stats().evicted_tokens["evicted"] == 24


def test_host_memory_is_written_behind_and_read_ahead() -> None:
    mover = ContentMover(BLOCK)
    cache = tiered_cache(mover, host_blocks=16, disk_blocks=64)
    for seed in range(1, 4):
        run_noted_turn(cache, mover, transcript(32, seed=seed), f"s{seed}")
    cache.tend()
    assert mover.pending, "host memory is full and nothing is on its way to the disk"
    finish_orders(cache, mover)
    assert cache.stats().disk_free < 64
    run_noted_turn(cache, mover, transcript(32, seed=4), "s4")
    arguments = {"branch_id": "s1", "tenant": "t", "tokens": transcript(33, seed=1)}
    found = cache.match_length(**arguments)
    assert found < 32
    on_the_way = cache.prefetch(**arguments)
    assert on_the_way > 0
    orders, last = len(mover.pending), cache.last_order
    assert cache.prefetch(**arguments) == on_the_way
    assert len(mover.pending) == orders, "ordered twice"
    assert cache.is_reading(last)
    finish_orders(cache, mover)
    assert not cache.is_reading(last)
    assert cache.match_length(**arguments) > found


def test_what_cannot_be_read_is_forgotten_and_counted() -> None:
    cache, mover = cache_with_a_run_on_disk()
    arguments = {"branch_id": "s1", "tenant": "t", "tokens": transcript(33, seed=1)}
    ordered = cache.prefetch(**arguments)
    before = cache.match_length(**arguments)
    finish_orders(cache, mover, ok=False)
    assert cache.stats().failed_blocks == ordered
    assert cache.match_length(**arguments) == before
    assert cache.prefetch(**arguments) == 0, "it is still known"
    turn = run_turn(cache, transcript(32, seed=1), "s1")
    assert turn.miss_causes["evicted"] >= ordered * BLOCK


def test_a_disk_that_refuses_loses_nothing_and_is_left_alone() -> None:
    mover = ContentMover(BLOCK)
    cache = tiered_cache(mover, host_blocks=16, disk_blocks=64)
    for seed in range(1, 4):
        run_noted_turn(cache, mover, transcript(32, seed=seed), f"s{seed}")
    cache.tend()
    kept = cache.match_length(branch_id="x", tenant="t", tokens=transcript(33, seed=1))
    finish_orders(cache, mover, ok=False)
    assert cache.match_length(branch_id="x", tenant="t", tokens=transcript(33, seed=1)) == kept
    cache.tend()
    assert not mover.pending
    assert cache.stats().disk_free == 64


def test_a_restart_finds_what_the_disk_holds_and_nothing_else() -> None:
    _, mover = cache_with_a_run_on_disk()
    runs = list(mover.stored.values())
    again = ContentMover(BLOCK)
    again.content[Tier.DISK] = mover.content[Tier.DISK]
    restarted = tiered_cache(again, host_blocks=16, disk_blocks=64)
    stored = sum(len(run.blocks) for run in runs)
    assert restarted.load(runs)[0] <= stored
    tokens = transcript(33, seed=1)
    assert restarted.prefetch(branch_id="x", tenant="other", tokens=tokens) == 0
    wrong = tokens.copy()
    wrong[1] += 1
    assert restarted.prefetch(branch_id="x", tenant="t", tokens=wrong) == 0
    restarted.prefetch(branch_id="x", tenant="t", tokens=tokens)
    finish_orders(restarted, again)
    first = restarted.begin(branch_id="x", tenant="t", tokens=tokens)
    restarted.restore(first)
    for index, block in enumerate(first.block_table.tolist()):
        expected = tuple(tokens[: (index + 1) * BLOCK].tolist())
        assert again.content[Tier.DEVICE][block] == expected


def test_a_restart_finds_blocks_under_their_own_adapter_alone() -> None:
    cache, mover = cache_with_a_run_on_disk(adapter="lora")
    again = ContentMover(BLOCK)
    again.content[Tier.DISK] = mover.content[Tier.DISK]
    restarted = tiered_cache(again, host_blocks=16, disk_blocks=64)
    assert restarted.load(mover.stored.values())[0] > 0
    prompt: dict[str, Any] = {"branch_id": "x", "tenant": "t", "tokens": transcript(33, seed=1)}
    assert cache.match_length(**prompt) == 0
    for adapter in ("", "other"):
        assert restarted.prefetch(**prompt, adapter=adapter) == 0
    assert restarted.prefetch(**prompt, adapter="lora") > 0


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_runs_are_found_again_however_the_tree_was_cut(cut: int) -> None:
    mover = ContentMover(BLOCK)
    cache = tiered_cache(mover, num_blocks=16, host_blocks=96, disk_blocks=512)
    tokens, branch = transcript(40, seed=1), transcript(40, seed=2)
    branch[: cut * BLOCK] = tokens[: cut * BLOCK]
    others = {f"s{seed}": transcript(40, seed=seed) for seed in range(3, 30)}
    for name, each in {"a": tokens, "b": branch, **others}.items():
        run_noted_turn(cache, mover, each, name)
        cache.tend()
        finish_orders(cache, mover)
    runs = list(mover.stored.values())
    for each in (tokens, branch):
        restarted = tiered_cache(
            ContentMover(BLOCK), num_blocks=16, host_blocks=96, disk_blocks=512
        )
        assert restarted.load(runs)[0] > 0
        prompt = np.append(each, each)
        on_disk = restarted.prefetch(branch_id="x", tenant="t", tokens=prompt)
        assert on_disk == reachable_blocks(runs, each)
        assert on_disk == 10


def test_a_session_is_brought_back_before_its_tool_is_expected_to_answer() -> None:
    clock, mover = FakeClock(0.0), ContentMover(BLOCK)
    cache = tiered_cache(mover, clock=clock)
    run_noted_turn(cache, mover, transcript(24, seed=1), "s", lease_s=100.0)
    run_noted_turn(cache, mover, transcript(32, seed=2), "other")
    assert here(cache, 1) == 0
    clock.now_s = 79.0
    cache.tend()
    assert here(cache, 1) == 0
    clock.now_s = 80.0
    cache.tend()
    assert here(cache, 1) == 24


def test_no_host_memory_means_no_tiers() -> None:
    book = OrderBook()
    cache = tiered_cache(book, host_blocks=0)
    run_turn(cache, transcript(24, seed=1), "first")
    run_turn(cache, transcript(32, seed=2), "second")
    assert not book.orders
    assert cache.stats().evicted_tokens["evicted"] == 24


def test_tiers_without_a_mover_are_refused() -> None:
    with pytest.raises(ValueError, match="no mover"):
        make_cache(8, host_blocks=8)


def test_runs_are_loaded_into_an_empty_cache_only() -> None:
    cache, mover = cache_with_a_run_on_disk()
    with pytest.raises(ValueError, match="empty cache"):
        cache.load(mover.stored.values())
    with pytest.raises(ValueError, match="has a disk"):
        tiered_cache(OrderBook()).load([])


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_sessions_recompute_what_an_ideal_tier_would(seed: int) -> None:
    """A pool for about 10 sessions and host memory for 60, against one LRU of both."""
    rng = random.Random(seed)
    length, device_blocks, host_blocks = 160, 400, 2400
    cache = make_cache(device_blocks, mover=OrderBook(), host_blocks=host_blocks, debug=False)
    ideal: OrderedDict[int, int] = OrderedDict()
    recomputed = ideally = 0
    sizes = [length] * 200
    for _ in range(1500):
        number = int(rng.gammavariate(2.0, 20.0)) % 200
        old = sizes[number]
        sizes[number] = old + 2 if old < length + 40 else length
        tokens = transcript(length + 40, seed=number)[: sizes[number]]
        sequence = cache.begin(branch_id=f"s{number}", tenant="t", tokens=tokens)
        cache.restore(sequence)
        cache.allocate(sequence, cache.blocks_for(len(tokens)) - sequence.num_blocks)
        cache.commit(sequence, tokens)
        recomputed += len(tokens) - sequence.num_cached_tokens
        cache.finish(sequence, lease_s=0.0)
        held = min(ideal.pop(number, 0), (len(tokens) - 1) // BLOCK)
        ideally += len(tokens) - held * BLOCK
        ideal[number] = len(tokens) // BLOCK
        while sum(ideal.values()) > device_blocks + host_blocks:
            ideal.popitem(last=False)
    cache.check()
    assert recomputed <= 1.1 * ideally


# Parts


def run_noted_turn(
    cache: PrefixCache,
    mover: ContentMover,
    tokens: np.ndarray,
    name: str,
    *,
    lease_s: float = 0.0,
    adapter: str = "",
) -> None:
    """A turn whose blocks are noted as its tokens."""
    sequence = open_turn(cache, tokens, name, adapter=adapter)
    for index, block in enumerate(sequence.block_table.tolist()):
        mover.content[Tier.DEVICE][block] = tuple(tokens[: (index + 1) * BLOCK].tolist())
    cache.finish(sequence, lease_s=lease_s)


def finish_orders(cache: PrefixCache, mover: ContentMover, *, ok: bool = True) -> None:
    for move in mover.pending:
        if ok:
            mover.copy(move)
        cache.moved(move.number, ok=ok)
    mover.pending.clear()


def cache_with_a_run_on_disk(adapter: str = "") -> tuple[PrefixCache, ContentMover]:
    mover = ContentMover(BLOCK)
    cache = tiered_cache(mover, host_blocks=16, disk_blocks=64)
    for seed in range(1, 6):
        run_noted_turn(cache, mover, transcript(32, seed=seed), f"s{seed}", adapter=adapter)
        cache.tend()
        finish_orders(cache, mover)
    return cache, mover


def here(cache: PrefixCache, seed: int) -> int:
    """Tokens of a transcript that are on the device."""
    sequence = cache.begin(branch_id="probe", tenant="t", tokens=transcript(25, seed=seed))
    cache.finish(sequence)
    return sequence.num_cached_tokens


def reachable_blocks(runs: list, tokens: np.ndarray) -> int:
    """Leading blocks of ``tokens`` that are in some run, without a gap."""
    stored = {
        (run.content.position + i, run.content.tokens[i * BLOCK : (i + 1) * BLOCK].tobytes())
        for run in runs
        for i in range(len(run.blocks))
    }
    count = 0
    while (count, tokens[count * BLOCK : (count + 1) * BLOCK].tobytes()) in stored:
        count += 1
    return count
