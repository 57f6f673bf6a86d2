"""Memory of a model and of its keys and values: arithmetic, whether or not it is loaded.

``ModelRunner`` holds what is planned here; ``keepwarm doctor`` tells it of models that are not
loaded. What is free is asked of whoever calls.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.attention import MOST_ON_TRITON
from kernels.quantised_kv import FP8
from runtime.config import EngineConfig
from runtime.model.config import Attention, LoadError, ModelConfig
from runtime.model.kv_pool import block_bytes, parted_bytes
from runtime.model.layers import WeightBits
from runtime.model.state_plan import StatePlan, plan_states
from runtime.model.window_plan import plan_windows

WIDTHS: dict[WeightBits, float] = {8: 1, 4: 0.5, "fp8": 1}
"""Bytes of a weight that is quantised while it is loaded."""
_KV_IN_8_BITS = {"int8": (torch.int8, "cpu"), "fp8": (FP8, "cuda")}
"""How keys and values may be kept, and where."""
_KV_SHARE_OF_FREE_MEMORY = {"cuda": 0.8, "cpu": 0.25}
"""The share of free memory that KV gets by default. A GPU keeps a fifth for what steps need and for
what is recorded of them."""
_KV_BYTES_ON_CPU = 4 << 30
"""Default ceiling on a CPU, where the memory belongs to others as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """A plan for the memory beside the weights."""

    num_blocks: int
    window_blocks: int | None
    """Blocks of layers with a window, where rows behind it are given back; None: every block."""
    block_bytes: int
    """Of a block over all layers."""
    kv_dtype: torch.dtype
    kv_bytes: int
    """Bytes for KV, and for states where there are any."""
    states: StatePlan


def plan_memory(
    config: EngineConfig,
    model: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    free_bytes: Callable[[], int],
) -> MemoryPlan:
    """How much of what is free once the weights are there is for KV and states.

    Raises:
        LoadError: it is too little, or KV cannot be kept so on this device.
    """
    kv_dtype = dtype
    if config.kv_cache_dtype != "auto":
        kv_dtype = _kv_dtype_on(device, config.kv_cache_dtype)
        longest = max(group.shape.size for group in model.kv_groups)
        if kv_dtype == FP8 and longest > MOST_ON_TRITON:
            raise LoadError(
                f"kv_cache_dtype fp8 is not for rows of {longest} numbers, {MOST_ON_TRITON} "
                "at most: leave it out"
            )
        if model.ratios:
            raise LoadError(
                f"kv_cache_dtype {config.kv_cache_dtype} is not for compressed attention, which "
                "keeps what entries are made of as it is: leave it out"
            )
        if model.top_k is not None:
            raise LoadError(
                f"kv_cache_dtype {config.kv_cache_dtype} is not for sparse attention, which keeps "
                "index keys as they are: leave it out"
            )
    for mixer in model.attention:
        choice = mixer.choice if isinstance(mixer, Attention) else None
        if choice is not None and choice.size % config.block_size:
            raise LoadError(
                f"block_size {config.block_size} does not divide the {choice.size} tokens of "
                "blocks that sparse attention chooses"
            )
    block = block_bytes(model, config.block_size, kv_dtype)
    budget = _budget(config, block, device, free_bytes)
    states = plan_states(config, model, dtype=dtype, kv_dtype=kv_dtype, kv_bytes=budget)
    num_blocks, window_blocks = config.num_blocks, None
    if num_blocks is None:
        num_blocks = _blocks_that_fit(block, budget - states.num_bytes)
    if model.window is not None:
        parts = parted_bytes(model, config.block_size, kv_dtype)
        found = plan_windows(config, model.window, parts, budget)
        if found is not None:
            num_blocks, window_blocks = found
            budget = num_blocks * parts[0] + window_blocks * parts[1]
    return MemoryPlan(
        num_blocks=num_blocks,
        window_blocks=window_blocks,
        block_bytes=block,
        kv_dtype=kv_dtype,
        kv_bytes=budget,
        states=states,
    )


def weight_bytes(model: ModelConfig, dtype: torch.dtype, bits: WeightBits) -> int:
    """Memory of a model's weights that no checkpoint keeps in few bits; scales are not counted."""
    return bytes_of_weights(model, WIDTHS.get(bits, dtype.itemsize), dtype.itemsize)


def bytes_of_weights(model: ModelConfig, width: float, plain: int) -> int:
    """Memory of weights of ``width`` bytes each; tables that stay as they are have ``plain``."""
    tables = model.table_parameters
    return int((model.num_parameters - tables) * width) + tables * plain


def bytes_of_part(held_bytes: int, whole: ModelConfig, part: ModelConfig, width: int) -> int:
    """Memory of one rank's part of weights that take ``held_bytes`` together.

    Args:
        part: the rank's decoder.
        width: bytes of a number in the model's dtype, in which is kept what every rank has whole.
    """
    if part is whole:
        return held_bytes
    uncut = whole.uncut_parameters
    same = min(held_bytes, uncut * width)
    cut = (part.num_parameters - uncut) / max(1, whole.num_parameters - uncut)
    return same + int((held_bytes - same) * cut)


def _kv_dtype_on(device: torch.device, name: str) -> torch.dtype:
    dtype, home = _KV_IN_8_BITS[name]
    if device.type != home:
        (other,) = _KV_IN_8_BITS.keys() - {name}
        raise LoadError(
            f"kv_cache_dtype {name} is not for {device.type}; --kv-cache-dtype {other} is"
        )
    return dtype


def _budget(
    config: EngineConfig, block: int, device: torch.device, free_bytes: Callable[[], int]
) -> int:
    if config.num_blocks is not None:
        return config.num_blocks * block
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes
    budget = int(free_bytes() * _KV_SHARE_OF_FREE_MEMORY[device.type])
    return min(budget, _KV_BYTES_ON_CPU) if device.type == "cpu" else budget


def _blocks_that_fit(block: int, budget: int) -> int:
    if budget < 2 * block:
        raise LoadError(
            f"KV memory of {budget} bytes holds {budget // block} blocks of {block} bytes, "
            "at least 2 are needed: give a larger kv_cache_bytes or a smaller block_size"
        )
    return budget // block
