"""The plan of a step as data, and what it costs."""

from runtime.messages import FinishReason
from runtime.scheduling.costs import StepWork
from runtime.scheduling.step_plan import Chunk, step_work
from tests.support.scheduler_bench import Bench, tokens_of


def test_the_work_of_a_step_tells_decodes_from_prefill() -> None:
    bench = Bench(prefill_tokens_beside_decodes=16)
    decoding = bench.add(3, limit=9)
    bench.step()
    prompt = bench.add(24, limit=1)
    bench.step()
    chunks = [Chunk.of(decoding, 1), Chunk.of(prompt, 8)]
    assert decoding.num_computed == 4
    assert prompt.num_computed == 16
    assert step_work(chunks) == StepWork(
        prefill_tokens=8,
        prefill_pairs=8 * (16 + 4.0),
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


def test_decodes_are_told_as_arrays_and_one_by_one() -> None:
    bench = Bench(prefill_tokens_beside_decodes=16)
    for prompt in (3, 5):
        bench.add(prompt, limit=9)
    bench.step()
    bench.add(8, limit=1)
    schedule = bench.scheduler.schedule(bench.now)
    decodes = schedule.decodes
    assert [s.request.request_id for s in decodes.sequences] == ["r1", "r2"]
    assert (decodes.starts.tolist(), decodes.ends.tolist()) == ([3, 5], [4, 6])
    assert [(c.start, c.num_tokens, c.samples) for c in decodes.chunks()] == [
        (3, 1, True),
        (5, 1, True),
    ]
    assert tokens_of(schedule) == {"r1": 1, "r2": 1, "r3": 8}
    assert [c.sequence.request.request_id for c in schedule.others] == ["r3"]
