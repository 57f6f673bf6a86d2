"""What the cache is asked about a prompt that waits."""

from typing import Any

import numpy as np

from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from runtime.scheduling.prompt_lookup import PromptLookup
from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.requests import make_request
from tests.support.scheduler_bench import Bench


class _DiskCache(PrefixCache):
    """Of each prompt it finds so many tokens on disk, by orders that are carried out by hand."""

    def __init__(self, on_disk: int) -> None:
        super().__init__(CacheConfig(num_blocks=16, block_size=4), clock=lambda: 0.0)
        self.on_disk = on_disk
        self.carried_out = 0
        self.orders = 0

    def prefetch(self, **prompt: Any) -> int:
        self.orders += bool(self.on_disk)
        return self.on_disk

    @property
    def last_order(self) -> int:
        return self.orders

    def is_reading(self, last: int) -> bool:
        return self.carried_out < last

    def match_length(self, **prompt: Any) -> int:
        return self.on_disk if self.carried_out else 0


def _sequence() -> Sequence:
    request = make_request(base_branch_id="base", base_offset=8)
    return Sequence(request, TokenBuffer(np.arange(12, dtype=np.int32)), arrival_s=0.0, vouched=8)


def test_a_prompt_on_its_way_from_the_disk_is_looked_up_again_when_it_is_here() -> None:
    cache, sequence = _DiskCache(8), _sequence()
    prompts = PromptLookup(cache)
    prompts.fetch(sequence)
    prompts.estimate(sequence)
    assert prompts.is_read(sequence)
    assert sequence.uncached_estimate == 12
    cache.carried_out = cache.orders
    assert not prompts.is_read(sequence)
    assert sequence.uncached_estimate == 4


def test_who_has_nothing_on_disk_or_has_gone_awaits_nothing() -> None:
    nothing, sequence = PromptLookup(_DiskCache(0)), _sequence()
    nothing.fetch(sequence)
    assert not nothing.is_read(sequence)
    some = PromptLookup(_DiskCache(8))
    some.fetch(sequence)
    some.forget(sequence)
    assert not some.is_read(sequence)


def test_a_turn_that_gave_way_finds_its_own_blocks_again() -> None:
    bench = Bench(num_blocks=10)
    turns = [bench.add(6, limit=20, expected=0) for _ in range(3)]
    while not bench.preempted:
        bench.step()
    (gave_way,) = [t for t in turns if t.preemptions]
    prompts = PromptLookup(bench.cache)
    for turn in turns:
        if turn is not gave_way:
            bench.scheduler.queues.release(turn, lease_s=0.0)
    prompts.estimate(gave_way)
    assert gave_way.uncached_estimate < len(gave_way.buffer)
