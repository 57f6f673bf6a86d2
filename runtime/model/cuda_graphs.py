"""Steps, recorded when the model is loaded and replayed.

A step is a few hundred launches, which cost a host more than their work where tokens are few, and
half of it where they are a thousand. The model
runs on buffers that stay where they are, so what was recorded once serves every step that fits
(``runtime.model.step_buckets`` says which). All is recorded, and so all kernels are compiled,
before the first turn: no turn ever waits for a recording. A step that fits nowhere runs as it
comes; so does one whose recording failed, when it was made or replayed.

States of recurrent layers are left in their slots by each layer of a recorded step, so that one
which fails on its way leaves some moved and some not: the runner is broken then, and is made anew.

Always true: the rows that are returned are those that the step itself would give.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from kernels.dispatch import wants_triton
from kernels.launching import compiling_ahead
from kernels.low_rank import NO_ADAPTER, RowAdapters
from kernels.paged_layout import PagedLayout, SequenceSpan, SharedPrefixes
from kernels.upload import FixedPlaces
from runtime.model.batch import StepBatch
from runtime.model.decoder import Decoder, StepInputs
from runtime.model.kv_pool import KVPool
from runtime.model.rank_link import RunnerBroken
from runtime.model.recording_plan import room_of
from runtime.model.state_pool import StatePool
from runtime.model.state_step import StateMoves, StateStep
from runtime.model.step_buckets import (
    Bucket,
    RecordedSizes,
    StepArrays,
    buckets_up_to,
    most_window_blocks,
    padded,
    padded_prefixes,
    smallest,
    unrecorded_kinds,
)

log = logging.getLogger(__name__)

_TOLD_EVERY = 8


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


class AgreedRecorder:
    """Records what every rank of a model can record; what one cannot, none has."""

    def __init__(self, record: Recorder, all_can: Callable[[bool], bool]) -> None:
        """``all_can``: whether all ranks have made a recording, by whether this one has."""
        self._record = record
        self._all_can = all_can

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        try:
            replay = self._record(call)
        except Exception:
            self._all_can(False)
            raise
        if not self._all_can(True):
            raise RuntimeError("another rank could not record this step")
        return replay


@dataclass(slots=True)
class GraphCounts:
    """Forward passes, by how they ran; those with a chunk of a prompt apart."""

    replayed: int = 0
    eager: int = 0
    """No recording is for them."""
    replayed_chunks: int = 0
    eager_chunks: int = 0
    failed: int = 0
    """Recordings that raised, when they were made or replayed; steps run as they come instead."""

    def since(self, told: "GraphCounts") -> "GraphCounts":
        """Events that have come since ``told``."""
        return GraphCounts(
            replayed=self.replayed - told.replayed,
            eager=self.eager - told.eager,
            replayed_chunks=self.replayed_chunks - told.replayed_chunks,
            eager_chunks=self.eager_chunks - told.eager_chunks,
            failed=self.failed - told.failed,
        )


def compile_kernels(dry_runs: Iterable[Callable[[], object]]) -> None:
    """Compile side by side all kernels that steps launch; what fails is left to who launches."""
    threads = os.cpu_count() or 1
    began = time.monotonic()
    compiled = 0

    def tell(count: int) -> None:
        nonlocal compiled
        compiled = max(compiled, count)
        if count % _TOLD_EVERY == 0:
            log.info("kernels compiled=%d", count)

    with compiling_ahead(threads, tell):
        for dry_run in dry_runs:
            try:
                dry_run()
            except Exception:
                log.debug("a dry run failed", exc_info=True)
    log.info("kernels compiled=%d seconds=%.1f", compiled, time.monotonic() - began)


def _call_once(calls: Iterable[Callable[[], object]]) -> None:
    """Call each, so that the device has loaded what it needs; what fails is left to who calls in
    earnest."""
    for call in calls:
        try:
            call()
        except Exception:
            log.debug("a call to warm up failed", exc_info=True)


class StepGraphs:
    """Recorded steps of one decoder over one pool."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        *,
        spare_block: int,
        sizes: RecordedSizes,
        record: Recorder,
        states: StatePool | None = None,
        spare_window_block: int | None = None,
        also: Iterable[Callable[[], object]] = (),
    ) -> None:
        """Record what steps of these sizes need.

        Args:
            spare_block: a block of ``pool`` that nobody else uses.
            states: of a model with recurrent layers.
            spare_window_block: the same of window blocks, where the pool has such.
            also: what else is launched in service; compiled with the steps, and called once.
        """
        self._decoder = decoder
        self._pool = pool
        self._states = states
        self._spare = _Spare(spare_block, spare_window_block)
        self._on_triton = wants_triton(pool.device)
        self.counts = GraphCounts()
        self.steps: dict[Bucket, _RecordedStep] = {}
        before = _reserved_bytes(pool)
        wanted = [*buckets_up_to(sizes.max_sequences), *sizes.large_chunks]
        if not self._on_triton:
            wanted = list(dict.fromkeys(_unshared(bucket) for bucket in wanted))
        with torch.inference_mode():
            made = [self._made(bucket) for bucket in wanted]
            if self._on_triton:
                unrecorded = unrecorded_kinds(sizes.max_sequences)
                kinds = [self._made(bucket).dry_run for bucket in unrecorded]
                others: list[Callable[[], object]] = [*kinds, *also]
                compile_kernels([*(step.dry_run for step in made), *others])
                if pool.device.type == "cuda":
                    _call_once(others)
            # The largest first: those behind it find room in the memory that it has taken.
            for number, step in enumerate(sorted(made, key=_cost_of, reverse=True), 1):
                self._record(step, record)
                _tell(number, len(wanted))
        if len(self.steps) < len(wanted):
            missing = len(wanted) - len(self.steps)
            log.warning("recordings failed=%d of=%d: such steps run slower", missing, len(wanted))
        self._order: Many[Bucket] = tuple(sorted(self.steps, key=Bucket.cost))
        taken = (_reserved_bytes(pool) - before) >> 20
        log.info("recordings=%d large_chunks=%d mib=%d", len(made), len(sizes.large_chunks), taken)

    @property
    def num_graphs(self) -> int:
        """Recordings that steps may run in."""
        return len(self.steps)

    def _made(self, bucket: Bucket) -> "_RecordedStep":
        return _RecordedStep(self._decoder, self._pool, bucket, self._spare, self._states)

    def _record(self, made: "_RecordedStep", record: Recorder) -> None:
        try:
            made.record(record)
        except Exception:
            if not self.counts.failed:
                log.exception("recording failed sequences=%d", made.bucket.sequences)
            self.counts.failed += 1
        else:
            self.steps[made.bucket] = made

    def forward(self, batch: StepBatch, tokens: Tensor | None = None) -> Tensor | None:
        """Logits of ``batch``, to be used before the next call; None if it is not for this.
        ``tokens`` [tokens] on the device stand for those of the batch.

        Raises:
            RunnerBroken: a replay failed, and nobody knows which states it has moved.
        """
        given = self._given(batch)
        bucket = smallest(self._order, given.needed)
        if bucket is None or not given.fits(bucket):
            self._count_eager(given.needed)
            return None
        try:
            logits = self.steps[bucket].run(given, tokens)
        except Exception as error:
            if self._states is not None:
                raise RunnerBroken(f"a recorded step with states failed: {error}") from error
            log.exception("replay failed sequences=%d: it is not tried again", bucket.sequences)
            self.counts.failed += 1
            del self.steps[bucket]
            self._order = tuple(known for known in self._order if known != bucket)
            self._count_eager(given.needed)
            return None
        self._count_replayed(given.needed)
        return logits

    def chosen(self, batch: StepBatch) -> Bucket | None:
        """The recording that all ranks are to run ``batch`` in; None: it runs as it comes. Counts
        it as done."""
        given = self._given(batch)
        bucket = smallest(self._order, given.needed)
        if bucket is None or not given.fits(bucket):
            self._count_eager(given.needed)
            return None
        self._count_replayed(given.needed)
        return bucket

    def run_in(self, bucket: Bucket, batch: StepBatch, tokens: Tensor | None) -> Tensor:
        """``batch`` in the recording of ``bucket``, whatever another might be better for.

        Raises:
            KeyError: there is no such recording.
        """
        return self.steps[bucket].run(self._given(batch), tokens)

    def _given(self, batch: StepBatch) -> "_Given":
        shared = batch.shared_prefixes() if self._on_triton else None
        states = self._states
        plan = None
        if states is not None:
            plan = states.plan(batch.state_slots, batch.first_positions, batch.query_starts)
        return _Given(batch=batch, shared=shared, plan=plan)

    def _count_replayed(self, needed: Bucket) -> None:
        self.counts.replayed += not needed.chunk
        self.counts.replayed_chunks += bool(needed.chunk)

    def _count_eager(self, needed: Bucket) -> None:
        self.counts.eager += not needed.chunk
        self.counts.eager_chunks += bool(needed.chunk)


