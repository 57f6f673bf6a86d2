"""What sequences that decode read together."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.scheduling.shared_context import SharedContext, without_shared
from runtime.scheduling.step_plan import StepPlan, step_work
from tests.support.scheduler_bench import Bench

SIZE = 16


class _InBlocks:
    """Of a sequence, what is asked for here."""

    def __init__(self, blocks: list[int]) -> None:
        self.cached: Any = SimpleNamespace(block_table=np.array(blocks, dtype=np.int32))


def sequence(*blocks: int) -> Any:
    return _InBlocks(list(blocks))


def test_what_two_begin_with_is_read_once() -> None:
    shared = SharedContext(SIZE)
    shared.add(sequence(7, 8, 9, 20))
    assert shared.tokens == 0
    shared.add(sequence(7, 8, 9, 30, 31))
    assert shared.tokens == 3 * SIZE
    shared.add(sequence(7, 8, 40))
    assert shared.tokens == 5 * SIZE
    shared.add(sequence(50, 8, 9))
    assert shared.tokens == 5 * SIZE, "the same block at another place is another context"


def test_others_go_on_sharing_when_the_first_one_has_ended() -> None:
    shared, first = SharedContext(SIZE), sequence(1, 2, 3, 4)
    shared.add(first)
    for last in (5, 6):
        shared.add(sequence(1, 2, last))
    assert shared.tokens == 4 * SIZE
    shared.discard(first)
    assert shared.tokens == 2 * SIZE
    shared.discard(first)
    assert shared.tokens == 2 * SIZE


def test_a_sequence_without_blocks_shares_nothing() -> None:
    shared, bare = SharedContext(SIZE), sequence()
    shared.add(bare)
    bare.cached = None
    shared.add(bare)
    shared.discard(bare)
    assert shared.tokens == 0


@pytest.mark.parametrize("seed", range(20))
def test_all_is_as_before_when_all_have_ended(seed: int) -> None:
    """And while they last it is what one read of all common parts saves: the parts here lie within
    each other, so that is all of them but the longest."""
    rng = random.Random(seed)
    shared, there = SharedContext(SIZE), {}
    for step in range(300):
        if there and rng.random() < 0.45:
            gone = rng.choice(list(there))
            shared.discard(gone)
            del there[gone]
        else:
            family, common = rng.randrange(3), rng.randrange(1, 9)
            own = [1_000 + 10 * step + n for n in range(rng.randrange(3))]
            made = sequence(*(100 * (family + 1) + n for n in range(common)), *own)
            shared.add(made)
            there[made] = (family, common)
        total = sum(SIZE * common for _, common in there.values())
        assert 0 <= shared.tokens <= total
        if len({family for family, _ in there.values()}) == len(there):
            assert shared.tokens == 0
    for made in list(there):
        shared.discard(made)
    assert shared.tokens == 0


@pytest.mark.parametrize(
    ("context", "rows", "shared", "read"),
    [
        (800, 8, 0, 800),
        (800, 8, 300, 500),
        (800, 8, 700, 100),
        (800, 8, 5_000, 100),
        (800, 1, 5_000, 800),
        (0, 0, 5_000, 0),
    ],
)
def test_one_reads_its_own_at_least(context: int, rows: int, shared: int, read: int) -> None:
    assert without_shared(context, rows, shared) == read


def test_decodes_with_a_prompt_in_common_cost_what_they_read() -> None:
    """Blocks of four: two begin with the same 40 tokens, the third with others."""
    bench, common = Bench(), list(range(40))
    first = bench.add([*common, 50, 51], limit=20)
    bench.step()
    others = [bench.add([*common, 60], limit=20), bench.add([*range(100, 130)], limit=20)]
    for _ in range(4):
        schedule = bench.step()
    decoders = bench.scheduler.queues.decoders
    assert set(decoders.sequences) == {first, *others}
    assert decoders.shared_tokens == 40
    context = sum(len(s.buffer) for s in decoders.sequences)
    work = step_work(bench.scheduler.schedule(bench.now).chunks, shared=decoders.shared_tokens)
    assert work.decode_context == context - 40
    assert len(schedule.chunks) == 3
    plan, planned = StepPlan(), bench.decode_loop()
    planned.count(plan)
    assert (plan.decode_rows, plan.decode_context) == (3, context - 40)
    plan.exhausted.append(others[0])
    planned.count(plan)
    assert plan.decode_context == context - len(others[0].buffer) - 40
    bench.run()
    assert decoders.shared_tokens == 0
