import pytest
import torch

from runtime.config import ConfigError, EngineConfig
from runtime.model.config import LoadError
from runtime.model.presets import random_model_config
from runtime.model.state_plan import StatePlan, plan_states


def plan(model: str = "lfm2-tiny", kv_bytes: int = 1 << 26, **settings: object) -> StatePlan:
    config = EngineConfig(model=f"random:{model}", **settings)  # type: ignore[arg-type]
    return plan_states(
        config,
        random_model_config(model),
        dtype=torch.float32,
        kv_dtype=torch.float32,
        kv_bytes=kv_bytes,
    )


def test_a_model_without_recurrent_layers_has_no_slots() -> None:
    assert plan("qwen3-tiny") == StatePlan()


def test_each_sequence_that_runs_has_a_slot_and_sessions_have_snapshots() -> None:
    few, many = plan(max_running=4), plan(max_running=4, kv_bytes=1 << 30)
    assert few.slots >= 4 + 32
    assert many.slots > few.slots
    assert few.rings == 5
    assert plan(max_running=4, state_slots=9).slots == 9


def test_fewer_slots_than_sequences_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(LoadError, match="state_slots is 3 and max_running 4"):
        plan(max_running=4, state_slots=3)


def test_slots_that_take_most_of_the_memory_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(LoadError, match="more than half of the 100000"):
        plan(max_running=64, kv_bytes=100_000)


def test_a_share_of_the_memory_becomes_whole_slots() -> None:
    third = plan(max_running=4, state_share=30)
    assert 0.25 * (1 << 26) < third.num_bytes <= 0.3 * (1 << 26)
    assert plan(max_running=4, state_share=60).slots > 1.9 * third.slots
    with pytest.raises(LoadError, match="state_share is 1 %, which holds 0 slots, and max_running"):
        plan(max_running=64, state_share=1, kv_bytes=100_000)
    with pytest.raises(ConfigError, match="state_slots and state_share are both given"):
        plan(max_running=4, state_share=60, state_slots=9)
