"""Steps that only decode, recorded once for each size of batch and replayed.

A step of one token per sequence is a few hundred small launches, which cost more than their
work when the batch is small. Such a step is padded to a bucket: a power of two of sequences
and of blocks, and groups of shared prefixes likewise. The model runs on buffers that stay where
they are, so what was recorded once serves every step of the bucket. Other steps are not for
this; neither are more buckets than ``MOST_GRAPHS``.

Padding is real sequences of one token over a spare block that belongs to nobody: no kernel
needs to know of it, and nothing of it is read by others.

Always true: the rows that are returned are those that the step itself would give.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from kernels.dispatch import wants_triton
from kernels.paged_layout import PagedLayout, SharedPrefixes
from kernels.upload import FixedPlaces, upload
from runtime.model.batch import StepBatch
from runtime.model.decoder import Decoder, StepInputs
from runtime.model.kv_pool import KVPool

MOST_GRAPHS = 64
_LEAST_BLOCKS = 16
"""Tables narrower than this share a bucket."""


class Recorder(Protocol):
    """Turns a call without arguments into one that does the same on the same buffers."""

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]: ...


class CudaRecorder:
    """Records CUDA graphs. Their intermediate buffers share one pool of memory, so what a
    replay returned is gone with the next one.

    Other threads may copy KV and wait for it meanwhile: only this one is watched for calls that
    a recording does not allow.
    """

    def __init__(self) -> None:
        cuda: Any = torch.cuda  # its graphs and streams have no types
        self._cuda = cuda
        self._memory = cuda.graph_pool_handle()
        # One for all recordings: libraries keep memory for each stream they have seen.
        self._side_stream = cuda.Stream()

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        side = self._side_stream
        side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(side):  # compiles kernels and sets up libraries
            call()
        self._cuda.current_stream().wait_stream(side)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            output = call()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a recorded step is made for."""

    sequences: int
    blocks: int
    groups: int = 0
    """Groups of shared prefixes; 0: none."""
    members: int = 0

    @classmethod
    def of(cls, batch: StepBatch, shared: SharedPrefixes | None) -> "Bucket":
        """The smallest one that holds ``batch``."""
        sequences = _power_of_two(batch.num_sequences)
        blocks = max(_LEAST_BLOCKS, _power_of_two(batch.block_tables.shape[1]))
        if shared is None:
            return cls(sequences, blocks)
        groups, members = shared.members.shape
        return cls(sequences, blocks, _power_of_two(groups), members)


def padded(batch: StepBatch, bucket: Bucket, spare_block: int) -> StepBatch:
    """A step of one token per sequence, filled up with sequences of one token over
    ``spare_block``; every row has logits."""
    more = bucket.sequences - batch.num_sequences
    tables = np.full((bucket.sequences, bucket.blocks), -1, dtype=np.int32)
    tables[: batch.num_sequences, : batch.block_tables.shape[1]] = batch.block_tables
    tables[batch.num_sequences :, 0] = spare_block
    rows = np.arange(bucket.sequences + 1, dtype=np.int64)
    return StepBatch(
        token_ids=np.pad(batch.token_ids, (0, more)),
        positions=np.pad(batch.positions, (0, more)),
        slots=np.pad(batch.slots, (0, more), constant_values=spare_block * batch.block_size),
        query_starts=rows,
        context_lengths=np.pad(batch.context_lengths, (0, more), constant_values=1),
        block_tables=tables,
        logit_rows=rows[:-1],
        block_size=batch.block_size,
    )


def padded_prefixes(shared: SharedPrefixes, bucket: Bucket) -> SharedPrefixes:
    """The same groups, and empty ones."""
    groups, members = shared.members.shape
    skips = len(shared.skips)
    filled = SharedPrefixes(
        members=torch.full((bucket.groups, bucket.members), -1, dtype=torch.int32),
        lengths=torch.zeros(bucket.groups, dtype=torch.int32),
        skips=torch.zeros(bucket.sequences, dtype=torch.int32),
    )
    filled.members[:groups, :members] = shared.members
    filled.lengths[:groups] = shared.lengths
    filled.skips[:skips] = shared.skips
    return filled


