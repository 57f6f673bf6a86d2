"""Which branch a call means, which calls are refused before anything happens, and who runs."""

import numpy as np
import pytest

from radix_cache.counters import Counters
from radix_cache.edge import NO_BLOCKS, TokenArray
from radix_cache.handle import BranchHandle, CachedSequence
from radix_cache.known_branches import KnownBranches
from radix_cache.leases import Leases
from radix_cache.nodes import Owner
from radix_cache.retention import Retention
from radix_cache.tenant_shares import TenantShares
from radix_cache.tree import RadixTree
from tests.support.cache_turns import run_turn, transcript
from tests.support.caches import make_cache


def test_a_session_of_another_tenant_is_refused() -> None:
    cache = make_cache()
    run_turn(cache, transcript(8), "a", tenant="one")
    with pytest.raises(ValueError, match="another tenant"):
        cache.begin(branch_id="a", tenant="two", tokens=transcript(8))


def test_a_session_released_in_mid_turn_leaves_nothing_when_it_ends() -> None:
    cache = make_cache()
    tokens = transcript(8)
    sequence = cache.begin(branch_id="s", tenant="t", tokens=tokens)
    cache.allocate(sequence, 2)
    cache.release_branch("s")
    cache.commit(sequence, tokens)
    cache.finish(sequence)
    assert cache.stats().branches == 0
    assert cache.stats().evictable == 2


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros(0, dtype=np.int32),
        np.zeros(4, dtype=np.int64),
        np.zeros((2, 2), dtype=np.int32),
        np.zeros(8, dtype=np.int32)[::2],
    ],
    ids=["empty", "int64", "two-dimensional", "strided"],
)
def test_a_bad_prompt_is_refused_and_opens_nothing(tokens: TokenArray) -> None:
    cache = make_cache()
    with pytest.raises(ValueError):
        cache.begin(branch_id="s", tenant="t", tokens=tokens)
    assert cache.stats().branches == 0


def test_a_base_of_another_tenant_is_no_base() -> None:
    cache = make_cache()
    run_turn(cache, transcript(16), "theirs", tenant="one")
    sequence = cache.begin(
        branch_id="mine",
        tenant="two",
        tokens=transcript(16),
        base_branch_id="theirs",
        base_offset=16,
    )
    assert sequence.num_cached_tokens == 0


def test_names_that_nobody_knows_are_ignored() -> None:
    cache = make_cache()
    cache.release_branch("nobody")
    cache.set_queued("nobody", True)
    assert cache.stats().branches == 0


def known_branches() -> tuple[KnownBranches, Owner]:
    tree = RadixTree(4, seed=0, on_idle_leaf=lambda node: None)
    leases = Leases(cap_s=1.0, kappa=1.0, restore_cost=None)
    retention = Retention(
        tree,
        leases,
        Counters(),
        clock=lambda: 0.0,
        leasing=True,
        shares=TenantShares((8, 0, 0), clock=lambda: 0.0),
        rescue_share=0.0,
    )
    return KnownBranches(tree, retention), tree.owner("red")


def begun(branches: KnownBranches, handle: BranchHandle) -> CachedSequence:
    sequence = CachedSequence(handle, NO_BLOCKS, num_shared=0, num_prompt=1, block_size=4)
    branches.begun(sequence)
    return sequence


def test_a_name_that_was_taken_anew_is_not_forgotten_with_the_branch_that_had_it() -> None:
    branches, owner = known_branches()
    old = branches.add("s", owner)
    old.sequence = begun(branches, old)
    branches.release("s")
    new = branches.add("s", owner)
    branches.forget(old)
    assert list(branches.handles) == [new]
    assert branches.knows(new)
    assert not branches.knows(old)


def test_a_sequence_is_alone_while_no_other_runs() -> None:
    branches, owner = known_branches()
    assert branches.is_alone(None)
    first = begun(branches, branches.add("a", owner))
    assert branches.is_alone(first)
    assert not branches.is_alone(None)
    second = begun(branches, branches.add("b", owner))
    assert not branches.is_alone(first)
    branches.ended(second)
    assert list(branches.running) == [first]
    assert branches.is_alone(first)


def test_who_ends_inside_an_edge_is_told_until_it_ends_or_the_edge_is_cut() -> None:
    branches, owner = known_branches()
    handles = [branches.add(name, owner) for name in "abc"]
    sequences = [begun(branches, handle) for handle in handles]
    for handle, sequence in zip(handles, sequences, strict=True):
        handle.length = 1  # the node, a root, ends at 0
        branches.stopped_inside(sequence)
    branches.ended(sequences[0])
    handles[1].length = 0
    assert branches.ending_inside() == [handles[2]]
    assert branches.take_ending_inside() == [handles[2]]
    assert branches.ending_inside() == []
