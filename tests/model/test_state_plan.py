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


def refusal(**settings: object) -> str:
    with pytest.raises(LoadError) as refused:
        plan(**settings)  # type: ignore[arg-type]
    return str(refused.value)


def test_a_share_that_is_too_small_is_refused_with_one_that_would_do() -> None:
    said = refusal(max_running=40, state_share=1)
    share = int(said.partition("a state_share of at least ")[2].partition(",")[0])
    assert plan(max_running=40, state_share=share).slots >= 40
    assert f"at least {share}," in refusal(max_running=40, state_share=share - 1)


def test_no_refusal_offers_no_running_turn() -> None:
    said = refusal(max_running=64, state_share=1, kv_bytes=100_000)
    assert said.endswith("so give more memory for KV and states, or a smaller max_running")
    assert refusal(max_running=4, state_slots=3).endswith("or a max_running of at most 3")
    assert refusal(max_running=1, state_share=1, kv_bytes=10_000).endswith("for KV and states")
