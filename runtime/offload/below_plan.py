"""How much memory below the device KV gets, and how much states: arithmetic, no tensors.

Always true: without recurrent layers KV gets all of it.
"""

from dataclasses import dataclass

from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.model.rank_link import RoomBelow
from runtime.model.state_plan import StatePlan
from runtime.model.window_plan import plan_windows_below
from runtime.offload.disk import slot_bytes
from runtime.offload.state_file import state_slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowParts:
    """Rows behind windows are given back on the device."""

    window: int
    """Tokens that layers with a window see."""
    parts: tuple[int, int]
    """Bytes of a block over the layers that see all, and over those with a window."""


def plan_below(
    config: EngineConfig, states: StatePlan, block: int, near: WindowParts | None = None
) -> RoomBelow:
    """The room that ``config`` gives below the device; of several ranks each has an equal share of
    the memory, for its part of each block.

    Args:
        states: on the device.
        block: bytes of a block of KV over all layers, or of a rank's part of it; on disk each
            block takes them.
        near: None where every block has all rows.

    Raises:
        LoadError: not for one block, or not for one state where there are states.
    """
    if not config.host_kv_bytes:
        return RoomBelow()
    ranks, disk = config.tensor_parallel, config.disk_kv_bytes // config.tensor_parallel
    kv, for_states = _split_host(config, states)
    disk_for_states = int(disk * (for_states / (kv + for_states)))
    slot = states.slot_bytes
    host_states = for_states // ranks // slot if slot else 0
    host_blocks, host_window_blocks = kv // ranks // block, 0
    if near is not None:
        host_blocks, host_window_blocks = plan_windows_below(
            config, near.window, near.parts, kv // ranks
        )
    room = RoomBelow(
        host_blocks=host_blocks,
        host_window_blocks=host_window_blocks,
        host_states=host_states,
        disk_blocks=(disk - disk_for_states) // slot_bytes(block),
        disk_states=disk_for_states // state_slot_bytes(slot) if host_states else 0,
    )
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    if not room.host_blocks:
        raise LoadError(f"host_kv_bytes is {config.host_kv_bytes}: a block takes {block}{each}")
    if config.disk_kv_bytes and not room.disk_blocks:
        took = slot_bytes(block)
        raise LoadError(f"disk_kv_bytes is {config.disk_kv_bytes}: a block takes {took}{each}")
    if config.host_state_bytes and slot and not room.host_states:
        raise LoadError(
            f"host_state_bytes is {config.host_state_bytes}: a state and its tail take {slot}{each}"
        )
    return room


def _split_host(config: EngineConfig, states: StatePlan) -> tuple[int, int]:
    """Host memory for KV, and for states: a part of the former unless it is named."""
    if not states.slots:
        return config.host_kv_bytes, 0
    if config.host_state_bytes is not None:
        return config.host_kv_bytes, config.host_state_bytes
    for_states = int(config.host_kv_bytes * min(0.9, states.share))
    return config.host_kv_bytes - for_states, for_states
