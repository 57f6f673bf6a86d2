"""Which sequences wait, run, decode and are paused, and every way from one to the other.

Knows the cache's claims and the accounts of tenants, which open and close with sequences. Knows
no order, no step and no reason why a sequence moves.

Always true between calls of the scheduler: a sequence holds a ``CachedSequence`` exactly while it
is RUNNING or FLUSHING; decoding and paused sequences are among the running ones.
"""

import math
from collections import Counter
from typing import Final

from radix_cache.cache import CachedSequence, PrefixCache
from radix_cache.snapshots import SnapshotKind
from runtime.scheduling.decoders import Decoders
from runtime.scheduling.policy import ServiceAccount
from runtime.scheduling.prompt_lookup import PromptLookup
from runtime.scheduling.sequence import Sequence, SequenceState
from tools_api.limits import takes_one_more

INTERVAL_TOKENS: Final = 8192
"""Of a prompt so long that so many of it are computed, the state is kept at each multiple."""
_EXACT_CUT: Final = 64
"""``kernels.gated_delta.CHUNK``: a prompt cut at a multiple has the state of a whole one."""
_REMEMBERED_BRANCHES = 1 << 15


class Queues:
    """The sequences of one scheduler."""

    def __init__(self, cache: PrefixCache, prompts: PromptLookup, service: ServiceAccount) -> None:
        self._cache = cache
        self._prompts = prompts
        self._service = service
        self.waiting: list[Sequence] = []
        self._waiting_of: Counter[str] = Counter()
        self.running: list[Sequence] = []
        """Admitted ones, flushing ones included, oldest admission first."""
        self.decoders = Decoders(cache.block_size)
        """The running ones that decode."""
        self.paused: dict[Sequence, None] = {}
        """The running ones that have no slot at the moment."""
        self._branch_starts: dict[str, float] = {}

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def takes_one_more(self, tenant: str, limit: int) -> bool:
        """Whether another sequence of ``tenant`` may wait where ``limit`` do."""
        return takes_one_more(
            limit,
            total=len(self.waiting),
            held=self._waiting_of[tenant],
            tenants=self._service.num_tenants_with(tenant),
        )

    @property
    def num_tenants(self) -> int:
        """How many tenants have sequences here."""
        return self._service.num_tenants

    def above_share(self, tenant: str, more_blocks: int = 0) -> bool:
        """Whether a tenant claims more blocks than there are for each tenant that has sequences
        here, if it had so many more."""
        share = self._cache.usable_blocks // max(1, self.num_tenants)
        return self._cache.claimed_blocks(tenant) + more_blocks > share

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; from here the scheduler decides when it runs."""
        request = sequence.request
        starts = self._branch_starts
        start = sequence.arrival_s
        if request.base_branch_id is not None:
            start = starts.get(request.base_branch_id, start)
        sequence.branch_start_s = start
        starts.pop(request.branch_id, None)
        starts[request.branch_id] = start
        if len(starts) > _REMEMBERED_BRANCHES:
            del starts[next(iter(starts))]
        self._cache.set_queued(request.branch_id, True)
        self._prompts.fetch(sequence)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._prompts.estimate(sequence)
        self._service.request_opened(sequence.request.tenant)
        self._cache.tenant_waits(sequence.request.tenant)
        self.waiting.append(sequence)
        self._waiting_of[sequence.request.tenant] += 1

    def _waits_no_more(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        tenant = sequence.request.tenant
        self._waiting_of[tenant] -= 1
        if not self._waiting_of[tenant]:
            del self._waiting_of[tenant]

    def withdraw(self, sequence: Sequence) -> None:
        """Forget a sequence that was never admitted or is waiting again."""
        self._waits_no_more(sequence)
        self._prompts.forget(sequence)
        self._service.request_closed(sequence.request.tenant)
        self._cache.set_queued(sequence.request.branch_id, False)
        sequence.state = SequenceState.DONE

    def admit(self, sequence: Sequence, cached: CachedSequence) -> None:
        """A waiting sequence runs from now on, with the blocks of ``cached``."""
        sequence.cached = cached
        sequence.num_computed = cached.num_cached_tokens
        sequence.cuts = self._cuts(sequence, cached)
        self._cache.keep_rows(cached, sequence.request.resume_points)
        sequence.block_limit = cached.num_blocks * self._cache.block_size
        sequence.state = SequenceState.RUNNING
        self._waits_no_more(sequence)
        self.running.append(sequence)

    def pause(self, sequence: Sequence) -> None:
        """A running sequence loses its slot and keeps its blocks."""
        self.paused[sequence] = None
        self.decoders.discard(sequence)

    def resume(self, sequence: Sequence) -> None:
        """A paused sequence has a slot again."""
        del self.paused[sequence]

    def flush(self, sequence: Sequence) -> None:
        """A running sequence has ended for the client: the next step writes its tail, and then it
        is to be released."""
        sequence.state = SequenceState.FLUSHING
        self.paused.pop(sequence, None)
        self.decoders.discard(sequence)

    def release(
        self,
        sequence: Sequence,
        *,
        lease_s: float | None,
        answered: bool = False,
        kept: SnapshotKind | None = SnapshotKind.END,
    ) -> None:
        """Let a running sequence go: its blocks stay in the tree, evictable or leased.

        Whole blocks with KV were published before; the partial last one returns to the pool. With
        recurrent layers the state is ``kept`` as such; None: it is not.
        """
        assert sequence.cached is not None
        state_of = None
        if kept is not None and sequence.cached.state_slot >= 0:
            state_of = sequence.buffer.view()[: sequence.num_computed]
        self._cache.finish(
            sequence.cached,
            lease_s=lease_s,
            answered=answered,
            state_of=state_of,
            kind=kept or SnapshotKind.END,
        )
        sequence.cached = None
        sequence.state = SequenceState.DONE
        self.running.remove(sequence)
        self.paused.pop(sequence, None)
        self.decoders.discard(sequence)
        self._service.request_closed(sequence.request.tenant)

    def preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence for others; it waits again and is recomputed,
        unless it had only its tail left to write."""
        self.release(sequence, lease_s=0.0, kept=SnapshotKind.PAUSE)
        if sequence.finish is not None:
            return
        sequence.reusable = sequence.num_computed
        sequence.num_computed = 0
        sequence.preemptions += 1
        self._wait(sequence)  # not as queued: others are to have its blocks

    def _cuts(self, sequence: Sequence, cached: CachedSequence) -> dict[int, SnapshotKind]:
        """Where chunks of a prompt end so that the state there can be kept, ascending."""
        if cached.state_slot < 0:
            return {}
        begun = cached.num_cached_tokens
        cuts = dict.fromkeys(sequence.request.resume_points, SnapshotKind.HEADER)
        if cached.junction is not None:
            cuts.setdefault(cached.junction, SnapshotKind.JUNCTION)
        step, length = interval(self._cache.block_size), len(sequence.buffer)
        if self._cache.keeps_intervals and length - begun > step:
            for point in range(step, length, step):
                cuts.setdefault(point, SnapshotKind.INTERVAL)
        return {point: cuts[point] for point in sorted(cuts) if point > begun}


def interval(block_size: int) -> int:
    """Tokens between states of a long prompt: blocks end there, and chunks of layers with matrices
    may be cut there without another rounding."""
    least = math.lcm(block_size, _EXACT_CUT)
    return -(-INTERVAL_TOKENS // least) * least
