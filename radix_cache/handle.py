"""A branch's hold on the cache between sequences, a running sequence's, and the states that are
kept where either was.

A snapshot is at an exact token. The whole blocks before it are in the tree; what lies behind the
last of them, less than a block, it has itself.
"""

from radix_cache.block_pool import BlockArray
from radix_cache.edge import NO_BLOCKS, TokenArray
from radix_cache.ghosts import MissCause
from radix_cache.nodes import Holder, Node, Owner, Tier
from radix_cache.snapshots import SnapshotKind


class Snapshot:
    """A state at token ``position``, which lies in ``node`` or in the block behind it."""

    __slots__ = (
        "age",
        "before",
        "blocks",
        "disk",
        "ends",
        "forks",
        "host",
        "kind",
        "node",
        "number",
        "owner",
        "pending",
        "pins",
        "position",
        "released",
        "slot",
        "successor",
        "tail",
        "used",
    )

    def __init__(
        self,
        owner: Owner,
        kind: SnapshotKind,
        *,
        node: Node,
        blocks: int,
        tail: TokenArray,
        position: int,
        slot: int,
        number: int,
    ) -> None:
        self.owner = owner
        """Whose sequence computed it; others see it only if that is the published owner."""
        self.kind = kind
        self.node = node
        self.blocks = blocks
        """Whole blocks before it."""
        self.tail = tail
        """int32: the tokens behind these."""
        self.position = position
        self.slot = slot
        """On the device; -1 where it is not there."""
        self.host = self.disk = -1
        """Its copies in the tiers below, likewise."""
        self.pending: Tier | None = None
        """Where a copy of it is on its way to, from or to the disk."""
        self.number = number
        """Later ones have larger numbers."""
        self.age = 0.0
        """Worth of the cheapest loss when it was used last: costs count from there."""
        self.used = 0
        """Larger the later it was used."""
        self.before: Snapshot | None = None
        """Where the sequence that left it had begun."""
        self.successor: Snapshot | None = None
        """The end of the next turn of the same branch: it takes this one's place."""
        self.released = False
        """Its branch was released: nobody is known to come back."""
        self.ends: set[BranchHandle] = set()
        """The branches that end here."""
        self.forks: set[BranchHandle] = set()
        """Other branches that went on from here."""
        self.pins = 0
        """Sequences that are about to begin here."""

    @property
    def alive(self) -> bool:
        return self.slot >= 0 or self.host >= 0 or self.disk >= 0

    @property
    def ready(self) -> bool:
        """Whether a sequence can begin here at once."""
        return self.slot >= 0 or (self.host >= 0 and self.pending is not Tier.HOST)

    def at(self, tier: int) -> int:
        """Its slot in a tier, -1 where it has none."""
        return (self.slot, self.host, self.disk)[tier]

    def put(self, tier: int, slot: int) -> None:
        """Note its slot in a tier."""
        setattr(self, ("slot", "host", "disk")[tier], slot)

    def only_in(self, tier: int) -> bool:
        """Whether it has no copy in another tier that can be counted on."""
        sure = [each for each in Tier if self.at(each) >= 0 and self.pending is not each]
        return all(each == tier for each in sure)


class BranchHandle(Holder):
    """Where a branch's transcript ends in the tree. The cache's own; not for its callers."""

    __slots__ = (
        "away_since_s",
        "branch_id",
        "end",
        "expected_s",
        "forked",
        "gone",
        "hinted",
        "known",
        "leased_until",
        "looked_at",
        "private",
        "private_since",
        "put_back",
        "queued",
        "seen",
        "sequence",
        "table",
        "told",
    )
    metered = True

    def __init__(self, branch_id: str, owner: Owner) -> None:
        super().__init__(owner)
        self.branch_id = branch_id
        self.table: BlockArray = NO_BLOCKS
        """Block ids of the path in the tree, as far as it was on the device at ``seen``."""
        self.seen = 0
        """Tick when the table was last right: nodes placed later have other ids."""
        self.known = 0
        """Blocks the branch had in the tree when its last request ended."""
        self.leased_until = 0.0
        """End of the lease, on the cache's clock; 0 where there is none."""
        self.away_since_s = 0.0
        """When the lease was given, on the cache's clock."""
        self.hinted = False
        """The caller said how long the lease is to be."""
        self.expected_s = 0.0
        """When the branch is expected back: the end of its last lease, if it was given one."""
        self.queued = False
        """The next request has arrived and waits."""
        self.sequence: CachedSequence | None = None
        self.private = 0
        """Blocks of the sequence outside the tree, ``private_since`` a time in microseconds."""
        self.private_since = 0
        self.looked_at = 0
        """When the residency meter looked at the branch last, in microseconds."""
        self.told = 0
        """The part of its block-microseconds that has been told."""
        self.gone = False
        """It is off the tree and has lost its name."""
        self.put_back = False
        """Its sequence was not admitted, and goes on waiting under that name."""
        self.end: Snapshot | None = None
        """The state that was kept where its last turn ended."""
        self.forked: set[Snapshot] = set()
        """Those that it went on from and that are other branches' ends, or were."""

    def shortened(self) -> None:
        if not self.length:
            self.table = NO_BLOCKS


