"""A model with its KV pool: steps in, logits out.

Decides what ``auto`` means for dtype and device and how many KV blocks fit. Which tokens a
step holds is the scheduler's decision, what becomes of the logits the engine's.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention import fits_triton
from kernels.dispatch import wants_triton
from kernels.native_library import native_library, own_threads
from kernels.upload import upload
from radix_cache.snapshots import SaveBelow, SlotOrder
from runtime.config import DeviceName, DTypeName, EngineConfig, Quantization
from runtime.model.batch import SequenceInput, StepBatch, with_any_window
from runtime.model.config import LoadError
from runtime.model.cuda_graphs import AgreedRecorder, CudaRecorder, Recorder, StepGraphs
from runtime.model.decoder import StepInputs
from runtime.model.kv_pool import KVPool
from runtime.model.layers import WeightBits
from runtime.model.memory_plan import plan_memory
from runtime.model.partition import Partition
from runtime.model.rank_link import Followers, RankLink, Room
from runtime.model.recording_plan import recorded_chunks
from runtime.model.state_changes import StateChanges, keeps_state
from runtime.model.state_plan import StatePlan
from runtime.model.state_pool import StatePool
from runtime.model.step_buckets import Bucket, RecordedSizes
from runtime.model.warm_up import chunks, draws, single_token
from runtime.model.weights import LoadedModel, free_memory_bytes, load_model

log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
BITS: dict[Quantization, WeightBits] = {"none": 16, "int8": 8, "int4": 4, "fp8": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Steps that are recorded (``runtime.model.cuda_graphs``)."""

    record: Recorder
    max_sequences: int = 256
    """Steps of more are not."""
    max_tokens: int = 0
    """Those of up to so many are, too, or they are warmed up."""


