"""How many state slots a model with recurrent layers gets beside its KV blocks.

A slot for each sequence that may run, and room for two and a half snapshots of each session that
the KV has room for: its header's, its last turn's end, and now and then the one before. Arithmetic
only: no tensors.
"""

import math
from dataclasses import dataclass

import torch

from runtime.config import BOUNDS, EngineConfig
from runtime.model.config import LoadError, ModelConfig
from runtime.model.kv_pool import block_bytes
from runtime.model.state_pool import ring_bytes, state_bytes

_SESSION_TOKENS = 8192
_SNAPSHOTS = 2.5
"""Snapshots that one session is counted with."""
_FEWEST_SNAPSHOTS = 32
_PAUSED_SHARE = 0.25
"""The share of slots, more than sequences may run, for those that are paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """Slots, and how many of them may be run on at a time."""

    slots: int = 0
    rings: int = 0
    num_bytes: int = 0
    """Memory of all of it, a block for each slot included."""
    slot_bytes: int = 0
    """Of a slot and its block: what a copy in another tier takes."""
    share: float = 0.0
    """Of the memory for KV and states, that of slots."""


def plan_states(
    config: EngineConfig,
    model: ModelConfig,
    *,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    kv_bytes: int,
) -> StatePlan:
    """The slots for states within ``kv_bytes`` of memory for states and KV together; nothing for
    other models.

    Raises:
        LoadError: fewer slots than sequences that may run, or they would take most of the memory.
    """
    if not model.recurrent:
        return StatePlan()
    running = config.max_running
    block = block_bytes(model, config.block_size, kv_dtype)
    each, ring = state_bytes(model, dtype) + block, ring_bytes(model, dtype)
    most_rings = running + math.ceil(_PAUSED_SHARE * running)
    slots = config.state_slots
    if config.state_share is not None:
        memory = kv_bytes * config.state_share // 100
        slots = max(0, memory - most_rings * ring) // each
    if slots is None:
        sessions = kv_bytes * config.block_size / block / _SESSION_TOKENS
        slots = running + max(_FEWEST_SNAPSHOTS, math.ceil(_SNAPSHOTS * sessions))
    if slots < running:
        least = -(-100 * (running * each + most_rings * ring) // max(1, kv_bytes))
        raise _too_few(config, slots, least)
    rings = min(slots, most_rings)
    total = slots * each + rings * ring
    chosen = config.num_blocks is not None or config.state_share is not None
    if not chosen and 2 * total > kv_bytes:
        raise LoadError(
            f"{slots} state slots of {each} bytes and {rings} of {ring} for those that run take "
            f"{total} bytes, more than half of the {kv_bytes} for KV and states: give a smaller "
            f"max_running than {running}, or a larger kv_cache_bytes"
        )
    return StatePlan(
        slots=slots,
        rings=rings,
        num_bytes=total,
        slot_bytes=each,
        share=slots * each / (kv_bytes + (total if config.num_blocks is not None else 0)),
    )


def _too_few(config: EngineConfig, slots: int, least_share: int) -> LoadError:
    """``least_share``: the percentage that would do."""
    running, share = config.max_running, config.state_share
    fewer = f", or a max_running of at most {slots}" if slots else ", or a smaller max_running"
    fewer = fewer if running > 1 else ""
    why = f"and max_running {running}: each sequence that runs has one, so give"
    if share is None:
        return LoadError(f"state_slots is {slots} {why} at least {running} slots{fewer}")
    wanted = f"a state_share of at least {least_share}"
    if least_share > BOUNDS["state_share"][1]:
        wanted = "more memory for KV and states"
    return LoadError(f"state_share is {share} %, which holds {slots} slots, {why} {wanted}{fewer}")
