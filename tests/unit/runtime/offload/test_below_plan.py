"""How memory below the device is split between KV and states."""

import pytest

from runtime.config import ConfigError, EngineConfig
from runtime.model.config import LoadError
from runtime.model.rank_link import RoomBelow
from runtime.model.state_plan import StatePlan
from runtime.offload.below_plan import WindowParts, plan_below
from runtime.offload.disk import slot_bytes
from runtime.offload.state_file import state_slot_bytes

BLOCK, SLOT = 10_000, 50_000
STATES = StatePlan(slots=9, rings=2, num_bytes=9 * SLOT, slot_bytes=SLOT, share=0.25)


def plan(states: StatePlan = STATES, **settings: object) -> RoomBelow:
    return plan_below(EngineConfig(**settings), states, BLOCK)  # type: ignore[arg-type]


def test_without_states_keys_and_values_get_all_of_it() -> None:
    assert plan(StatePlan(), host_kv_bytes=10 * BLOCK) == RoomBelow(host_blocks=10)
    assert plan() == RoomBelow()


def test_a_part_of_the_blocks_has_room_for_rows_of_windows() -> None:
    near = WindowParts(window=128, parts=(2000, 8000))
    config = EngineConfig(host_kv_bytes=10_000_000, disk_kv_bytes=1 << 20, disk_kv_folder="f")
    found = plan_below(config, StatePlan(), BLOCK, near)
    assert found.host_blocks > 10_000_000 // BLOCK
    assert 0 < found.host_window_blocks < found.host_blocks
    taken = found.host_blocks * 2000 + found.host_window_blocks * 8000
    assert 10_000_000 - BLOCK < taken <= 10_000_000
    assert found.disk_blocks == (1 << 20) // slot_bytes(BLOCK), "a slot has room for all rows"
    small = plan_below(EngineConfig(host_kv_bytes=3 * BLOCK), StatePlan(), BLOCK, near)
    assert (small.host_blocks, small.host_window_blocks) == (3, 3)
    with pytest.raises(LoadError, match="host_kv_bytes is 9: a block takes 10000"):
        plan_below(EngineConfig(host_kv_bytes=9), StatePlan(), BLOCK, near)


def test_states_get_the_share_that_they_have_on_the_device() -> None:
    found = plan(host_kv_bytes=4_000_000)
    assert (found.host_blocks, found.host_states) == (300, 20)


def test_what_is_named_for_states_is_beside_what_is_for_keys_and_values() -> None:
    found = plan(host_kv_bytes=4_000_000, host_state_bytes=6 * SLOT + 1)
    assert (found.host_blocks, found.host_states) == (400, 6)
    assert plan(host_kv_bytes=4_000_000, host_state_bytes=0).host_states == 0


def test_the_disk_is_split_like_host_memory() -> None:
    found = plan(
        host_kv_bytes=3_000_000,
        host_state_bytes=1_000_000,
        disk_kv_bytes=40_000_000,
        disk_kv_folder="f",
    )
    assert found.disk_blocks == 30_000_000 // slot_bytes(BLOCK)
    assert found.disk_states == 10_000_000 // state_slot_bytes(SLOT)


def test_no_state_is_on_the_disk_without_a_slot_that_it_passes_through() -> None:
    found = plan(host_kv_bytes=SLOT, disk_kv_bytes=40_000_000, disk_kv_folder="f")
    assert (found.host_states, found.disk_states) == (0, 0)
    assert found.disk_blocks > 0


def test_memory_for_less_than_one_is_refused() -> None:
    with pytest.raises(LoadError, match="host_state_bytes is 9: a state and its tail take 50000"):
        plan(host_kv_bytes=4_000_000, host_state_bytes=9)
    with pytest.raises(LoadError, match="host_kv_bytes is 9: a block takes 10000"):
        plan(host_kv_bytes=9)
    with pytest.raises(ConfigError, match="a state is of no use alone"):
        plan(host_state_bytes=9 * SLOT)
