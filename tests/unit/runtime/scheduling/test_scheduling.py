"""The scheduler's small modules: the decode loop, and the drafts that a step has room for."""

import numpy as np
import pytest

from runtime.scheduling.decode_loop import Drafts
from runtime.scheduling.draft import Draft, DraftSource, share_budget
from tests.support.drafts import draft_of
from tests.support.scheduler_bench import Bench, tokens_of


def test_running_decodes_come_before_prefill_and_never_miss_a_step() -> None:
    bench = Bench(max_batch_tokens=16, prefill_tokens_beside_decodes=5)
    short = bench.add(3, limit=20)
    bench.step()
    bench.add(40, limit=1)
    for _ in range(8):
        tokens = tokens_of(bench.step())
        assert tokens == {"r1": 1, "r2": 5}
    assert short.num_emitted == 9


def test_a_draft_has_a_chunk_of_its_own_as_far_as_there_are_blocks() -> None:
    bench = Bench(num_blocks=20)
    one, two, _ = (bench.add(3, limit=20) for _ in range(3))
    bench.step()
    drafts: Drafts = {one: draft_of([7, 8]), two: draft_of(range(100), forced=[0])}
    schedule = bench.scheduler.schedule(bench.now, drafts)
    assert [s.request.request_id for s in schedule.decodes.sequences] == ["r2", "r3"]
    (chunk,) = schedule.others
    assert (chunk.sequence, chunk.num_drafted, chunk.forced) == (one, 2, ())
    assert tokens_of(schedule) == {"r1": 1, "r2": 1, "r3": 1}, "besides their drafts"


def test_a_chunk_knows_what_of_its_draft_is_forced() -> None:
    bench = Bench()
    turn = bench.add(3, limit=20)
    bench.step()
    draft = draft_of(range(4), forced=[1, 2])
    (chunk,) = bench.scheduler.schedule(bench.now, {turn: draft}).others
    assert chunk.draft is draft
    assert chunk.row_offsets() == (0, 3, 4)


def chain(*survival: float) -> Draft:
    tokens = np.arange(len(survival), dtype=np.int32)
    return Draft(tokens=tokens, sources=(DraftSource.SESSION,) * len(survival), survival=survival)


@pytest.mark.parametrize(
    ("budget", "shares"),
    [
        (9, {"a": 3, "b": 2, "c": 3}),
        (8, {"a": 3, "b": 2, "c": 3}),
        (5, {"a": 2, "c": 3}),
        (4, {"a": 1, "c": 3}),
        (2, {"a": 1, "c": 1}),
        (0, {}),
    ],
)
def test_a_step_takes_the_draft_tokens_most_likely_to_be_right(
    budget: int, shares: dict[str, int]
) -> None:
    drafts = {"a": chain(0.9, 0.6, 0.3), "b": chain(0.4, 0.4), "c": chain(0.9, 0.8, 0.8)}
    taken = share_budget(drafts, budget)
    assert {name: len(draft.tokens) for name, draft in taken.items()} == shares
    for name, draft in taken.items():
        count = len(draft.tokens)
        assert draft.tokens.tolist() == drafts[name].tokens[:count].tolist()
        assert draft.survival == drafts[name].survival[:count]


def test_a_draft_knows_which_of_its_tokens_are_forced() -> None:
    forced, copied = DraftSource.FORCED, DraftSource.SESSION
    draft = Draft(
        tokens=np.array([1, 2, 3, 4], dtype=np.int32),
        sources=(copied, forced, copied, forced),
        survival=(0.9, 0.9, 0.8, 0.8),
    )
    assert draft.forced == draft.cut(4).forced == (1, 3)
    assert draft.cut(3).forced == (1,)