class _Spare(NamedTuple):
    """Blocks that nobody reads, for rows of no sequence."""

    block: int
    window_block: int | None
    """None: the pool has none such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A step that is to be computed, and what follows from it on the host."""

    batch: StepBatch
    shared: SharedPrefixes | None
    plan: StateMoves | None

    @property
    def needed(self) -> Bucket:
        return Bucket.of(self.batch, shared=self.shared is not None)

    def fits(self, bucket: Bucket) -> bool:
        """Whether states find room in a recording that holds the rest."""
        return self.plan is None or self.plan.fits(room_of(bucket))


class _RecordedStep:
    """One bucket: the buffers that a step is written to, and the call that runs on them."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        bucket: Bucket,
        spare: _Spare,
        states: StatePool | None,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self.bucket = bucket
        self._spare = spare
        self._states, self._room = states, room_of(bucket)
        self._on_triton = wants_triton(pool.device)
        self._spans: tuple[SequenceSpan, ...] = ()
        self._near_spans: tuple[SequenceSpan, ...] = ()
        self._plan: StateMoves | None = None
        """Of the step, for states on the host."""
        blocks = -(-decoder.config.max_context_tokens // pool.block_size)
        like = _places(bucket, min(blocks, pool.num_blocks))
        like[2].fill_(spare.block * pool.block_size)
        near: list[Tensor] = []
        if spare.window_block is not None and decoder.config.window is not None:
            longest = most_window_blocks(decoder.config.window, bucket, pool.block_size)
            near = _near_places(bucket, min(blocks, longest))
            near[0].fill_(spare.window_block * pool.block_size)
        self._shown = len(like)
        """Places of what layers of all kinds read."""
        like += near
        self._adapters: int | None = None
        """The place of tokens' adapters, where the model has such."""
        if decoder.adapts:
            self._adapters = len(like)
            like.append(torch.full((bucket.tokens,), NO_ADAPTER, dtype=torch.int32))
        self._own = len(like)
        if states is not None:
            none = np.zeros(0, dtype=np.int64)
            nobody = states.plan(none, none, np.zeros(1, dtype=np.int64))
            like += self._with_states(nobody)
        self._places = FixedPlaces(like, pool.device)
        self._places.write(like)
        self._run: Callable[[], Tensor] = self._forward

    def _with_states(self, plan: StateMoves) -> list[Tensor]:
        """The arrays of a step's states that lie in their places, if it runs on Triton's kernels;
        else what it does is noted for the host."""
        assert self._states is not None
        if self._on_triton:
            arrays = plan.arrays(self._room, self._states.num_slots)
            return [torch.from_numpy(array) for array in arrays]
        self._plan = plan.padded(self._room, self._states.num_slots)
        return []

    def dry_run(self) -> None:
        """Go through the step for what it launches (``kernels.launching``)."""
        self._forward()

    def record(self, record: Recorder) -> None:
        """Record the step as it is in the buffers: one without a sequence."""
        self._run = record(self._forward)

    def run(self, given: _Given, tokens: Tensor | None) -> Tensor:
        """[R, vocab]: logits of a step of this bucket, its first tokens taken from ``tokens``
        if they are given."""
        batch, plan = given.batch, given.plan
        written = _tensors(padded(batch, self.bucket, self._spare.block))
        if self.bucket.shared:
            prefixes = padded_prefixes(given.shared, self.bucket)
            written += [prefixes.members, prefixes.lengths, prefixes.skips]
        if batch.window is not None and self._spare.window_block is not None:
            near = padded(batch.window, self.bucket, self._spare.window_block)
            seen = near.slots, near.context_lengths, near.block_tables
            written += [torch.from_numpy(array) for array in seen]
        if self._adapters is not None:
            of_tokens = batch.adapter_of_tokens(self.bucket.tokens).astype(np.int32)
            written.append(torch.from_numpy(of_tokens))
        if plan is not None:
            written += self._with_states(plan)
        self._places.write(written)
        if tokens is not None:
            self._places.tensors[0][: len(tokens)].copy_(tokens)
        if not self._on_triton:
            self._spans = batch.spans()
            self._near_spans = () if batch.window is None else batch.window.spans()
        logits = self._run()[: len(batch.logit_rows)]
        if plan is not None and self._states is not None:
            self._states.settle(plan)
        return logits

    def _state_step(self) -> StateStep | None:
        if self._states is None:
            return None
        if self._plan is not None:
            return self._states.begin_step(self._plan)
        return self._states.recorded_step(self._places.tensors[self._own :], self._room)

    def _forward(self) -> Tensor:
        """The model over the buffers. Its layout is a new one each time: what kernels work out
        of it once a step is to be part of the recording."""
        shown = self._places.tensors[: self._shown]
        token_ids, positions, slots, logit_rows, *context = shown
        query_starts, context_lengths, block_tables, *prefixes = context
        inputs = StepInputs(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            logit_rows=logit_rows,
            states=self._state_step(),
            highest_position=self._decoder.config.max_context_tokens - 1,
            layout=replace(
                self._layout(query_starts, context_lengths, block_tables),
                spans=lambda: self._spans,
                shared=_prefixes(prefixes),
            ),
            near=self._near(query_starts),
            adapters=None
            if self._adapters is None
            else RowAdapters(self._places.tensors[self._adapters]),
        )
        return self._decoder.forward(inputs, self._pool)

    def _row_adapters(self) -> RowAdapters | None:
        place = self._adapters
        return None if place is None else RowAdapters(self._places.tensors[place])

    def _near(self, query_starts: Tensor) -> tuple[Tensor, PagedLayout] | None:
        """Slots and layout of layers whose rows are given back behind their window."""
        end = self._own if self._adapters is None else self._adapters
        given = self._places.tensors[self._shown : end]
        if not given:
            return None
        slots, context_lengths, block_tables = given
        layout = self._layout(query_starts, context_lengths, block_tables)
        return slots, replace(layout, spans=lambda: self._near_spans)

    def _layout(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor
    ) -> PagedLayout:
        return PagedLayout(
            query_starts=query_starts,
            context_lengths=context_lengths,
            block_tables=block_tables,
            max_query_tokens=max(self.bucket.chunk, self.bucket.decode_width),
            max_decode_tokens=self.bucket.decode_width,
            has_rows_of_nobody=True,
        )


