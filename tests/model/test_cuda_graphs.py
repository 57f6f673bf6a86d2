"""Recorded steps: padded, on fixed buffers, and not to be told from the plain ones.

On a CPU "recording" is calling: what is tested is the choice, the padding and the buffers.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.config import AdapterSource
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.cuda_graphs import CudaRecorder, GraphCounts
from runtime.model.presets import random_model_config
from runtime.model.runner import ModelRunner, Recording
from runtime.model.weights import load_model
from tests.support.adapters import adaptable_maps, write_adapter
from tests.support.streams import MAIN, Timeline

CPU = torch.device("cpu")
FAMILIES = ["qwen3-tiny", "llama-tiny", "mistral-tiny"]
NUM_BLOCKS = 48


class CallingRecorder:
    """Records nothing: calls. Counts how often it was asked."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        return call


def runners(
    family: str, most: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[ModelRunner, ModelRunner, CallingRecorder]:
    """One that records and one that does not, over equal pools of poison."""
    record = CallingRecorder()
    model = load_model(f"random:{family}", dtype=dtype, device=CPU)
    recording = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(record=record, max_sequences=most),
    )
    plain = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    for group in (*recording.pool.groups, *plain.pool.groups):
        group.fill_(torch.nan)
    return recording, plain, record


def decode(lengths: list[int], rng: np.random.Generator, logits: int = 1) -> list[SequenceInput]:
    """The next token of sequences of ``lengths`` tokens, five blocks each."""
    return [
        SequenceInput(
            tokens=rng.integers(0, 256, 1, dtype=np.int32),
            start=length,
            block_table=np.arange(index * 5, index * 5 + 5, dtype=np.int32),
            num_logits=logits,
        )
        for index, length in enumerate(lengths)
    ]


def prefill(lengths: list[int], rng: np.random.Generator) -> list[SequenceInput]:
    return [
        replace(part, tokens=rng.integers(0, 256, length, dtype=np.int32), start=0)
        for part, length in zip(decode(lengths, rng), lengths, strict=True)
    ]


def counted(runner: ModelRunner) -> GraphCounts:
    assert runner.graphs is not None
    return runner.graphs.counts


def replayed(runner: ModelRunner) -> int:
    """Forward passes that ran as recorded, with and without a chunk."""
    return counted(runner).replayed + counted(runner).replayed_chunks


