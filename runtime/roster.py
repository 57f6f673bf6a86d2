"""Which turns wait, run, decode and are paused, and every way from one to the other.

Knows the cache's claims and the accounts of tenants, which open and close with turns. Knows
no order, no step and no reason why a turn moves.

Always true between calls of the scheduler: a turn holds a ``CachedSequence`` exactly while it
is RUNNING or FLUSHING; decoding and paused turns are among the running ones.
"""

from radix_cache.cache import CachedSequence, PrefixCache
from runtime.decoders import Decoders
from runtime.policy import ServiceAccount
from runtime.prompt_lookup import PromptLookup
from runtime.sequence import Sequence, SequenceState

_REMEMBERED_SESSIONS = 1 << 15


class Roster:
    """The turns of one scheduler."""

    def __init__(self, cache: PrefixCache, prompts: PromptLookup, service: ServiceAccount) -> None:
        self._cache = cache
        self._prompts = prompts
        self._service = service
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        """Admitted ones, flushing ones included, oldest admission first."""
        self.decoders = Decoders(cache.block_size)
        """The running ones that decode."""
        self.paused: dict[Sequence, None] = {}
        """The running ones that have no place at the moment."""
        self._session_starts: dict[str, float] = {}

    def add(self, sequence: Sequence) -> None:
        """Queue a new turn."""
        request = sequence.request
        starts = self._session_starts
        start = sequence.arrival_s
        if request.base_session_id is not None:
            start = starts.get(request.base_session_id, start)
        sequence.session_start_s = start
        starts.pop(request.session_id, None)
        starts[request.session_id] = start
        if len(starts) > _REMEMBERED_SESSIONS:
            del starts[next(iter(starts))]
        self._cache.set_queued(request.session_id, True)
        self._prompts.fetch(sequence)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._prompts.estimate(sequence)
        self._service.turn_opened(sequence.request.tenant)
        self.waiting.append(sequence)

    def drop_waiting(self, sequence: Sequence) -> None:
        """Forget a turn that was never admitted or is waiting again."""
        self.waiting.remove(sequence)
        self._prompts.forget(sequence)
        self._service.turn_closed(sequence.request.tenant)
        self._cache.set_queued(sequence.request.session_id, False)
        sequence.state = SequenceState.DONE

    def admit(self, sequence: Sequence, cached: CachedSequence) -> None:
        """A waiting turn runs from now on, with the blocks of ``cached``."""
        sequence.cached = cached
        sequence.num_computed = cached.num_cached_tokens
        sequence.block_limit = cached.num_blocks * self._cache.block_size
        sequence.state = SequenceState.RUNNING
        self.waiting.remove(sequence)
        self.running.append(sequence)

    def pause(self, sequence: Sequence) -> None:
        """A running turn loses its place and keeps its blocks."""
        self.paused[sequence] = None
        self.decoders.discard(sequence)

    def resume(self, sequence: Sequence) -> None:
        """A paused turn has a place again."""
        del self.paused[sequence]

    def flush(self, sequence: Sequence) -> None:
        """A running turn has ended for the client; its tail is still to be written."""
        sequence.state = SequenceState.FLUSHING
        self.paused.pop(sequence, None)
        self.decoders.discard(sequence)

    def end(self, sequence: Sequence, *, lease_s: float | None, answered: bool = False) -> None:
        """Let a running turn go: its blocks stay in the tree, evictable or leased."""
        assert sequence.cached is not None
        self._cache.finish(sequence.cached, lease_s=lease_s, answered=answered)
        sequence.cached = None
        sequence.state = SequenceState.DONE
        self.running.remove(sequence)
        self.paused.pop(sequence, None)
        self.decoders.discard(sequence)
        self._service.turn_closed(sequence.request.tenant)

    def give_way(self, sequence: Sequence) -> None:
        """Let a running turn go for others to have its blocks; it waits again, unless it had
        only its tail left to write."""
        self.end(sequence, lease_s=0.0)
        if sequence.finish is not None:
            return
        sequence.reusable = sequence.num_computed
        sequence.num_computed = 0
        sequence.preemptions += 1
        self._wait(sequence)  # not as queued: others are to have its blocks
