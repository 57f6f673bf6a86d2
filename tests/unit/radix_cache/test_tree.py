"""The radix tree by itself: finding, sharing, splitting, holding, trimming."""

import numpy as np
import pytest

from radix_cache.audit import check_tree
from radix_cache.edge import TokenArray
from radix_cache.nodes import BlockClass as C
from radix_cache.nodes import Holder, Node, Owner, Tier
from radix_cache.tree import RadixTree

BLOCK = 2


def ids(*blocks: int) -> TokenArray:
    return np.array(blocks, dtype=np.int32)


class Fixture:
    """A tree whose tokens are written as strings, one letter per token."""

    def __init__(self, *, constant_hash: bool = False) -> None:
        self.idle: list[Node] = []
        extra = {"hash_block": lambda tokens, seed: 5} if constant_hash else {}
        self.tree = RadixTree(BLOCK, seed=1, on_idle_leaf=self.offer, **extra)
        self.owner = self.tree.owner("red")
        self.next_block = 0

    def offer(self, node: Node) -> None:
        node.offered = node.tier
        self.idle.append(node)

    def tokens(self, text: str) -> TokenArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def insert(self, text: str, owner: Owner | None = None) -> Node:
        """Cache ``text``, branching where it leaves what is there."""
        owner = owner or self.owner
        tokens = self.tokens(text)
        limit = len(tokens) // BLOCK
        node, at = self.tree.walk(owner, self.tree.start(owner), 0, tokens, limit=limit)
        if at < node.end:
            node = self.tree.split(node, at)
        if at < limit:
            rest = limit - at
            blocks = np.arange(self.next_block, self.next_block + rest, dtype=np.int32)
            self.next_block += rest
            node = self.tree.add_leaf(node, owner, tokens[at * BLOCK : limit * BLOCK], blocks)
            self.offer(node)
        return node

    def match(self, text: str, owner: Owner | None = None) -> int:
        owner = owner or self.owner
        tokens = self.tokens(text)
        start = self.tree.start(owner)
        return self.tree.walk(owner, start, 0, tokens, limit=len(tokens) // BLOCK)[1]

    def hold(self, node: Node, length: int, klass: C) -> Holder:
        holder = Holder(self.owner)
        self.tree.move(holder, node, length)
        self.tree.hold(holder, klass)
        return holder


@pytest.mark.parametrize("constant_hash", [False, True])
def test_a_match_ends_where_the_tokens_do(constant_hash: bool) -> None:
    t = Fixture(constant_hash=constant_hash)
    for text in ("aabbccdd", "aabbxxyy", "zzbb", "aabbccee"):
        t.insert(text)
    check_tree(t.tree)
    cases = {"aabbccddq": 4, "aabbccd": 3, "aabbxx": 3, "aab": 1, "zzbbcc": 2, "q": 0, "bbcc": 0}
    assert {text: t.match(text) for text in cases} == cases


def test_a_walk_changes_nothing() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    before = t.tree.num_nodes
    assert t.match("aabbxx") == 2
    assert t.tree.num_nodes == before


def test_a_walk_writes_the_blocks_of_its_path() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    t.insert("aabbxxyy")
    table = np.full(4, -1, dtype=np.int32)
    t.tree.walk(t.owner, t.owner.root, 0, t.tokens("aabbxxzz"), limit=4, table=table)
    assert table.tolist() == [0, 1, 4, -1]


def test_split_keeps_the_lower_node_and_moves_holders_that_end_above() -> None:
    t = Fixture()
    node = t.insert("aabbccdd")
    deep = t.hold(node, 4, C.RUNNING)
    shallow = t.hold(node, 1, C.RUNNING)
    upper = t.tree.split(node, 2)
    assert (deep.node, shallow.node) == (node, upper)
    assert (upper.start, upper.end, node.start, node.end) == (0, 2, 2, 4)
    t.tree.move(shallow, upper, 2)
    check_tree(t.tree)


def test_a_class_is_that_of_the_highest_holder_below() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    branch = t.insert("aabbxxyy")
    leased = t.hold(branch, 4, C.LEASED)
    assert t.tree.class_blocks == [2, 4, 0, 0]
    running = t.hold(t.insert("aabbccdd"), 4, C.RUNNING)
    assert t.tree.class_blocks == [0, 2, 0, 4]
    t.tree.hold(running, C.IDLE)
    assert t.tree.class_blocks == [2, 4, 0, 0]
    t.tree.hold(leased, C.IDLE)
    assert t.tree.class_blocks == [6, 0, 0, 0]
    check_tree(t.tree)


def test_trimming_cuts_holders_and_frees_from_the_end() -> None:
    t = Fixture()
    node = t.insert("aabbccdd")
    holder = t.hold(node, 4, C.IDLE)
    assert t.tree.trim(node, 1).tolist() == [1, 2, 3]
    assert (holder.node, holder.length) == (node, 1)
    assert t.match("aabbccdd") == 1
    check_tree(t.tree)


def test_a_parent_that_loses_its_last_child_is_offered_with_the_childs_age() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    leaf = t.insert("aabbxxyy")
    other = t.insert("aabbccdd")
    parent = leaf.parent
    assert parent is not None
    leaf.last_use, other.last_use = 7, 3
    t.tree.trim(other, 0)
    t.idle.clear()
    t.tree.trim(leaf, 0)
    assert t.idle == [parent]
    assert parent.last_use == 7


def test_append_is_allowed_to_the_only_holder_of_a_leaf() -> None:
    t = Fixture()
    node = t.insert("aabb")
    holder = t.hold(node, 2, C.RUNNING)
    assert t.tree.may_append(holder)
    t.tree.append(node, t.tokens("ccdd"), ids(20, 21))
    t.tree.move(holder, node, 4)
    assert t.match("aabbccdd") == 4
    check_tree(t.tree)
    second = t.hold(node, 4, C.IDLE)
    assert not t.tree.may_append(holder)
    t.tree.drop(second)
    assert t.tree.may_append(holder)
    t.insert("aabbccddee")
    assert not t.tree.may_append(holder)


def test_published_prefixes_are_shared_and_what_hangs_below_is_not() -> None:
    t = Fixture()
    blue = t.tree.owner("blue")
    t.insert("aabb", owner=t.tree.publisher())
    t.insert("aabbcc", owner=t.owner)
    assert t.match("aabbcc", owner=t.owner) == 3
    assert t.match("aabbcc", owner=blue) == 2
    check_tree(t.tree)


def test_tenants_do_not_find_each_other_even_when_all_hashes_collide() -> None:
    t = Fixture(constant_hash=True)
    blue = t.tree.owner("blue")
    t.insert("pp", owner=t.tree.publisher())
    t.insert("ppaabb")
    assert t.match("ppaabb", owner=blue) == 1
    t.insert("ppaabb", owner=blue)
    check_tree(t.tree)
    assert t.tree.num_nodes == 3


@pytest.mark.parametrize("constant_hash", [False, True])
def test_blocks_of_one_adapter_are_not_found_under_another(constant_hash: bool) -> None:
    """Nor published ones; a tenant's account is one for all of them."""
    t = Fixture(constant_hash=constant_hash)
    red, plain = t.tree.owner("red", "lora"), t.tree.owner("red")
    t.insert("pp", owner=t.tree.publisher("lora"))
    t.insert("ppaabb", owner=red)
    assert t.match("ppaabb", owner=red) == 3
    assert t.match("ppaabb", owner=t.tree.owner("blue", "lora")) == 1
    assert t.match("ppaabb", owner=plain) == 0
    assert t.match("ppaabb", owner=t.tree.owner("red", "other")) == 0
    t.insert("ppaabb", owner=plain)
    assert sum(t.tree.account("red").class_blocks) == 2 + 3
    assert red.account is plain.account
    check_tree(t.tree)


def test_the_key_of_an_owner_leads_to_it() -> None:
    tree = Fixture().tree
    owners = [tree.owner("red", "lora"), tree.owner("red"), tree.publisher(), tree.publisher("x")]
    assert len({owner.key for owner in owners}) == 4
    assert [tree.of_key(owner.key) for owner in owners] == owners


def test_placing_moves_blocks_to_another_tier_and_its_parent_becomes_a_leaf() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    leaf = t.insert("aabbxxyy")
    other = t.insert("aabbccdd")
    t.tree.trim(other, 0)
    t.idle.clear()
    assert t.tree.place(leaf, Tier.HOST, ids(30, 31), 1).tolist() == [4, 5]
    assert t.tree.tier_blocks[Tier.DEVICE] == [2, 0, 0, 0]
    assert t.tree.tier_blocks[Tier.HOST] == [2, 0, 0, 0]
    assert t.idle == [leaf, leaf.parent]
    check_tree(t.tree)
    tokens, start = t.tokens("aabbxxyy"), t.owner.root
    assert t.tree.walk(t.owner, start, 0, tokens, limit=4)[1] == 2
    assert t.tree.walk(t.owner, start, 0, tokens, limit=4, lowest=Tier.HOST)[1] == 4


def test_joining_mends_a_cut_where_nothing_else_begins_or_ends() -> None:
    t = Fixture()
    node = t.insert("aabbccdd")
    t.tree.split(node, 1)
    t.tree.join(node)
    assert (node.start, node.end, t.tree.num_nodes) == (0, 4, 1)
    upper = t.tree.split(node, 2)
    t.hold(upper, 2, C.IDLE)
    t.tree.join(node)
    assert t.tree.num_nodes == 2, "a session stands between them"
    check_tree(t.tree)
    assert t.match("aabbccdd") == 4


def test_climbing_finds_the_node_that_holds_a_position() -> None:
    t = Fixture()
    t.insert("aabbccdd")
    leaf = t.insert("aabbxxyy")
    parent = leaf.parent
    assert parent is not None
    found = [t.tree.climb(leaf, position) for position in (4, 3, 2, 1, 0)]
    assert found == [leaf, leaf, parent, parent, t.owner.root]


def test_a_tenant_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="name is empty"):
        Fixture().tree.owner("")


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RadixTree(0, seed=0, on_idle_leaf=lambda node: None)