class StepGraphs:
    """Recorded decode steps of one decoder over one pool."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        *,
        spare_block: int,
        max_sequences: int,
        record: Recorder,
    ) -> None:
        """
        Args:
            spare_block: a block of ``pool`` that nobody else uses.
            max_sequences: steps of more are not recorded.
        """
        self._decoder = decoder
        self._pool = pool
        self._device = pool.blocks.device
        self._spare_block = spare_block
        self._max_sequences = max_sequences
        self._record = record
        self._steps: dict[Bucket, _RecordedStep] = {}

    @property
    def num_graphs(self) -> int:
        """Recorded so far."""
        return len(self._steps)

    def forward(self, batch: StepBatch, tokens: Tensor | None = None) -> Tensor | None:
        """Logits of ``batch``, to be used before the next call; None if it is not for this.
        ``tokens`` [sequences] on the device stand for those of the batch."""
        sequences = batch.num_sequences
        if batch.num_tokens != sequences or sequences > self._max_sequences:
            return None
        shared = batch.shared_prefixes() if wants_triton(self._device) else None
        bucket = Bucket.of(batch, shared)
        if bucket not in self._steps and len(self._steps) >= MOST_GRAPHS:
            return None
        step = padded(batch, bucket, self._spare_block)
        spread = None if shared is None else padded_prefixes(shared, bucket)
        if bucket not in self._steps:
            made = _RecordedStep(self._decoder, self._pool, step, spread)
            made.record(self._record)
            self._steps[bucket] = made
        logits = self._steps[bucket].run(step, spread, tokens)
        if len(batch.logit_rows) == sequences:
            return logits[:sequences]
        return logits[upload(batch.logit_rows, self._device)]


class _StepTensors(NamedTuple):
    """What changes from step to step of a bucket: on the host as it is made, on the device where
    it stays. The last three are there where prefixes are shared."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor
    query_starts: Tensor
    context_lengths: Tensor
    block_tables: Tensor
    prefix_members: Tensor | None = None
    prefix_lengths: Tensor | None = None
    prefix_skips: Tensor | None = None

    @classmethod
    def of(cls, step: StepBatch, shared: SharedPrefixes | None) -> "_StepTensors":
        """Those of a step, on the host."""
        return cls(
            token_ids=torch.from_numpy(step.token_ids),
            positions=torch.from_numpy(step.positions),
            slots=torch.from_numpy(step.slots),
            logit_rows=torch.from_numpy(step.logit_rows),
            query_starts=torch.from_numpy(step.query_starts.astype(np.int32)),
            context_lengths=torch.from_numpy(step.context_lengths.astype(np.int32)),
            block_tables=torch.from_numpy(step.block_tables),
            prefix_members=None if shared is None else shared.members,
            prefix_lengths=None if shared is None else shared.lengths,
            prefix_skips=None if shared is None else shared.skips,
        )

    def present(self) -> list[Tensor]:
        """In their order, without those that are not there."""
        return [tensor for tensor in self if tensor is not None]

    @property
    def shared(self) -> SharedPrefixes | None:
        """The shared prefixes, over these tensors."""
        if self.prefix_members is None:
            return None
        assert self.prefix_lengths is not None
        assert self.prefix_skips is not None
        return SharedPrefixes(
            members=self.prefix_members, lengths=self.prefix_lengths, skips=self.prefix_skips
        )


class _RecordedStep:
    """One bucket: the buffers that a step is written to, and the call that runs on them."""

    def __init__(
        self, decoder: Decoder, pool: KVPool, step: StepBatch, shared: SharedPrefixes | None
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        device = pool.blocks.device
        self._needs_spans = not wants_triton(device)
        tensors = _StepTensors.of(step, shared).present()
        self._places = FixedPlaces(tensors, device)
        self._places.write(tensors)
        self._buffers = _StepTensors(*self._places.tensors)
        self._inputs = self._over_buffers(step)
        self._run: Callable[[], Tensor] = self._forward

    def record(self, record: Recorder) -> None:
        """Record the step as it is in the buffers."""
        self._run = record(self._forward)

    def run(self, step: StepBatch, shared: SharedPrefixes | None, tokens: Tensor | None) -> Tensor:
        """[sequences, vocab]: logits of another step of the same bucket, its first tokens taken
        from ``tokens`` if they are given."""
        self._places.write(_StepTensors.of(step, shared).present())
        if tokens is not None:
            self._buffers.token_ids[: len(tokens)].copy_(tokens)
        if self._needs_spans:
            self._inputs = self._over_buffers(step)
        return self._run()

    def _forward(self) -> Tensor:
        return self._decoder.forward(self._inputs, self._pool)

    def _over_buffers(self, step: StepBatch) -> StepInputs:
        buffers = self._buffers
        return StepInputs(
            token_ids=buffers.token_ids,
            positions=buffers.positions,
            slots=buffers.slots,
            logit_rows=buffers.logit_rows,
            highest_position=self._decoder.config.max_context_tokens - 1,
            layout=PagedLayout(
                query_starts=buffers.query_starts,
                context_lengths=buffers.context_lengths,
                block_tables=buffers.block_tables,
                max_query_tokens=1,
                spans=step.spans() if self._needs_spans else (),
                shared=buffers.shared,
            ),
        )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