def _tell(done: int, of: int) -> None:
    """A line for those who watch a server start, at each quarter of the recordings."""
    if done * 4 % of < 4:
        log.info("steps recorded=%d of=%d", done, of)


def _cost_of(step: _RecordedStep) -> tuple[int, ...]:
    return step.bucket.cost()


def _reserved_bytes(pool: KVPool) -> int:
    """Device memory that torch has taken from the system; 0 on a CPU, where nothing is kept."""
    return torch.cuda.memory_reserved() if pool.device.type == "cuda" else 0


def _unshared(bucket: Bucket) -> Bucket:
    return Bucket(
        sequences=bucket.sequences,
        tokens=bucket.tokens,
        logits=bucket.logits,
        decode_width=bucket.decode_width,
        chunk=bucket.chunk,
    )


def _places(bucket: Bucket, max_blocks: int) -> list[Tensor]:
    """Zeros like everything that changes from step to step, in the order of ``_tensors``."""
    longs = [torch.zeros(bucket.tokens, dtype=torch.int64) for _ in range(3)]
    longs.append(torch.zeros(bucket.logits, dtype=torch.int64))
    shapes: list[tuple[int, ...]] = [(bucket.sequences + 1,), (bucket.sequences,)]
    shapes.append((bucket.sequences, max_blocks))
    places = longs + [torch.zeros(shape, dtype=torch.int32) for shape in shapes]
    if bucket.shared:
        empty = padded_prefixes(None, bucket)
        places += [empty.members, empty.lengths, empty.skips]
    return places


def _near_places(bucket: Bucket, max_blocks: int) -> list[Tensor]:
    """The same of what layers with a window read apart: slots, contexts and block tables."""
    shapes: list[tuple[int, ...]] = [(bucket.sequences,), (bucket.sequences, max_blocks)]
    slots = torch.zeros(bucket.tokens, dtype=torch.int64)
    return [slots, *(torch.zeros(shape, dtype=torch.int32) for shape in shapes)]


def _tensors(arrays: StepArrays) -> list[Tensor]:
    return [
        torch.from_numpy(array)
        for array in (
            arrays.token_ids,
            arrays.positions,
            arrays.slots,
            arrays.logit_rows,
            arrays.query_starts,
            arrays.context_lengths,
            arrays.block_tables,
        )
    ]


def _prefixes(tensors: Many[Tensor]) -> SharedPrefixes | None:
    if not tensors:
        return None
    members, lengths, skips = tensors
    return SharedPrefixes(members=members, lengths=lengths, skips=skips)