class ModelRunner:
    """Runs steps of one model over one KV pool."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype | None = None,
        recording: Recording | None = None,
        states: StatePlan | None = None,
        window_blocks: int | None = None,
    ) -> None:
        """
        Args:
            kv_dtype: how keys and values are kept: int8, fp8 or (None) as the model computes.
            recording: steps that are recorded now, which takes a spare block; None runs every
                step as it comes.
            states: of a model with recurrent layers, the slots for its states; None: none until
                ``hold_states``.
            window_blocks: blocks of layers with a window, whose rows are given back behind it;
                None: they have every block, like other layers.
        """
        self.model = model
        self._ranks = model.ranks
        self._rests = False
        """The other ranks know that no step comes for now."""
        self._num_blocks = num_blocks
        self.window_blocks = window_blocks
        spare = int(recording is not None)
        self.pool = KVPool(
            model.config,
            num_blocks=num_blocks + spare,
            block_size=block_size,
            dtype=kv_dtype or model.dtype,
            device=model.device,
            window_blocks=None if window_blocks is None else window_blocks + spare,
        )
        self.states: StatePool | None = None
        """States of a model with recurrent layers; without slots until ``hold_states``."""
        self.tails: KVPool | None = None
        """A block for each slot: keys and values of what lies behind the last whole block."""
        if model.config.recurrent:
            self.states = self._state_pool(slots=0, rings=0)
        self.graphs: StepGraphs | None = None
        if states is not None:
            self.hold_states(slots=states.slots, rings=states.rings)
        if recording is not None:
            self.graphs = self._recorded(recording)

    def _recorded(self, recording: Recording) -> StepGraphs:
        record, max_sequences = recording.record, recording.max_sequences
        model, ranks, block_size = self.model, self._ranks, self.block_size
        config = model.config
        most = min(recording.max_tokens, self._num_blocks * block_size, config.max_context_tokens)
        warming = list(chunks(most, block_size))
        also: list[Callable[[], object]] = list(draws(config.vocab_size, model.device))
        if self.states is not None:
            warming.append(single_token())
            also.append(self.states.rehearse)
        for step in warming:
            batch = StepBatch.build(self._for_trial(step), block_size)
            also.append(functools.partial(self.run_as_it_comes, batch, None))
        return StepGraphs(
            model.decoder,
            self.pool,
            spare_block=self._num_blocks,
            spare_window_block=self.window_blocks,
            sizes=RecordedSizes(
                max_sequences=max_sequences,
                large_chunks=recorded_chunks(
                    config,
                    itemsize=model.dtype.itemsize,
                    max_sequences=max_sequences,
                    max_tokens=most,
                ),
            ),
            record=record if ranks is None else AgreedRecorder(record, ranks.all_can),
            states=self.states,
            also=also,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks that steps may use."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self.pool.block_size

    def hold_states(self, *, slots: int, rings: int) -> None:
        """Have so many slots for states, on so many of which sequences may run at a time.

        Raises:
            RuntimeError: steps are recorded over the slots that there are.
        """
        if self.graphs is not None:
            raise RuntimeError("steps are recorded over other slots for states")
        self.states = self._state_pool(slots=slots, rings=rings)
        self.tails = KVPool(
            self.model.config,
            num_blocks=slots,
            block_size=self.block_size,
            dtype=self.pool.dtype,
            device=self.model.device,
        )

    def _state_pool(self, *, slots: int, rings: int) -> StatePool:
        model = self.model
        return StatePool(
            model.config, num_slots=slots, num_rings=rings, dtype=model.dtype, device=model.device
        )

    @property
    def rank(self) -> int:
        """Which of the model's ranks this is, 0 where there is one."""
        return 0 if self._ranks is None else self._ranks.partition.rank

    @property
    def leads(self) -> bool:
        """Whether steps are planned here."""
        return self.rank == 0

    @property
    def followers(self) -> Followers | None:
        """The other ranks, where this one leads."""
        return None if self._ranks is None else self._ranks.followers

    def change_state(self, order: SlotOrder | SaveBelow) -> bool:
        """Carry out an order on slots for states, on all ranks; False where a state that is to be
        kept is not finite on one of them. What fails here is not told to the others. One that is
        to be copied below is brought to its position, no more.

        Raises:
            ValueError: see ``StateChanges.carry_out``.
            RunnerBroken: another rank is gone.
        """
        if self.states is None or self.tails is None:
            raise ValueError("an order on states, and there are none")
        whole = StateChanges(self.states, self.tails, self.pool).carry_out(order)
        if self._ranks is None:
            return whole
        others = self.followers
        if others is not None:
            others.send_state(order)
        if not keeps_state(order):
            return whole
        try:
            return self._ranks.all_can(whole)
        except Exception as error:
            if others is None:
                raise
            raise others.broken(error) from error

    def forward(self, batch: StepBatch, tokens: Tensor | None = None) -> Tensor:
        """Compute a step: write its KV, return logits of the rows asked for.

        Args:
            batch: the step.
            tokens: [T] int64 on the model's device, in place of the batch's own, for a step
                whose tokens the host does not know yet.

        Returns:
            [R, vocab] float32 (float64 for float64 models); R may be 0. To be used before the
            next call.
        """
        if self.followers is not None:
            return self._forward_on_all(self.followers, batch, tokens)
        if self.graphs is not None:
            with torch.inference_mode():
                logits = self.graphs.forward(batch, tokens)
            if logits is not None:
                return logits
        return self.run_as_it_comes(batch, tokens)

    def _forward_on_all(self, others: Followers, batch: StepBatch, tokens: Tensor | None) -> Tensor:
        """``forward`` of the leading rank. What fails once the others know of the step leaves them
        where nobody can follow: the runner is broken."""
        bucket = None if self.graphs is None else self.graphs.chosen(batch)
        self._rests = False
        others.send_step(batch, tokens, bucket)
        try:
            return self.run_in(bucket, batch, tokens)
        except Exception as error:
            raise others.broken(error) from error

    def run_in(self, bucket: Bucket | None, batch: StepBatch, tokens: Tensor | None) -> Tensor:
        """``forward`` in the recording of ``bucket``; None: as it comes.

        Raises:
            KeyError: there is no such recording.
        """
        if bucket is None:
            return self.run_as_it_comes(batch, tokens)
        if self.graphs is None:
            raise KeyError(bucket)
        with torch.inference_mode():
            return self.graphs.run_in(bucket, batch, tokens)

    def rest(self) -> None:
        """Note that no step is computed until the next one is."""
        self.pool.rest()
        if self.followers is not None and not self._rests:
            self._rests = True
            self.followers.send_rest()

    def pop_rank_wait_s(self) -> float:
        """Seconds in which ranks' sums were made and waited for, since this was asked last."""
        return 0.0 if self._ranks is None else self._ranks.pop_wait_s()

    def close(self) -> None:
        """End the other ranks, if there are any. No step can be computed afterwards."""
        if self._ranks is not None:
            self._ranks.close()

    def run_as_it_comes(self, batch: StepBatch, tokens: Tensor | None) -> Tensor:
        """``forward`` without a recording."""
        device, window = self.model.device, batch.window
        if (window is None) != (self.window_blocks is None):
            raise ValueError("a step without window blocks, or with such as the pool has not")
        highest = None if window is None else int(window.slots.max()) // self.block_size
        self.pool.reach(int(batch.slots.max()) // self.block_size, highest)
        states = None
        if self.states is not None:
            states = self.states.step(batch.state_slots, batch.first_positions, batch.query_starts)
        inputs = StepInputs(
            states=states,
            token_ids=upload(batch.token_ids, device) if tokens is None else tokens,
            positions=upload(batch.positions, device),
            slots=upload(batch.slots, device),
            logit_rows=upload(batch.logit_rows, device),
            all_rows=len(batch.logit_rows) == batch.num_tokens,
            highest_position=int(batch.context_lengths.max()) - 1,
            layout=batch.layout(device),
            near=None if window is None else (upload(window.slots, device), window.layout(device)),
            adapters=batch.adapter_rows(device),
        )
        with torch.inference_mode():
            return self.model.decoder.forward(inputs, self.pool)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """``forward`` of a step laid out from its sequences."""
        return self.forward(StepBatch.build(inputs, self.block_size))

    def run_trial(self, inputs: list[SequenceInput]) -> Tensor:
        """The same of a step whose results nobody looks at, in any window blocks."""
        return self.run(self._for_trial(inputs))

    def _for_trial(self, inputs: list[SequenceInput]) -> list[SequenceInput]:
        window, count = self.model.config.window, self.window_blocks
        if window is None or count is None:
            return inputs
        size = self.block_size
        return [
            with_any_window(entry, window=window, num_blocks=count, block_size=size)
            for entry in inputs
        ]


def load_runner(
    config: EngineConfig,
    *,
    folder_read: Callable[[], None] = lambda: None,
    ranks: RankLink | None = None,
) -> ModelRunner:
    """Set up threads, load the model and make its pool, as ``config`` says.

    Args:
        folder_read: called before the first weight is taken.
        ranks: of a model that several compute; what is loaded is one's part.

    Raises:
        LoadError: the model cannot be served.
    """
    threads = config.threads or max(1, available_cores() // config.tensor_parallel)
    share_work(threads)
    device = resolve_device(config.device)
    if ranks is not None:
        device = device_of(ranks.partition, device)
        _warn_of_cores(ranks.partition, device)
    check_quantization(config.quantization, device)
    model = load_model(
        config.model,
        dtype=resolve_dtype(config.dtype, device),
        device=device,
        bits=BITS[config.quantization],
        seed=config.seed,
        max_context_tokens=config.max_context_tokens,
        progress=sys.stderr.isatty(),
        machine_folder=config.startup_profile_folder,
        folder_read=folder_read,
        ranks=ranks,
        adapters=config.adapters,
    )
    plan = plan_memory(
        config,
        model.config,
        dtype=model.dtype,
        device=device,
        free_bytes=lambda: share_of_free(free_after_loading(device), device, config),
    )
    room = Room(
        plan.num_blocks, plan.states.slots, plan.states.rings, window_blocks=plan.window_blocks or 0
    )
    if ranks is not None:
        room = ranks.room(room)
    share_work(threads, compiled=device.type == "cpu" and model.decoder.is_compiled)
    return ModelRunner(
        model,
        num_blocks=room.num_blocks,
        block_size=config.block_size,
        kv_dtype=plan.kv_dtype,
        recording=_recording(config) if _records(model) else None,
        states=(
            replace(plan.states, slots=room.state_slots, rings=room.state_rings)
            if room.state_slots
            else None
        ),
        window_blocks=room.window_blocks or None,
    )


def device_of(partition: Partition, device: torch.device) -> torch.device:
    """A rank's own device.

    Raises:
        LoadError: there are more ranks than GPUs.
    """
    if device.type != "cuda":
        return device
    there = torch.cuda.device_count()
    if partition.ranks > there:
        raise LoadError(f"--tensor-parallel {partition.ranks}: torch sees {there} GPUs, one a rank")
    own = torch.device("cuda", partition.rank)
    torch.cuda.set_device(own)
    return own


def _warn_of_cores(partition: Partition, device: torch.device) -> None:
    cores = available_cores()
    if partition.leads and device.type == "cpu" and partition.ranks > cores:
        log.warning("--tensor-parallel %d on %d cores: ranks take turns", partition.ranks, cores)


def share_of_free(free_bytes: int, device: torch.device, config: EngineConfig) -> int:
    """What one rank may have of the memory that is free: a CPU's is all ranks' together."""
    return free_bytes // config.tensor_parallel if device.type == "cpu" else free_bytes


def check_quantization(quantization: Quantization, device: torch.device) -> None:
    """Raises LoadError: the device has no products for it."""
    if quantization == "fp8" and device.type == "cpu":
        raise LoadError("quantization fp8 is for a GPU; --quantization int8 is for a CPU")
    if quantization in ("int8", "int4") and device.type == "cuda":
        raise LoadError(
            f"quantization {quantization} is for a CPU: on a GPU it would widen whole "
            "matrices for each product; --quantization fp8 is for GPUs"
        )


def share_work(threads: int, *, compiled: bool = False) -> None:
    """Have this process compute with so many threads: torch's, or, where compiled kernels do all
    that is worth more than one (``Decoder.is_compiled``), theirs."""
    torch.set_num_threads(1 if compiled else threads)
    own_threads(threads if compiled else None)


def _recording(config: EngineConfig) -> Recording:
    return Recording(
        record=CudaRecorder(),
        max_sequences=config.max_running,
        max_tokens=config.max_batch_tokens,
    )


def _records(model: LoadedModel) -> bool:
    """Whether steps of ``model`` can be recorded. Experts that cannot be stacked ask the host how
    many tokens each of them has, and so do the torch versions of the kernels, which float64 takes
    and heads that Triton's have no room for."""
    on_triton = wants_triton(model.device) and model.dtype != torch.float64
    if not all(fits_triton(each.head_dim, each.values_dim) for each in model.config.attention):
        return False
    return model.device.type == "cuda" and on_triton and not model.decoder.waits_for_the_host


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_device(name: DeviceName) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise LoadError("device cuda was asked for, torch sees no GPU; use --device cpu")
    return torch.device(name)


def resolve_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    library = native_library(torch.bfloat16)
    return torch.bfloat16 if library is not None and library.has_linear else torch.float32


def free_after_loading(device: torch.device) -> int:
    """The memory to be had now on ``device``, also of what loading left behind."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return free_memory_bytes(device)
