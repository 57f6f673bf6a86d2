"""Copies on disk let a restart find transcripts that have never left the device."""

from radix_cache.cache import PrefixCache
from radix_cache.nodes import Tier
from tests.support.cache_turns import open_turn, run_turn, transcript
from tests.support.caches import make_cache
from tests.support.tiered_driver import ContentMover

BLOCK = 4
AMPLE = {"num_blocks": 120, "host_blocks": 120, "disk_blocks": 500}


def copying_cache(mover: ContentMover, **sizes: int) -> PrefixCache:
    sizes = {"num_blocks": 40, "host_blocks": 40, "disk_blocks": 200} | sizes
    return make_cache(mover=mover, **sizes)


def noted(  # type: ignore[no-untyped-def]
    cache: PrefixCache, mover: ContentMover, tokens, name: str, adapter: str = ""
) -> None:
    """A turn whose blocks are noted as its tokens."""
    sequence = open_turn(cache, tokens, name, adapter=adapter)
    for index, block in enumerate(sequence.block_table.tolist()):
        mover.content[Tier.DEVICE][block] = tuple(tokens[: (index + 1) * BLOCK].tolist())
    cache.finish(sequence, lease_s=0.0)


def finish_orders(cache: PrefixCache, mover: ContentMover, *, ok: bool = True) -> None:
    while mover.pending:
        move = mover.pending.pop(0)
        if ok:
            mover.copy(move)
        cache.moved(move.number, ok=ok)


def restarted(mover: ContentMover, **sizes: int) -> tuple[PrefixCache, ContentMover]:
    again = ContentMover(BLOCK)
    again.content[Tier.DISK] = mover.content[Tier.DISK]
    cache = copying_cache(again, **sizes)
    cache.load(mover.stored.values())
    return cache, again


def found_after_restart(cache: PrefixCache, mover: ContentMover, tokens) -> int:  # type: ignore[no-untyped-def]
    prompt = {"branch_id": "x", "tenant": "t", "tokens": tokens}
    cache.prefetch(**prompt)
    finish_orders(cache, mover)
    sequence = cache.begin(**prompt)
    cache.restore(sequence)
    for index, block in enumerate(sequence.block_table.tolist()):
        expected = tuple(tokens[: (index + 1) * BLOCK].tolist())
        assert mover.content[Tier.DEVICE][block] == expected
    cache.finish(sequence)
    return sequence.num_cached_tokens


def test_an_orderly_end_leaves_every_session_on_disk() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover)
    for seed in range(1, 5):
        noted(cache, mover, transcript(60, seed=seed), f"s{seed}")
    assert cache.stats().host_free < 40, "one of them is in host memory"
    cache.copy_down()
    assert cache.num_pending_orders
    finish_orders(cache, mover)
    assert not cache.num_pending_orders
    after, again = restarted(mover)
    for seed in range(1, 5):
        assert found_after_restart(after, again, transcript(61, seed=seed)[:61]) == 60


def test_copies_are_found_under_their_own_adapter_alone() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover)
    noted(cache, mover, transcript(60), "s", "lora")
    cache.copy_down()
    finish_orders(cache, mover)
    after, _ = restarted(mover)
    for adapter, blocks in (("", 0), ("other", 0), ("lora", 15)):
        wanted = after.prefetch(
            branch_id="x", tenant="t", tokens=transcript(61)[:61], adapter=adapter
        )
        assert wanted == blocks, adapter


def test_device_blocks_are_copied_as_they_were_when_it_was_ordered() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover)
    tokens = transcript(40, seed=1)
    noted(cache, mover, tokens, "s")
    cache.copy_down()
    mover.content[Tier.DEVICE].clear()
    finish_orders(cache, mover)
    assert found_after_restart(*restarted(mover), tokens) == 36


def test_nothing_is_copied_twice() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover)
    noted(cache, mover, transcript(40, seed=1), "s")
    cache.copy_down()
    finish_orders(cache, mover)
    cache.copy_down()
    assert not mover.pending


def test_the_sessions_used_last_come_first_where_the_disk_is_small() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover, disk_blocks=12)
    noted(cache, mover, transcript(40, seed=1), "old")
    noted(cache, mover, transcript(40, seed=2), "new")
    cache.copy_down()
    finish_orders(cache, mover)
    assert found_after_restart(*restarted(mover), transcript(41, seed=2)) == 40


def test_a_shared_prefix_is_copied_when_what_hangs_below_it_is_written() -> None:
    """Without an orderly end: the prefix is always in use and never leaves the device."""
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover, num_blocks=24, host_blocks=32)
    shared = transcript(20, seed=100)

    def session(seed: int):  # type: ignore[no-untyped-def]
        tokens = transcript(60, seed=seed)
        tokens[:20] = shared
        return tokens

    for seed in range(1, 9):
        noted(cache, mover, session(seed), f"s{seed}")
        cache.tend()
        finish_orders(cache, mover)
    assert cache.stats().moved_blocks["device_disk"] == 5
    assert found_after_restart(*restarted(mover), session(1)) == 56


def test_a_session_of_which_a_part_is_on_disk_survives_a_crash_whole() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover, num_blocks=104, host_blocks=66, disk_blocks=400)
    tokens = transcript(400, seed=1)
    noted(cache, mover, tokens, "s")
    noted(cache, mover, transcript(80, seed=2), "other")
    cache.tend()
    finish_orders(cache, mover)
    moved = cache.stats().moved_blocks
    assert (moved["host_disk"], moved["device_disk"]) == (64, 36)
    assert found_after_restart(*restarted(mover, **AMPLE), tokens) == 396


def test_a_prefix_that_is_wanted_again_outlives_copies_that_are_not() -> None:
    """A quarter of the disk holds copies; each session adds its own."""
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover, num_blocks=120, host_blocks=66, disk_blocks=280)
    shared = transcript(80, seed=100)

    def session(seed: int):  # type: ignore[no-untyped-def]
        tokens = transcript(400, seed=seed)
        tokens[:80] = shared
        return tokens

    for seed in range(1, 7):
        noted(cache, mover, session(seed), f"s{seed}")
        cache.tend()
        finish_orders(cache, mover)
    written = cache.stats().moved_blocks["device_disk"]
    assert written == 20 + 5 * 16, "more than there is room for, and the prefix once"
    assert found_after_restart(*restarted(mover, **AMPLE), session(5)) == 396


def test_a_copy_that_cannot_be_written_is_given_up() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover)
    noted(cache, mover, transcript(40, seed=1), "s")
    cache.copy_down()
    finish_orders(cache, mover, ok=False)
    assert cache.stats().disk_free == 200
    cache.copy_down()
    assert not mover.pending, "the disk is left alone"


def test_without_a_disk_there_is_nothing_to_copy() -> None:
    mover = ContentMover(BLOCK)
    cache = copying_cache(mover, disk_blocks=0)
    run_turn(cache, transcript(40))
    cache.copy_down()
    assert not mover.pending
