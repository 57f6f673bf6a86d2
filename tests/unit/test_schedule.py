"""The plan of a step as data, and what it costs."""

import numpy as np

from runtime.estimates import StepWork
from runtime.messages import FinishReason
from runtime.schedule import NO_DRAFT, Chunk, StepPlan, step_work
from tests.support.scheduler_bench import Bench


def test_the_work_of_a_step_tells_decodes_from_prefill() -> None:
    bench = Bench(prefill_tokens_beside_decodes=16)
    decoding = bench.add(3, limit=9)
    bench.step()
    prompt = bench.add(24, limit=1)
    bench.step()
    chunks = [Chunk.of(decoding, 1), Chunk.of(prompt, 8)]
    assert decoding.num_computed == 4
    assert prompt.num_computed == 15
    assert step_work(chunks) == StepWork(
        prefill_tokens=8,
        prefill_pairs=8 * (15 + 4.0),
        prefill_chunks=1,
        decode_rows=1,
        decode_context=5,
    )
    decoding.finish = FinishReason.STOP
    assert step_work(chunks).prefill_chunks == 2, "a tail is no decode"


def test_a_chunk_samples_if_it_reaches_the_last_known_token_and_one_is_wanted() -> None:
    bench = Bench(max_batch_tokens=4)
    turn, silent = bench.add(10, limit=1), bench.add(10, limit=0)
    bench.scheduler.schedule(0.0)
    assert [Chunk.of(turn, n).samples for n in (9, 10)] == [False, True]
    assert not Chunk.of(silent, 10).samples


def test_a_plan_counts_the_tokens_of_drafts_beside_those_of_chunks() -> None:
    bench = Bench()
    turn = bench.add(5)
    step = StepPlan()
    assert step.num_tokens == 0
    step.chunks[turn] = Chunk(turn, 0, 5, True, np.ones(3, dtype=np.int32))
    step.draft_tokens += 3
    assert step.num_tokens == 8
    assert len(NO_DRAFT) == 0
