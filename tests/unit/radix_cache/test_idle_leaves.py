"""The order of idle leaves against a sorted list."""

import random

import pytest

from radix_cache.edge import Edge, PieceShop
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.nodes import IDLE, RUNNING, Account, Node, Owner, Tier
from radix_cache.tenant_shares import TenantShares

SHOP = PieceShop(1)
OWNER = Owner(Account("red"), "", 0, SHOP)
SHARES = TenantShares((64, 64, 64), clock=lambda: 0.0)


def make_leaf(last_use: int) -> Node:
    leaf = Node(OWNER, parent=OWNER.root, start=0, edge=Edge(SHOP), size=1, key=0)
    leaf.last_use = last_use
    return leaf


@pytest.mark.parametrize("seed", range(10))
def test_the_oldest_is_the_idle_leaf_with_the_smallest_tick(seed: int) -> None:
    rng = random.Random(seed)
    order, leaves = IdleLeaves(SHARES), []
    for tick in range(1, 400):
        action = rng.randrange(5)
        if action <= 1 or not leaves:
            leaves.append(make_leaf(tick))
            order.offer(leaves[-1])
        elif action == 2:  # a turn runs on it
            rng.choice(leaves).klass = RUNNING
        elif action == 3:  # and ends
            leaf = rng.choice(leaves)
            leaf.klass, leaf.last_use = IDLE, tick
            order.offer(leaf)
        else:
            leaf = rng.choice(leaves)
            leaf.size = 0
            leaves.remove(leaf)
        idle = [leaf for leaf in leaves if leaf.klass == IDLE]
        assert order.first(Tier.DEVICE) is min(idle, key=lambda leaf: leaf.last_use, default=None)


def test_a_node_with_branches_waits_until_they_are_gone() -> None:
    order, parent, child = IdleLeaves(SHARES), make_leaf(1), make_leaf(2)
    parent.branches = 1
    order.offer(parent)
    order.offer(child)
    assert order.first(Tier.DEVICE) is child
    child.size = 0
    parent.branches = 0
    order.offer(parent)
    assert order.first(Tier.DEVICE) is parent


def test_a_node_that_changes_its_tier_is_offered_there_and_gone_here() -> None:
    order, leaf, other = IdleLeaves(SHARES), make_leaf(1), make_leaf(2)
    order.offer(leaf)
    order.offer(other)
    leaf.tier = Tier.HOST
    order.offer(leaf)
    assert order.first(Tier.DEVICE) is other
    assert order.first(Tier.HOST) is leaf
    assert order.first(Tier.DISK) is None


def test_the_oldest_stays_first_while_it_is_trimmed() -> None:
    order, leaf = IdleLeaves(SHARES), make_leaf(1)
    leaf.size = 5
    order.offer(leaf)
    order.offer(make_leaf(2))
    for size in (4, 3, 1):
        leaf.size = size
        assert order.first(Tier.DEVICE) is leaf
