"""Keys and values get what is left of the memory, by rules that need no model in it."""

from dataclasses import replace

import pytest
import torch

from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.model.kv_pool import block_bytes, parted_bytes
from runtime.model.memory_plan import MemoryPlan, plan_memory, weight_bytes
from runtime.model.presets import random_model_config

CONFIG = random_model_config("qwen3-tiny")
BLOCK = block_bytes(CONFIG, 16, torch.float32)


def planned(device: str, free: int = 1 << 40, **own: object) -> MemoryPlan:
    return plan_memory(
        EngineConfig(model="random:qwen3-tiny", **own),  # type: ignore[arg-type]
        CONFIG,
        dtype=torch.float32,
        device=torch.device(device),
        free_bytes=lambda: free,
    )


@pytest.mark.parametrize(
    ("device", "free", "own", "kv_bytes"),
    [
        ("cuda", 1 << 40, {}, int(0.8 * (1 << 40))),
        ("cpu", 1 << 40, {}, 4 << 30),
        ("cpu", 8 << 30, {}, 2 << 30),
        ("cpu", 0, {"kv_cache_bytes": 5 << 20}, 5 << 20),
        ("cpu", 0, {"num_blocks": 7}, 7 * BLOCK),
    ],
)
def test_a_share_of_what_is_free_is_for_kv_unless_it_is_said(
    device: str, free: int, own: dict[str, object], kv_bytes: int
) -> None:
    plan = planned(device, free, **own)
    assert plan.kv_bytes == kv_bytes
    assert plan.num_blocks == kv_bytes // BLOCK
    assert plan.states.slots == 0


def test_too_little_is_refused_with_what_is_needed() -> None:
    with pytest.raises(LoadError, match="at least 2 are needed: give a larger kv_cache_bytes"):
        planned("cpu", 4 * BLOCK)


@pytest.mark.parametrize(
    ("device", "name", "other"), [("cpu", "fp8", "int8"), ("cuda", "int8", "fp8")]
)
def test_kv_in_8_bits_has_a_kind_for_each_device(device: str, name: str, other: str) -> None:
    with pytest.raises(LoadError, match=f"--kv-cache-dtype {other} is"):
        planned(device, kv_cache_dtype=name)
    assert planned(device, kv_cache_dtype=other).block_bytes < BLOCK


def test_tables_that_are_looked_up_are_counted_as_they_are_kept() -> None:
    """Of Gemma 4 that of layers' inputs, whatever the bits of the rest."""
    config = random_model_config("gemma4-tiny")
    table = config.vocab_size * 5 * 8
    assert config.table_parameters == table
    beside = 5 * (3 * 64 * 8 + 64) + 8
    assert config.uncut_parameters == config.vocab_size * 64 + table + beside
    rest = config.num_parameters - table
    assert weight_bytes(config, torch.bfloat16, 16) == 2 * config.num_parameters
    assert weight_bytes(config, torch.bfloat16, 8) == rest + 2 * table
    assert weight_bytes(config, torch.float32, 4) == rest // 2 + 4 * table


def test_the_longest_rows_say_whether_fp8_keeps_them() -> None:
    config = random_model_config("gemma4-tiny")
    layers = [replace(each, mixer=replace(each.mixer, head_dim=512)) for each in config.layers[1:2]]
    config = replace(config, layers=(config.layers[0], *layers))
    with pytest.raises(LoadError, match="kv_cache_dtype fp8 is not for rows of 512 numbers"):
        plan_memory(
            EngineConfig(model="random:gemma4-tiny", kv_cache_dtype="fp8"),
            config,
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
            free_bytes=lambda: 1 << 30,
        )


def test_a_latent_is_kept_once_and_is_not_for_fp8() -> None:
    """576 numbers of a token and layer, whatever the number of heads."""
    latents = random_model_config("deepseek-v3-100m")
    assert block_bytes(latents, 16, torch.bfloat16) == 10 * 16 * (512 + 64) * 2
    assert block_bytes(latents, 16, torch.int8) == 10 * 16 * (512 + 64 + 4)
    with pytest.raises(LoadError, match="kv_cache_dtype fp8 is not for rows of 576 numbers"):
        plan_memory(
            EngineConfig(model="random:deepseek-v3-100m", kv_cache_dtype="fp8"),
            latents,
            dtype=torch.bfloat16,
            device=torch.device("cuda"),
            free_bytes=lambda: 1 << 40,
        )