@pytest.mark.samples(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sequences", [2, 3, 5, 8])
def test_a_padded_step_gives_the_plain_steps_logits_and_kv(family: str, sequences: int) -> None:
    """Bit for bit with as many rows; a library may sum up other numbers of rows otherwise, so
    padding itself is held to the last few bits."""
    recording, plain, record = runners(family)
    made = record.recorded
    rng = np.random.default_rng(sequences)
    lengths = rng.integers(1, 70, sequences).tolist()
    for runner in (recording, plain):
        runner.run(prefill(lengths, np.random.default_rng(sequences)))
    for _ in range(4):
        step = decode(lengths, rng)
        found, expected = recording.run(step), plain.run(step)
        assert found.shape == expected.shape
        if sequences & (sequences - 1):
            assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        else:
            assert torch.equal(found, expected)
        lengths = [length + 1 for length in lengths]
    own = recording.pool.blocks[:, :, :NUM_BLOCKS]
    same = torch.isclose(own, plain.pool.blocks, rtol=0, atol=1e-12, equal_nan=True)
    assert same.all()
    assert replayed(recording) >= 4
    assert record.recorded == made
    assert recording.num_blocks == NUM_BLOCKS


@pytest.mark.samples(15)
@pytest.mark.parametrize(
    "family", [*FAMILIES, "qwen3-moe-tiny", "gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny"]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("counts", [(3, 1, 2), (1, 17), (5,), (40, 1), (16, 1, 1), (1, 100)])
def test_steps_of_drafts_and_chunks_are_the_plain_ones(
    family: str, dtype: torch.dtype, counts: tuple[int, ...]
) -> None:
    recording, plain, _ = runners(family, dtype=dtype)
    rng = np.random.default_rng(4)
    lengths = [7, 30, 12][: len(counts)]
    step = [
        SequenceInput(
            tokens=rng.integers(0, 256, count, dtype=np.int32),
            start=length,
            block_table=np.arange(at * 16, at * 16 + 16, dtype=np.int32),
            num_logits=count if count < 20 else 1,
        )
        for at, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    for runner in (recording, plain):
        tokens = np.random.default_rng(4).integers(0, 256, 30, dtype=np.int32)
        runner.run(
            [replace(part, tokens=tokens[: part.start], start=0, num_logits=0) for part in step]
        )
    before = replayed(recording)
    found = recording.run(step).clone()
    close = 1e-11 if dtype == torch.float64 else 1e-4
    assert torch.allclose(found, plain.run(step), rtol=close, atol=close)
    assert replayed(recording) == before + 1


@pytest.mark.samples(5)
@pytest.mark.parametrize(
    "family", [*FAMILIES, "qwen3-moe-tiny", "gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny"]
)
@pytest.mark.parametrize("counts", [(257,), (700, 1, 1), (300, 200, 9, 1), (1024,)])
def test_steps_of_large_chunks_are_the_plain_ones(family: str, counts: tuple[int, ...]) -> None:
    """Logits and all that was written, the step before padded otherwise than this one."""
    model = load_model(f"random:{family}", dtype=torch.float64, device=CPU)
    plain = ModelRunner(model, num_blocks=160, block_size=16)
    recording = ModelRunner(
        model,
        num_blocks=160,
        block_size=16,
        recording=Recording(record=CallingRecorder(), max_sequences=8, max_tokens=1024),
    )
    assert recording.graphs is not None
    assert max(bucket.chunk for bucket in recording.graphs.steps) == 1024
    rng = np.random.default_rng(len(counts))
    firsts = np.cumsum([0, *(count // 16 + 4 for count in counts)])
    tables = [np.arange(at, end, dtype=np.int32) for at, end in itertools.pairwise(firsts)]
    for group in (*recording.pool.groups, *plain.pool.groups):
        group.fill_(torch.nan)
    for start, of_step in ((0, [20] * len(counts)), (20, list(counts))):
        step = [
            SequenceInput(
                tokens=rng.integers(0, 256, count, dtype=np.int32),
                start=start,
                block_table=table,
                num_logits=1,
            )
            for count, table in zip(of_step, tables, strict=True)
        ]
        found, expected = recording.run(step), plain.run(step)
        assert torch.allclose(found, expected, rtol=1e-11, atol=1e-11)
    for group, other in zip(recording.pool.groups, plain.pool.groups, strict=True):
        assert torch.isclose(group[:, :, :160], other, rtol=0, atol=1e-11, equal_nan=True).all()
    assert (counted(recording).replayed_chunks, counted(recording).eager_chunks) == (1, 0)


@pytest.mark.parametrize("family", ["gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny"])
@pytest.mark.samples(1)
def test_recorded_steps_of_rows_that_are_given_back_are_the_plain_ones(family: str) -> None:
    """Prompts, drafts and decodes of three sequences of very different lengths, each in a ring of
    window blocks; the plain steps have all rows."""
    model = load_model(f"random:{family}", dtype=torch.float64, device=CPU)
    plain = ModelRunner(model, num_blocks=96, block_size=4)
    recording = ModelRunner(
        model,
        num_blocks=96,
        block_size=4,
        recording=Recording(record=CallingRecorder(), max_sequences=4),
        window_blocks=66,
    )
    for group in (*recording.pool.groups, *plain.pool.groups):
        group.fill_(torch.nan)
    window = model.config.window
    assert window is not None
    rng, lengths = np.random.default_rng(0), [0, 0, 0]
    for counts in ((40, 3, 9), (33, 1, 1), (1, 1, 1), (5, 2, 1), (1, 6, 1), (1, 1, 1)):
        step = []
        for at, count in enumerate(counts):
            start, end = lengths[at], lengths[at] + count
            first = max(0, start - window) // 4
            ring = np.arange(first, -(-end // 4), dtype=np.int32) % 22 + 22 * at
            step.append(
                SequenceInput(
                    tokens=rng.integers(0, 256, count, dtype=np.int32),
                    start=start,
                    block_table=np.arange(32 * at, 32 * at + 32, dtype=np.int32),
                    num_logits=count,
                    window=(first, ring),
                )
            )
            lengths[at] = end
        found = recording.run(step).clone()
        expected = plain.run([replace(entry, window=None) for entry in step])
        assert torch.allclose(found, expected, rtol=1e-11, atol=1e-11)
    assert replayed(recording) >= 4
    with pytest.raises(ValueError, match="a step without window blocks"):
        recording.run_as_it_comes(
            StepBatch.build([replace(entry, window=None) for entry in step], 4), None
        )


def test_float32_steps_whose_kernels_read_the_buffers_agree_as_well() -> None:
    recording, plain, _ = runners("qwen3-tiny", dtype=torch.float32)
    rng = np.random.default_rng(0)
    lengths = [40, 3, 66, 17, 20, 9]
    for runner in (recording, plain):
        runner.run(prefill(lengths, np.random.default_rng(0)))
    for count in (6, 5, 6, 6):
        step = decode(lengths[:count], rng)
        assert torch.allclose(recording.run(step), plain.run(step), rtol=1e-4, atol=1e-4)
        lengths[:count] = [length + 1 for length in lengths[:count]]
    assert replayed(recording) >= 4


def test_padding_is_the_same_whatever_stood_in_the_bucket_before() -> None:
    recording, _, _ = runners("qwen3-tiny")
    rng = np.random.default_rng(0)
    lengths = [40, 3, 66, 17, 20, 9]
    recording.run(prefill(lengths, rng))
    three = decode(lengths[:3], rng)
    alone = recording.run(three).clone()
    recording.run(decode([61, 5, 40, 2], rng)[:4])
    recording.run(prefill(lengths, np.random.default_rng(0)))
    assert torch.equal(recording.run(three), alone)


def test_all_is_recorded_before_the_first_step_and_nothing_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever watches a server start sees how far that is."""
    caplog.set_level("INFO")
    record = CallingRecorder()
    model = load_model("random:qwen3-tiny", dtype=torch.float64, device=CPU)
    runner = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(record=record, max_sequences=4),
    )
    assert runner.graphs is not None
    made = record.recorded
    assert made == runner.graphs.num_graphs
    told = [line for line in caplog.messages if line.startswith("steps recorded")]
    assert 3 <= len(told) <= 5
    assert told[-1] == f"steps recorded={made} of={made}"
    runner.pool.blocks.fill_(torch.nan)
    lengths = [5, 20, 3, 40, 33]
    runner.run(prefill(lengths, np.random.default_rng(1)))
    runner.run(decode(lengths, np.random.default_rng(1)))
    assert record.recorded == made
    counts = counted(runner)
    assert counts.eager == counts.eager_chunks == 1  # more sequences than are recorded
    runner.run(decode(lengths[:3], np.random.default_rng(1)))
    assert replayed(runner) == 1


class FailingRecorder:
    """Raises when the recordings of ``at`` are made, or replayed."""

    def __init__(self, at: set[int], *, replays: bool) -> None:
        self._at, self._replays, self._made = at, replays, 0

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self._made += 1
        if self._made not in self._at:
            return call
        if not self._replays:
            raise RuntimeError("operation not permitted when stream is capturing")

        def fails() -> Tensor:
            raise RuntimeError("CUDA error: the replay")

        return fails


@pytest.mark.parametrize("replays", [False, True])
def test_a_recording_that_fails_costs_speed_and_no_turn(
    replays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model("random:qwen3-tiny", dtype=torch.float64, device=CPU)
    recording = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(
            record=FailingRecorder(set(range(1, 100)), replays=replays), max_sequences=4
        ),
    )
    plain = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    for group in (*recording.pool.groups, *plain.pool.groups):
        group.fill_(torch.nan)
    assert recording.graphs is not None
    made = recording.graphs.num_graphs
    step = prefill([9, 30], np.random.default_rng(2))
    assert torch.equal(recording.run(step), plain.run(step))
    for length in range(made):
        step = decode([9 + length, 30 + length], np.random.default_rng(length))
        assert torch.equal(recording.run(step), plain.run(step))
    counts = counted(recording)
    assert counts.replayed == 0
    traced = [entry for entry in caplog.records if entry.exc_info]
    if replays:
        assert counts.failed == len(traced) == made - recording.graphs.num_graphs > 0
    else:
        assert (made, len(traced)) == (0, 1)
        assert counts.failed > 1


def test_recorded_steps_with_adapters_are_the_plain_ones(tmp_path: Path) -> None:
    """Of any mix of adapters and none, in the same recordings."""
    maps = adaptable_maps(random_model_config("qwen3-tiny"))
    folder = write_adapter(tmp_path / "red", maps, seed=0)
    source = AdapterSource(name="red", folder=str(folder))
    model = load_model("random:qwen3-tiny", dtype=torch.float64, device=CPU, adapters=[source])
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": 16}
    recording = ModelRunner(
        model, **sizes, recording=Recording(record=CallingRecorder(), max_sequences=8)
    )
    plain = ModelRunner(model, **sizes)
    step = decode([0, 0], np.random.default_rng(0))
    adapted = [replace(step[0], adapter=0), step[1]]
    chunk = [replace(entry, adapter=0) for entry in prefill([7, 3], np.random.default_rng(1))]
    both = [replace(entry, adapter=0) for entry in step]
    for batch in (step, adapted, both, chunk, step):
        found, expected = recording.run(batch).clone(), plain.run(batch)
        assert torch.allclose(found, expected, atol=1e-9)
    assert (counted(recording).replayed, counted(recording).eager) == (5, 0)


def test_chunks_of_prompts_are_counted_apart() -> None:
    recording, _, _ = runners("qwen3-tiny")
    rng = np.random.default_rng(2)
    recording.run(prefill([8, 60], rng))
    recording.run(decode([8, 60], rng))
    recording.run(prefill([70] * 8, rng))
    recording.run(decode([9] * 9, rng))
    counts = counted(recording)
    assert (counts.replayed, counts.eager) == (1, 1)
    assert (counts.replayed_chunks, counts.eager_chunks) == (1, 1)


def test_a_recording_that_works_serves_where_a_smaller_one_failed() -> None:
    made = runners("qwen3-tiny", most=4)[2].recorded
    model = load_model("random:qwen3-tiny", dtype=torch.float64, device=CPU)
    recording = ModelRunner(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        recording=Recording(
            record=FailingRecorder({made}, replays=False), max_sequences=4
        ),  # the smallest comes last
    )
    recording.pool.blocks.fill_(torch.nan)
    recording.run(prefill([9], np.random.default_rng(2)))
    before = replayed(recording)
    recording.run(decode([9], np.random.default_rng(3)))
    assert replayed(recording) == before + 1


def test_logits_come_for_the_rows_asked_for_alone() -> None:
    recording, plain, _ = runners("qwen3-tiny")
    rng = np.random.default_rng(2)
    for runner in (recording, plain):
        runner.run(prefill([9, 30, 12, 7], np.random.default_rng(2)))
    step = decode([9, 30, 12, 7], rng)
    step[1], step[2] = replace(step[1], num_logits=0), replace(step[2], num_logits=0)
    assert torch.allclose(recording.run(step), plain.run(step), rtol=1e-12, atol=1e-12)
    none = [replace(part, num_logits=0) for part in step]
    assert recording.run(none).shape[0] == 0


def test_a_recording_warms_up_aside_and_lets_other_threads_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeline, options, replays = Timeline(), [], []
    timeline.install(monkeypatch)

    class Graph:
        def replay(self) -> None:
            replays.append(self)

    @contextmanager
    def graph(made: Graph, **more: object) -> Iterator[None]:
        options.append(more)
        timeline.current = "recording"
        yield
        timeline.current = MAIN

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph, raising=False)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    buffer = torch.zeros(2)
    record = CudaRecorder()
    with timeline:
        buffer.fill_(1)
        written = len(timeline.entries) - 1
        replay = record(lambda: buffer.add(1))
        record(lambda: buffer.add(2))
        buffer.fill_(3)
    adds = timeline.places("add")
    streams = [timeline.entries[at][0] for at in adds]
    assert streams == [streams[0], "recording", streams[0], "recording"]
    assert streams[0] != MAIN
    assert timeline.before(written, adds[0])
    assert timeline.before(adds[0], len(timeline.entries) - 1)
    assert options == [{"pool": "pool", "capture_error_mode": "thread_local"}] * 2
    assert torch.equal(replay(), torch.full((2,), 2.0))
    assert len(replays) == 1
