"""What an engine configuration refuses."""

from typing import Any

import pytest

from runtime.config import ConfigError, EngineConfig


def test_defaults_are_within_their_bounds() -> None:
    assert EngineConfig(model="random:qwen3-tiny", threads=3).threads == 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"dtype": "int8"}, "dtype is 'int8', not one of auto, bfloat16"),
        ({"device": "tpu"}, "device is 'tpu', not one of auto, cpu, cuda"),
        ({"quantization": "int3"}, "quantization is 'int3', not one of"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4', not one of"),
        ({"block_size": 24}, "block_size is 24, not a power of two"),
        ({"block_size": 2}, r"block_size is 2, not in 4..256"),
        ({"num_blocks": 1}, r"num_blocks is 1, not in 2"),
        ({"num_blocks": 8, "kv_cache_bytes": 1 << 20}, "both given"),
        ({"host_kv_bytes": -1}, r"host_kv_bytes is -1, not in 0"),
        ({"disk_kv_bytes": 1 << 20, "disk_kv_folder": "x"}, "needs host_kv_bytes"),
        ({"disk_kv_bytes": 1 << 20, "host_kv_bytes": 1 << 20}, "and disk_kv_folder as well"),
        ({"disk_kv_folder": "x"}, "but disk_kv_bytes is 0"),
        ({"tensor_parallel": 0}, r"tensor_parallel is 0, not in 1..64"),
        ({"tensor_parallel": 65}, r"tensor_parallel is 65, not in 1..64"),
        ({"expert_parallel": True}, "but tensor_parallel is 1"),
        ({"threads": 0}, r"threads is 0, not in 1..1024"),
        ({"max_batch_tokens": True}, "max_batch_tokens is True, an integer is needed"),
        ({"max_running": 1.5}, "max_running is 1.5, an integer is needed"),
        ({"max_waiting": -1}, r"max_waiting is -1, not in 0"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808, not in"),
    ],
)
def test_a_setting_out_of_bounds_is_named_with_its_bound(
    setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**setting)


@pytest.mark.parametrize("name", ["load_hung_after_s", "load_limit_s"])
def test_the_bounds_of_loading_hold_exactly(name: str) -> None:
    for value in (0, 1, 1 << 20):
        within: dict[str, Any] = {name: value}
        assert getattr(EngineConfig(**within), name) == value
    for value in (-1, (1 << 20) + 1):
        beyond: dict[str, Any] = {name: value}
        with pytest.raises(ConfigError, match=f"{name} is {value}, not in 0..1048576"):
            EngineConfig(**beyond)
