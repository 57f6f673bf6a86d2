"""The parts of a prefix cache, put together: what shares the tree, the pool and the counters.

``radix_cache.cache`` is the door before them and makes them once.

Always true: there are lower tiers only where something copies blocks to them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from radix_cache.block_pool import BlockPool
from radix_cache.config import CacheConfig
from radix_cache.counters import Counters
from radix_cache.edge import TokenArray
from radix_cache.evictor import Evictor
from radix_cache.idle_leaves import IdleLeaves
from radix_cache.kept_states import KeptStates, SlotCounts
from radix_cache.known_branches import KnownBranches
from radix_cache.leases import Leases
from radix_cache.matching import Matcher
from radix_cache.misses import MissAccount
from radix_cache.nodes import Tier
from radix_cache.residency import ResidencyMeter
from radix_cache.restoring import RestoreCost
from radix_cache.retention import Retention
from radix_cache.running_sequences import RunningSequences
from radix_cache.state_slots import StateSlots
from radix_cache.tenant_shares import TenantShares
from radix_cache.tier_upkeep import TierUpkeep
from radix_cache.tiers import LowerTiers
from radix_cache.transfers import BlockMover
from radix_cache.tree import RadixTree
from radix_cache.window_rows import WindowRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one cache."""

    counters: Counters
    pool: BlockPool
    tree: RadixTree
    misses: MissAccount
    tiers: TierUpkeep
    retention: Retention
    branches: KnownBranches
    evictor: Evictor
    matcher: Matcher
    sequences: RunningSequences
    slots: StateSlots | None
    windows: WindowRows | None


def assemble(
    config: CacheConfig,
    *,
    clock: Callable[[], float],
    restore_cost: Callable[[int], float] | None,
    reload_cost: Callable[[int], float] | None,
    mover: BlockMover | None,
    hash_block: Callable[[TokenArray, int], int],
) -> Parts:
    """Make them; arguments and errors as for ``PrefixCache``."""
    counters, pool = Counters(), BlockPool(config.num_blocks)
    idle = IdleLeaves(_tenant_shares(config, clock), stateful=config.state_slots > 0)
    tree = _tree(config, idle, hash_block, clock)
    misses = MissAccount(tree, counters, clock=clock, capacity=config.ghost_records)
    windows = _window_rows(config, pool)
    lower = _lower_tiers(config, mover, tree, idle, misses, windows=windows)
    tiered = lower is not None
    leases = _leases(config, restore_cost, reload_cost, counters, tiered=tiered)
    retention = _retention(config, tree, idle, leases, counters, clock=clock)
    slots = _state_slots(config, tree, idle, retention, restore_cost=restore_cost, lower=lower)
    branches = KnownBranches(tree, retention, slots, windows)
    evictor = Evictor(
        tree=tree,
        pool=pool,
        idle=idle,
        branches=branches,
        retention=retention,
        misses=misses,
        lower=lower,
        reserve=config.reserve_blocks,
    )
    if windows is not None:
        windows.on_evict = evictor.take_down
    matcher = Matcher(tree, lowest=Tier.HOST if tiered else Tier.DEVICE)
    return Parts(
        counters=counters,
        pool=pool,
        tree=tree,
        misses=misses,
        tiers=TierUpkeep(tree, lower, branches, retention, evictor),
        retention=retention,
        branches=branches,
        evictor=evictor,
        matcher=matcher,
        sequences=RunningSequences(
            tree=tree,
            pool=pool,
            lower=lower,
            branches=branches,
            matcher=matcher,
            evictor=evictor,
            retention=retention,
            misses=misses,
        ),
        slots=slots,
        windows=windows,
    )


def _window_rows(config: CacheConfig, pool: BlockPool) -> WindowRows | None:
    """Rows of layers with a window, of which blocks of ``pool`` have or have not any."""
    if not config.window_blocks:
        return None
    windows = WindowRows(
        num_blocks=config.num_blocks,
        num_window_blocks=config.window_blocks,
        block_size=config.block_size,
        window=config.window_tokens,
        step_tokens=config.step_tokens,
    )
    pool.on_release = windows.freed
    return windows


def _retention(
    config: CacheConfig,
    tree: RadixTree,
    idle: IdleLeaves,
    leases: Leases,
    counters: Counters,
    *,
    clock: Callable[[], float],
) -> Retention:
    """The rule of who keeps what between sequences."""
    return Retention(
        tree,
        leases,
        counters,
        clock=clock,
        leasing=config.policy == "lease",
        shares=idle.shares,
        rescue_share=config.rescue_share,
        stateful=config.state_slots > 0,
    )


def _state_slots(
    config: CacheConfig,
    tree: RadixTree,
    idle: IdleLeaves,
    retention: Retention,
    *,
    restore_cost: Callable[[int], float] | None,
    lower: LowerTiers | None,
) -> StateSlots | None:
    """Slots for states of recurrent layers, and what is kept in them; None: the model has none."""
    if not config.state_slots:
        return None
    counts = SlotCounts(
        device=config.state_slots,
        host=config.host_states,
        disk=config.disk_states,
    )
    kept = KeptStates(tree, idle, retention, counts=counts, restore_cost=restore_cost, lower=lower)
    return StateSlots(tree, kept, most_running=config.running_slots or config.state_slots)


def _tree(
    config: CacheConfig,
    idle: IdleLeaves,
    hash_block: Callable[[TokenArray, int], int],
    clock: Callable[[], float],
) -> RadixTree:
    return RadixTree(
        config.block_size,
        seed=config.seed,
        on_idle_leaf=idle.offer,
        hash_block=hash_block,
        meter=ResidencyMeter(clock),
    )


def _tenant_shares(config: CacheConfig, clock: Callable[[], float]) -> TenantShares:
    usable = config.num_blocks - config.reserve_blocks
    return TenantShares(
        (usable, config.host_blocks, config.disk_blocks),
        clock=clock,
        slot_blocks=config.slot_blocks if config.state_slots else 0,
    )


def _lower_tiers(
    config: CacheConfig,
    mover: BlockMover | None,
    tree: RadixTree,
    idle: IdleLeaves,
    misses: MissAccount,
    *,
    windows: WindowRows | None,
) -> LowerTiers | None:
    """The tiers below the device, if there are any."""
    if not config.host_blocks:
        return None
    if mover is None:
        raise ValueError(
            f"{config.host_blocks} host and {config.disk_blocks} disk blocks, but no mover"
        )
    return LowerTiers(
        tree,
        mover,
        idle,
        misses,
        host_blocks=config.host_blocks,
        disk_blocks=config.disk_blocks,
        windows=windows,
        host_window_blocks=config.host_window_blocks,
    )


def _leases(
    config: CacheConfig,
    restore_cost: Callable[[int], float] | None,
    reload_cost: Callable[[int], float] | None,
    counters: Counters,
    *,
    tiered: bool,
) -> Leases:
    if tiered and restore_cost is not None and reload_cost is not None:
        restore_cost = RestoreCost(restore_cost, reload_cost, counters).seconds
    return Leases(
        cap_s=config.lease_cap_s,
        kappa=config.kappa,
        restore_cost=restore_cost,
        track_returns=tiered,
    )
