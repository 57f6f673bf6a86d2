"""Recorded decode steps: padded, on fixed buffers, and not to be told from the plain ones.

On a CPU "recording" is calling: what is tested is the buckets, the padding and the buffers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.paged_layout import SharedPrefixes
from runtime.model import cuda_graphs as step_graphs
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.cuda_graphs import Bucket, CudaRecorder, padded, padded_prefixes
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
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
        model, num_blocks=NUM_BLOCKS, block_size=16, record=record, max_recorded_sequences=most
    )
    plain = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    for runner in (recording, plain):
        runner.pool.blocks.fill_(torch.nan)
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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sequences", [2, 3, 5, 8])
def test_a_padded_step_gives_the_plain_steps_logits_and_kv_bit_for_bit(
    family: str, sequences: int
) -> None:
    """Bit for bit with as many rows; a library may sum up other numbers of rows otherwise, so
    padding itself is held to the last few bits."""
    recording, plain, record = runners(family)
    rng = np.random.default_rng(sequences)
    lengths = rng.integers(1, 70, sequences).tolist()
    first = prefill(lengths, rng)
    assert torch.equal(recording.run(first), plain.run(first))
    assert record.recorded == 0
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
    assert record.recorded == 1
    assert recording.num_blocks == NUM_BLOCKS


def test_float32_steps_whose_kernels_read_the_buffers_agree_as_well() -> None:
    recording, plain, record = runners("qwen3-tiny", dtype=torch.float32)
    rng = np.random.default_rng(0)
    lengths = [40, 3, 66, 17, 20, 9]
    for runner in (recording, plain):
        runner.run(prefill(lengths, np.random.default_rng(0)))
    for count in (6, 5, 6, 6):
        step = decode(lengths[:count], rng)
        assert torch.allclose(recording.run(step), plain.run(step), rtol=1e-4, atol=1e-4)
        lengths[:count] = [length + 1 for length in lengths[:count]]
    assert record.recorded == 1


def test_padding_is_the_same_whatever_stood_in_the_bucket_before() -> None:
    recording, _, record = runners("qwen3-tiny")
    rng = np.random.default_rng(0)
    lengths = [40, 3, 66, 17, 20, 9]
    recording.run(prefill(lengths, rng))
    three = decode(lengths[:3], rng)
    alone = recording.run(three).clone()
    recording.run(decode([61, 5, 40, 2], rng)[:4])
    recording.run(prefill(lengths, np.random.default_rng(0)))
    assert torch.equal(recording.run(three), alone)
    assert record.recorded == 1


def test_only_steps_of_one_token_each_are_recorded_and_no_more_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording, plain, record = runners("qwen3-tiny", most=4)
    rng = np.random.default_rng(1)
    lengths = [5, 20, 3, 40, 33]
    for runner in (recording, plain):
        runner.run(prefill(lengths, np.random.default_rng(1)))
    draft = [*decode(lengths[:1], rng), replace(decode(lengths, rng)[1], num_logits=0)]
    draft[0] = replace(draft[0], tokens=rng.integers(0, 256, 3, dtype=np.int32), num_logits=3)
    for step in (draft, decode(lengths, rng)):
        assert torch.equal(recording.run(step), plain.run(step))
    assert record.recorded == 0
    monkeypatch.setattr(step_graphs, "MOST_GRAPHS", 1)
    for count in (1, 2):
        step = decode(lengths[:count], rng)
        assert torch.allclose(recording.run(step), plain.run(step), rtol=0, atol=1e-12)
    assert record.recorded == 1
    assert recording.graphs is not None
    assert recording.graphs.num_graphs == 1


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


def test_padding_uses_the_spare_block_and_no_other() -> None:
    rng = np.random.default_rng(3)
    batch = StepBatch.build(decode([16, 40, 5], rng), 16)
    bucket = Bucket.of(batch, None)
    assert bucket == Bucket(4, 16)
    step = padded(batch, bucket, spare_block=99)
    assert step.slots.tolist() == [*batch.slots.tolist(), 99 * 16]
    assert step.block_tables[3].tolist() == [99] + [-1] * 15
    assert step.context_lengths.tolist() == [17, 41, 6, 1]
    assert (step.block_tables[:3, :3] == batch.block_tables).all()


def test_shared_prefixes_are_filled_up_with_groups_of_nobody() -> None:
    shared = SharedPrefixes(
        members=torch.tensor([[0, 2], [1, 4], [3, -1]], dtype=torch.int32),
        lengths=torch.tensor([64, 128, 64], dtype=torch.int32),
        skips=torch.tensor([64, 128, 64, 64, 128], dtype=torch.int32),
    )
    batch = StepBatch.build(decode([1] * 5, np.random.default_rng(0)), 16)
    bucket = Bucket.of(batch, shared)
    assert bucket == Bucket(8, 16, 4, 2)
    filled = padded_prefixes(shared, bucket)
    assert filled.members.tolist() == [[0, 2], [1, 4], [3, -1], [-1, -1]]
    assert filled.lengths.tolist() == [64, 128, 64, 0]
    assert filled.skips.tolist() == [64, 128, 64, 64, 128, 0, 0, 0]


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