@pytest.mark.parametrize(("device", "name"), [("cpu", "int8"), ("cuda", "fp8")])
def test_rows_with_index_keys_are_not_kept_in_8_bits(device: str, name: str) -> None:
    sparse = random_model_config("glm-dsa-tiny")
    assert block_bytes(sparse, 16, torch.bfloat16) == 4 * 16 * (24 + 8 + 10) * 2
    with pytest.raises(LoadError, match=f"kv_cache_dtype {name} is not for sparse attention"):
        plan_memory(
            EngineConfig(model="random:glm-dsa-tiny", kv_cache_dtype=name),
            sparse,
            dtype=torch.bfloat16,
            device=torch.device(device),
            free_bytes=lambda: 1 << 40,
        )


def test_blocks_of_the_pool_divide_those_that_are_chosen() -> None:
    sparse = random_model_config("minimax-m3-tiny")

    def plan(**own: object) -> MemoryPlan:
        return plan_memory(
            EngineConfig(model="random:minimax-m3-tiny", **own),  # type: ignore[arg-type]
            sparse,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            free_bytes=lambda: 1 << 40,
        )

    assert plan(block_size=8).block_bytes == 8 * (3 * 2 * 2 * 16 + 2 * 12) * 2
    with pytest.raises(LoadError, match="block_size 32 does not divide the 16 tokens of blocks"):
        plan(block_size=32)
    with pytest.raises(LoadError, match="kv_cache_dtype int8 is not for sparse attention"):
        plan(kv_cache_dtype="int8")


@pytest.mark.parametrize(("device", "name"), [("cpu", "int8"), ("cuda", "fp8")])
def test_rows_that_entries_are_made_of_are_not_kept_in_8_bits(device: str, name: str) -> None:
    compressed = random_model_config("deepseek-v4-tiny")
    rows = 16 * (16 + 2 * (16 + 4 * 16 + 4 * 12) + (16 + 2 * 16))
    entries = 2 * 4 * (16 + 12) + 16
    assert parted_bytes(compressed, 16, torch.bfloat16) == (2 * entries, 2 * rows)
    assert block_bytes(compressed, 16, torch.bfloat16) == 2 * (entries + rows)
    with pytest.raises(LoadError, match=f"kv_cache_dtype {name} is not for compressed attention"):
        plan_memory(
            EngineConfig(model="random:deepseek-v4-tiny", kv_cache_dtype=name),
            compressed,
            dtype=torch.bfloat16,
            device=torch.device(device),
            free_bytes=lambda: 1 << 40,
        )


def test_weights_are_as_wide_as_they_are_loaded() -> None:
    count = CONFIG.num_parameters
    assert weight_bytes(CONFIG, torch.float32, 16) == 4 * count
    assert weight_bytes(CONFIG, torch.bfloat16, 8) == count
    assert weight_bytes(CONFIG, torch.bfloat16, 4) == count // 2


def test_layers_with_a_window_get_fewer_blocks_also_above_other_tiers() -> None:
    model = random_model_config("gemma3-tiny")

    def plan(**own: object) -> MemoryPlan:
        return plan_memory(
            EngineConfig(model="random:gemma3-tiny", kv_cache_bytes=64 << 20, **own),  # type: ignore[arg-type]
            model,
            dtype=torch.float32,
            device=torch.device("cpu"),
            free_bytes=lambda: 1 << 40,
        )

    apart, whole = plan(), plan(window_share=100)
    assert plan(host_kv_bytes=1 << 20) == apart
    assert whole.window_blocks is None
    assert whole.num_blocks == (64 << 20) // whole.block_bytes
    assert apart.window_blocks is not None
    assert apart.num_blocks > 2 * whole.num_blocks
    every, near = parted_bytes(model, 16, torch.float32)
    assert apart.kv_bytes == apart.num_blocks * every + apart.window_blocks * near
    assert (64 << 20) - 2 * apart.block_bytes < apart.kv_bytes <= 64 << 20