class CachedSequence:
    """A sequence's claim on the cache, from ``begin`` to ``finish``.

    Its first blocks are in the tree and may be shared; the rest are private to it, and only
    these may be written.
    """

    __slots__ = (
        "admitted",
        "at_end",
        "beyond",
        "block_size",
        "came_from",
        "evicted_s",
        "far",
        "handle",
        "is_new",
        "junction",
        "misses",
        "num_blocks",
        "num_cached_tokens",
        "num_device_blocks",
        "num_prompt_tokens",
        "num_shared_blocks",
        "resume",
        "resumed",
        "rows_from",
        "rows_points",
        "rows_to",
        "state_slot",
        "table",
        "warm",
    )

    def __init__(
        self,
        handle: BranchHandle,
        table: BlockArray,
        *,
        num_shared: int,
        num_prompt: int,
        block_size: int,
    ) -> None:
        self.handle: BranchHandle | None = handle
        """The branch's, None once finished. For the cache."""
        self.table = table
        """With room to grow. For the cache; callers read ``block_table``."""
        self.block_size = block_size
        self.beyond: Holder | None = None
        """Keeps what was found in host memory until it is restored. For the cache."""
        self.at_end = False
        """What is restored ends where its branch did. For the cache."""
        self.is_new = False
        """``begin`` made the branch's handle. For the cache."""
        self.admitted = False
        """Something was allocated: the sequence runs."""
        self.num_blocks = num_shared
        """Blocks of the table, shared and private."""
        self.num_shared_blocks = num_shared
        """Leading blocks that are in the tree: never write to them."""
        self.num_device_blocks = num_shared
        """Leading blocks that were on the device: with recurrent layers, or where rows behind
        windows are given back, more than the table has before it is restored."""
        self.num_prompt_tokens = num_prompt
        self.num_cached_tokens = 0
        """Prompt tokens whose KV is on the device, a multiple of the block size; with recurrent
        layers, where a state was kept, any number."""
        self.state_slot = -1
        """Where its state is while it runs, in caches that have slots for states."""
        self.junction: int | None = None
        """Tokens whose KV was found though no state was: worth a snapshot."""
        self.resume: Snapshot | None = None
        """Where it is about to begin. For the cache."""
        self.far: Snapshot | None = None
        """Where it would, were the blocks below restored. For the cache."""
        self.came_from: Snapshot | None = None
        """Where it has begun, if that is still there. For the cache."""
        self.rows_from = self.rows_to = 0
        """The blocks whose rows of layers with a window it pins. For ``window_rows``."""
        self.rows_points: list[int] = []
        """Blocks behind which others are thought to go on, descending, as far as it has not come to
        them. For ``window_rows``."""
        self.resumed: tuple[SnapshotKind, Tier] | None = None
        """Why the state was kept that it has begun with, and where; None: it began at zero."""
        self.misses: dict[MissCause, int] = {}
        """The other prompt tokens by cause."""
        self.evicted_s: float | None = None
        """When the first of the evicted ones went, on the cache's clock."""
        self.warm = False
        """At least 80 % of what the branch had was still there: it may evict leased blocks."""

    @property
    def block_table(self) -> BlockArray:
        """Physical blocks in order, int32 [num_blocks]: a view that holds until the next
        call that names this sequence."""
        return self.table[: self.num_blocks]

    @property
    def num_restorable_blocks(self) -> int:
        """Further blocks of the prompt that are in host memory; ``PrefixCache.restore`` brings
        them."""
        return self.beyond.length - self.num_device_blocks if self.beyond is not None else 0

    @property
    def num_restorable_tokens(self) -> int:
        """By so many ``num_cached_tokens`` grows then."""
        if self.far is not None:
            return self.far.position - self.num_cached_tokens
        if self.beyond is None:
            return 0
        return self.beyond.length * self.block_size - self.num_cached_tokens

    @property
    def miss_causes(self) -> dict[str, int]:
        """Prompt tokens found nowhere, by the value of their MissCause."""
        return {cause.value: count for cause, count in self.misses.items()}
