"""What a recorded step has room for, which steps it is for, and what it is filled up with."""

import numpy as np
import pytest
import torch

from kernels.paged_layout import SharedPrefixes
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.step_buckets import (
    PREFIX_GROUPS,
    Bucket,
    buckets_up_to,
    large_chunks,
    padded,
    padded_prefixes,
    smallest,
)


def batch(*counts: int, logits: int = 1) -> StepBatch:
    """A step of sequences that compute ``counts`` tokens behind 40 others."""
    return StepBatch.build(
        [
            SequenceInput(
                tokens=np.arange(count, dtype=np.int32),
                start=40,
                block_table=np.arange(index * 140, index * 140 + 140, dtype=np.int32),
                num_logits=min(logits, count),
            )
            for index, count in enumerate(counts)
        ],
        16,
    )


@pytest.mark.parametrize(
    ("counts", "width", "chunk"),
    [((1, 1, 1), 1, 0), ((3, 1), 4, 0), ((5,), 8, 0), ((17, 1), 32, 0), ((33,), 0, 33)],
)
def test_a_step_needs_room_for_its_widest_decode_and_its_largest_chunk(
    counts: tuple[int, ...], width: int, chunk: int
) -> None:
    need = Bucket.of(batch(*counts), shared=False)
    assert (need.sequences, need.tokens) == (len(counts), sum(counts))
    assert (need.decode_width, need.chunk, need.logits) == (width, chunk, len(counts))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 63, 64])
@pytest.mark.parametrize("shared", [False, True])
def test_every_step_that_decodes_has_a_recording_of_at_most_twice_its_tokens(
    count: int, shared: bool
) -> None:
    need = Bucket.of(batch(*[1] * count), shared=shared and count > 1)
    found = smallest(buckets_up_to(64), need)
    assert found is not None
    assert found.decode_width == 1
    assert found.tokens < 2 * count or count == 1
    assert found.shared == need.shared


@pytest.mark.parametrize("drafts", range(1, 17))
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_steps_that_verify_drafts_have_one_too(drafts: int, count: int) -> None:
    need = Bucket.of(batch(*[1 + drafts] * count, logits=1 + drafts), shared=False)
    found = smallest(buckets_up_to(16), need)
    assert found is not None
    assert found.holds(need)
    assert found.tokens <= 4 * need.tokens


@pytest.mark.parametrize("chunk", [16, 32, 33, 100, 256])
@pytest.mark.parametrize("decodes", [1, 7, 63])
def test_chunks_beside_decodes_have_one_too(chunk: int, decodes: int) -> None:
    need = Bucket.of(batch(chunk, *[1] * decodes), shared=False)
    found = smallest(buckets_up_to(64), need)
    assert found is not None
    assert found.holds(need)


@pytest.mark.parametrize("decodes", [0, 1, 7, 8, 63])
def test_every_large_chunk_of_a_step_has_one_with_little_waste(decodes: int) -> None:
    recorded = sorted([*buckets_up_to(64), *large_chunks(64, 2048)], key=Bucket.cost)
    for tokens in [*range(258 + decodes, 2048, 5), 2048]:
        need = Bucket.of(batch(tokens - decodes, *[1] * decodes), shared=True)
        found = smallest(recorded, need)
        assert found is not None
        assert found.holds(need)
        assert found.chunk <= 1.5 * tokens
        if tokens > 512:
            assert found.chunk - need.chunk <= 128
    short = Bucket.of(batch(500, 20, *[1] * min(decodes, 6)), shared=False)
    assert smallest(recorded, short) is not None
    several = Bucket.of(batch(300, 200, 150, 1), shared=False)
    assert smallest(recorded, several) == Bucket(
        sequences=64, tokens=704, logits=64, decode_width=8, chunk=640, shared=True
    )


def test_no_larger_chunks_are_recorded_than_a_step_may_have() -> None:
    assert large_chunks(64, 256) == large_chunks(64, 0) == []
    assert {bucket.chunk for bucket in large_chunks(64, 300)} == {384}
    assert max(bucket.chunk for bucket in large_chunks(64, 2048)) == 2048
    assert {bucket.sequences for bucket in large_chunks(1, 2048)} == {1}
    assert len(large_chunks(256, 2048)) == 28
    odd = Bucket(sequences=8, tokens=2056, logits=8, decode_width=8, chunk=2048, shared=True)
    assert smallest([odd], Bucket.of(batch(1300), shared=False)) is None
    assert smallest([odd], Bucket.of(batch(1400), shared=False)) == odd


def test_what_is_too_large_for_any_or_would_waste_too_much_has_none() -> None:
    recorded = buckets_up_to(4)
    assert smallest(recorded, Bucket.of(batch(*[1] * 5), shared=False)) is None
    assert smallest(recorded, Bucket.of(batch(300), shared=False)) is None
    wide = Bucket(sequences=1, tokens=64, logits=64, decode_width=32)
    assert smallest([wide], Bucket.of(batch(16, logits=16), shared=False)) == wide
    assert smallest([wide], Bucket.of(batch(15, logits=15), shared=False)) is None


def test_recordings_are_few() -> None:
    assert len(buckets_up_to(1)) <= 6
    assert len(buckets_up_to(64)) <= 60
    assert len(set(buckets_up_to(256))) == len(buckets_up_to(256))


def test_rows_of_nobody_go_to_the_spare_block_and_sequences_of_nobody_have_no_query() -> None:
    step = batch(1, 3)
    bucket = Bucket(sequences=4, tokens=8, logits=8, decode_width=4)
    arrays = padded(step, bucket, spare_block=99)
    assert arrays.slots.tolist() == [*step.slots.tolist()] + [99 * 16] * 4
    assert arrays.query_starts.tolist() == [0, 1, 4, 4, 4]
    assert arrays.context_lengths.tolist() == [41, 43, 0, 0]
    assert (arrays.block_tables == step.block_tables).all()


def test_shared_prefixes_are_filled_up_with_groups_of_nobody() -> None:
    shared = SharedPrefixes(
        members=torch.tensor([[0, 2], [1, 4]], dtype=torch.int32),
        lengths=torch.tensor([64, 128], dtype=torch.int32),
        skips=torch.tensor([64, 128, 64, 0, 128], dtype=torch.int32),
    )
    bucket = Bucket(sequences=8, tokens=8, logits=8, decode_width=1, shared=True)
    filled = padded_prefixes(shared, bucket)
    assert filled.members.shape == (PREFIX_GROUPS, 8)
    assert filled.members[:2, :2].tolist() == [[0, 2], [1, 4]]
    assert (filled.members[2:] == -1).all()
    assert filled.lengths.tolist() == [64, 128] + [0] * (PREFIX_GROUPS - 2)
    assert filled.skips.tolist() == [64, 128, 64, 0, 128, 0, 0, 0]


def test_of_more_groups_than_there_is_room_for_those_that_save_most_are_kept() -> None:
    groups = PREFIX_GROUPS + 2
    members = torch.arange(2 * groups, dtype=torch.int32).view(groups, 2)
    lengths = torch.arange(1, groups + 1, dtype=torch.int32) * 64
    skips = lengths.repeat_interleave(2)
    bucket = Bucket(sequences=32, tokens=32, logits=32, decode_width=1, shared=True)
    filled = padded_prefixes(SharedPrefixes(members=members, lengths=lengths, skips=skips), bucket)
    assert filled.skips[:4].tolist() == [0] * 4  # the two shortest are read by each
    assert filled.skips[4 : 2 * groups].tolist() == skips[4:].tolist()
    assert sorted(filled.lengths.tolist()) == lengths[2:].tolist()
