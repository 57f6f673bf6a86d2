"""A report on a model's files and the memory that it would take here, for ``keepwarm doctor``.

Headers alone are read. What is free is what is free now: beside a server that runs it is less.
"""

from dataclasses import dataclass

import torch

from runtime.config import EngineConfig
from runtime.model.adapters import look_at
from runtime.model.config import LoadError, ModelConfig
from runtime.model.kv_pool import parted_bytes
from runtime.model.memory_plan import plan_memory
from runtime.model.partition import part_of
from runtime.model.runner import BITS, check_quantization, device_of, resolve_device, resolve_dtype
from runtime.model.sources import ModelSource, check_context, find_source
from runtime.model.weights import check_memory, contents_of, free_memory_bytes
from runtime.offload.below_plan import WindowParts, plan_below
from runtime.process.rank_processes import check_ranks, partition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A model as a server with some configuration would have it."""

    fault: str | None = None
    """Why there is none; then nothing else is said."""
    form: str = ""
    """How its weights are kept."""
    left: str = ""
    """Parts of its files that are knowingly not read."""
    dtype: str = ""
    device: str = ""
    weight_bytes: int = 0
    adapter_bytes: int = 0
    """Beside the weights; of the whole adapters, whatever part of them a rank has."""
    free_bytes: int = 0
    kv_bytes: int = 0
    """Memory for keys and values, states included."""
    token_bytes: int = 0
    """Bytes of a token's keys and values."""
    tokens: int = 0
    """That there is room for on the device."""
    host_tokens: int = 0
    """Tokens of KV that host memory holds."""
    host_near_tokens: int = 0
    """The part of these that layers with a window have room for, where they do not keep all."""
    context: int = 0
    """Tokens of the longest transcript."""
    state_slots: int | None = None
    """State slots of a model with recurrent layers, and bytes of one."""
    state_bytes: int = 0
    state_share: float = 0.0
    """Of the memory for keys and values and states, that of states."""
    window_tokens: int = 0
    """Tokens that the layers with a window see, the longest of them; 0 where none has one."""
    windowed_share: float = 0.0
    """Of the bytes of a token, those of layers with a window."""
    near_tokens: int = 0
    """Tokens of which those layers have room, where their rows are given back behind it; 0: they
    keep all."""
    near_token_bytes: int = 0
    """Bytes of such a token; ``token_bytes`` are those of the other layers then."""
    host_states: int = 0
    """Slots for states in host memory, and on disk."""
    disk_states: int = 0
    ranks: int = 1
    """Processes that have equal parts; the memory told of is each one's."""


def model_report(config: EngineConfig) -> ModelReport:
    """Look at headers and work it out."""
    try:
        return _report(config)
    except LoadError as error:
        return ModelReport(fault=str(error))


def _report(config: EngineConfig) -> ModelReport:
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    found = find_source(config.model, max_context_tokens=config.max_context_tokens)
    check_context(config.model, found.config, config.max_context_tokens)
    bits = BITS[config.quantization]
    check_quantization(config.quantization, device)
    part, sharing = _part(config, found, device)
    check_memory(config.model, part, dtype, device, bits, sharing=sharing)
    partition = partition_of(config, 0) if config.tensor_parallel > 1 else None
    contents = contents_of(found, dtype, device, bits, partition)
    numbers = sum(look_at(source).summary.numbers for source in config.adapters)
    held, adapted = contents.held_bytes, numbers * dtype.itemsize
    free = free_memory_bytes(device) // sharing
    left = max(0, free - held - adapted)
    plan = plan_memory(config, part, dtype=dtype, device=device, free_bytes=lambda: left)
    windows = [mixer.window for mixer in part.attention if mixer.window is not None]
    tokens = plan.num_blocks * config.block_size
    far, near = parted_bytes(part, config.block_size, plan.kv_dtype)
    near_blocks = plan.window_blocks or 0
    rows: WindowParts | None = None
    if near_blocks and part.window is not None:
        rows = WindowParts(window=part.window, parts=(far, near))
    below = plan_below(config, plan.states, plan.block_bytes, rows)
    beside = 0 if config.num_blocks is None else plan.states.num_bytes
    return ModelReport(
        form=contents.form,
        left=contents.left,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        weight_bytes=held,
        adapter_bytes=adapted,
        free_bytes=free,
        kv_bytes=plan.kv_bytes,
        token_bytes=(far if near_blocks else plan.block_bytes) // config.block_size,
        tokens=tokens,
        host_tokens=below.host_blocks * config.block_size,
        host_near_tokens=below.host_window_blocks * config.block_size,
        context=config.max_context_tokens or found.config.max_context_tokens,
        state_slots=plan.states.slots or None,
        state_bytes=plan.states.slot_bytes,
        state_share=plan.states.num_bytes / (plan.kv_bytes + beside),
        window_tokens=max(windows, default=0),
        windowed_share=near / plan.block_bytes,
        near_tokens=near_blocks * config.block_size,
        near_token_bytes=near // config.block_size if near_blocks else 0,
        host_states=below.host_states,
        disk_states=below.disk_states,
        ranks=config.tensor_parallel,
    )


def _part(
    config: EngineConfig, found: ModelSource, device: torch.device
) -> tuple[ModelConfig, int]:
    """What one rank has, and how many have the device's memory together."""
    ranks = config.tensor_parallel
    if ranks == 1:
        return found.config, 1
    check_ranks(config)
    partition = partition_of(config, 0)
    device_of(partition, device)
    return part_of(config.model, found.config, partition), ranks if device.type == "cpu" else 1
