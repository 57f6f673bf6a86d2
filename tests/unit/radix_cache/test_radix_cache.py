"""The small modules of the cache: what names a block, weighs it, remembers it, moves it."""

import itertools

import numpy as np
import pytest

from radix_cache.block_pool import OutOfBlocks
from radix_cache.edge import PieceShop
from radix_cache.ghosts import Ghost, GhostRecords, MissCause
from radix_cache.keys import chain_keys, root_key
from radix_cache.nodes import UNIT, Account, BlockClass, Owner, Tier, class_of
from radix_cache.transfers import TierBlocks
from tests.support.cache_turns import transcript

BLOCK = 4


@pytest.mark.parametrize("counts", list(itertools.product([0, 1, 70_000], repeat=3)))
def test_the_class_is_the_highest_that_is_counted(counts: tuple[int, int, int]) -> None:
    weight = sum(UNIT[klass] * count for klass, count in enumerate(counts, start=1))
    present = [klass for klass, count in enumerate(counts, start=1) if count]
    assert class_of(weight) == max(present, default=BlockClass.IDLE)


def test_classes_are_ordered_by_protection() -> None:
    names = [klass.name for klass in sorted(BlockClass)]
    assert names == ["IDLE", "LEASED", "QUEUED", "RUNNING"]


def test_chained_keys_name_all_tokens_before_them() -> None:
    tokens = transcript(40)
    whole = chain_keys(b"root", tokens, BLOCK)
    assert chain_keys(whole[3], tokens[16:], BLOCK) == whole[4:]
    other = tokens.copy()
    other[0] += 1
    assert not set(chain_keys(b"root", other, BLOCK)) & set(whole)


def test_chains_of_different_owners_begin_differently() -> None:
    shop = PieceShop(BLOCK)
    keys = {
        root_key(Owner(Account(name), adapter, salt, shop))
        for name in ("", "a", "b")
        for adapter in ("", "a", "ab")
        for salt in (1, 2)
    }
    assert len(keys) == 9
    assert {len(key) for key in keys} == {16}


def ghost(first: bytes = b"x", num_blocks: int = 1) -> Ghost:
    return Ghost(first, num_blocks, 0.0, MissCause.EVICTED)


def test_a_run_is_found_by_place_hash_and_tokens() -> None:
    records = GhostRecords(4)
    run = ghost(b"abc")
    records.add(3, 99, run)
    assert records.find(3, 99, b"abc") is run
    assert records.find(2, 99, b"abc") is None
    assert records.find(3, 98, b"abc") is None
    assert records.find(3, 99, b"abd") is None, "a hash does not decide"


def test_the_oldest_record_goes_first() -> None:
    records = GhostRecords(2)
    for position in range(3):
        records.add(position, 0, ghost())
    assert len(records) == 2
    assert records.find(0, 0, b"x") is None
    assert records.find(2, 0, b"x") is not None


def test_a_later_run_of_the_same_place_replaces_the_earlier() -> None:
    records = GhostRecords(2)
    records.add(0, 0, ghost(num_blocks=5))
    records.add(0, 0, ghost(num_blocks=7))
    found = records.find(0, 0, b"x")
    assert found is not None
    assert found.num_blocks == 7
    assert len(records) == 1


def test_no_capacity_means_no_memory() -> None:
    records = GhostRecords(0)
    records.add(0, 0, ghost())
    assert len(records) == 0


def test_a_block_given_up_during_an_order_is_free_when_it_is_over() -> None:
    blocks = TierBlocks(Tier.HOST, 8)
    taken = blocks.take(4)
    blocks.use(taken[:2])
    blocks.release(taken)
    assert blocks.num_free == 6
    assert sorted(blocks.unheld_blocks().tolist()) == list(range(8))
    blocks.used(taken[:2])
    assert blocks.num_free == 8


def test_a_block_kept_during_an_order_stays_held() -> None:
    blocks = TierBlocks(Tier.DISK, 4)
    taken = blocks.take(2)
    blocks.use(taken)
    blocks.used(taken)
    assert blocks.num_free == 2
    assert not set(blocks.unheld_blocks().tolist()) & set(taken.tolist())


def test_claimed_blocks_are_not_handed_out() -> None:
    blocks = TierBlocks(Tier.DISK, 6)
    blocks.claim(np.array([4, 1], dtype=np.int32))
    assert sorted(blocks.take(4).tolist()) == [0, 2, 3, 5]
    with pytest.raises(OutOfBlocks):
        blocks.take(1)


def test_claiming_a_block_in_use_changes_nothing() -> None:
    blocks = TierBlocks(Tier.DISK, 4)
    used = blocks.take(1)
    with pytest.raises(ValueError, match="1 of them are free"):
        blocks.claim(np.array([int(used[0]), 3], dtype=np.int32))
    assert blocks.num_free == 3
