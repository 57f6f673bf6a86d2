"""A scheduler over the real cache whose steps are played by hand, without a model."""

import numpy as np

from runtime.config import EngineConfig
from runtime.messages import FinishReason
from runtime.scheduling.block_allocation import BlockAllocator
from runtime.scheduling.costs import CostProfile, StepCosts
from runtime.scheduling.decode_loop import DecodeLoop
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import Sequence, SequenceState, TokenBuffer
from runtime.scheduling.step_plan import Schedule
from tests.support.caches import make_cache
from tests.support.requests import make_request


def tokens_of(schedule: Schedule) -> dict[str, int]:
    """Tokens of each chunk, by the name of its request."""
    return {c.sequence.request.request_id: c.num_tokens for c in schedule.chunks}


class Bench:
    """Computed chunks advance, and a sequence whose chunk samples gets the next token of a
    fixed series. The clock moves by 10 ms a step."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        debug: bool = True,
        profile: CostProfile | None = None,
        **settings: object,
    ) -> None:
        self.now = 0.0
        config = EngineConfig(num_blocks=num_blocks, block_size=4, **settings)  # type: ignore[arg-type]
        self.cache = make_cache(
            num_blocks, clock=lambda: self.now, policy=config.cache_policy, debug=debug
        )
        self.costs = StepCosts(profile)
        self.scheduler = Scheduler(self.cache, config, self.costs)
        self.done: list[Sequence] = []
        self.preempted = 0
        self.count = 0

    def add(
        self,
        prompt: int | list[int],
        *,
        limit: int = 4,
        tenant: str = "t",
        expected: int | None = None,
        session: str | None = None,
        base: Sequence | None = None,
        **more: object,
    ) -> Sequence:
        """Queue a turn. ``prompt`` is its tokens, or how many of its own; behind those of
        ``base``, a turn that is over."""
        self.count += 1
        first = 1000 * self.count
        tokens = list(range(first, first + prompt)) if isinstance(prompt, int) else prompt
        before = base.buffer.view().tolist() if base is not None else []
        request = make_request(
            tokens,
            request_id=f"r{self.count}",
            branch_id=session or f"s{self.count}",
            tenant=tenant,
            base_branch_id=base.request.branch_id if base is not None else None,
            base_offset=len(before),
            max_new_tokens=limit,
            **more,
        )
        buffer = TokenBuffer(np.array(before + tokens, dtype=np.int32))
        vouched = 0 if base is None else base.num_computed
        sequence = Sequence(request, buffer, arrival_s=self.now, vouched=vouched)
        sequence.expected_output = limit if expected is None else expected
        self.scheduler.queues.add(sequence)
        return sequence

    def decode_loop(self) -> DecodeLoop:
        """One more beside the scheduler's own, to count what decodes."""
        queues = self.scheduler.queues
        allocator = BlockAllocator(self.cache, queues)
        return DecodeLoop(costs=self.costs, allocator=allocator, queues=queues)

    def step(self, *, lease_s: float = 0.0, flush: bool = False) -> Schedule:
        """Plan and play one step. Turns that reach their limit end, with that lease; with
        ``flush`` they write their tail first where that fills a block."""
        schedule = self.scheduler.schedule(self.now)
        self.now += 0.01
        self.preempted += schedule.preempted
        goes_on = [s.remaining > 1 for s in schedule.decodes.sequences]
        together = schedule.decodes.only([n for n, more in enumerate(goes_on) if more])
        last = schedule.decodes.only([n for n, more in enumerate(goes_on) if not more])
        self.scheduler.decoded(together, np.full(len(together), 7, dtype=np.int32))
        for chunk in [*last.chunks(), *schedule.others]:
            sequence = chunk.sequence
            self.scheduler.advance(chunk)
            if sequence.state is SequenceState.FLUSHING:
                self.scheduler.queues.release(sequence, lease_s=lease_s)
                continue
            if not chunk.samples:
                continue
            sequence.buffer.append(7)
            if sequence.remaining > 0:
                continue
            self.done.append(sequence)
            sequence.final_length = len(sequence.buffer)
            if flush and self.scheduler.wants_flush(sequence):
                sequence.finish = FinishReason.STOP
                self.scheduler.queues.flush(sequence)
            else:
                self.scheduler.queues.release(sequence, lease_s=lease_s)
        return schedule

    def run(self, steps: int = 5000) -> None:
        """Step until nothing is left to do."""
        for _ in range(steps):
            if not self.scheduler.queues.has_work:
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")
