"""The pool's shape and size."""

import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.quantised_kv import FP8
from runtime.model.config import LoadError
from runtime.model.kv_pool import KVPool, block_bytes, parted_bytes
from runtime.model.pages_ahead import AHEAD_BYTES
from runtime.model.presets import random_model_config
from tests.support.architecture import ROOT
from tests.support.model_shapes import with_other_keys


def test_layers_are_separate_and_the_size_is_what_blocks_take() -> None:
    config = random_model_config("qwen3-tiny")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    for index in range(config.num_layers):
        for number, tensor in enumerate(pool.layer(index)):
            assert tensor.shape == (3, config.attention[0].kv_heads, 8, config.head_dim)
            tensor.fill_(10 * index + number)
    for index in range(config.num_layers):
        for number, tensor in enumerate(pool.layer(index)):
            assert (tensor == 10 * index + number).all()
    assert pool.num_bytes == 3 * block_bytes(config, 8, torch.float32)


def test_rows_in_8_bits_take_about_half_of_16() -> None:
    config = random_model_config("qwen3-100m")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=2, block_size=16, dtype=torch.int8, device=cpu)
    assert pool.layer(0)[0].shape == (2, config.attention[0].kv_heads, 16, config.head_dim + 4)
    assert pool.num_bytes == 2 * block_bytes(config, 16, torch.int8)
    assert pool.num_bytes / block_bytes(config, 32, torch.bfloat16) == (64 + 4) / 128


def test_rows_that_are_keys_and_values_are_kept_once() -> None:
    config = random_model_config("deepseek-v3-tiny")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    keys, values = pool.layer(1)
    assert keys.shape == (3, 1, 8, 24 + 8)
    assert keys.data_ptr() == values.data_ptr()
    assert pool.num_bytes == 3 * block_bytes(config, 8, torch.float32) == 3 * 3 * 8 * 32 * 4
    other = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    keys[2] = 7.0
    other.copy_block(pool, 2, 0)
    assert (other.layer(1)[0][0] == 7).all()
    assert not other.layer(0)[0].any()


def test_layers_of_another_shape_lie_in_a_tensor_of_their_own() -> None:
    config, cpu = with_other_keys(random_model_config("qwen3-tiny")), torch.device("cpu")
    first, last = config.layers
    shared = replace(last, mixer=replace(last.mixer, shares=1))
    config = replace(config, layers=(first, last, first, shared))
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    shapes = [tuple(group.shape) for group in pool.groups]
    assert shapes == [(2, 2, 3, 2, 8, 16), (1, 2, 3, 1, 8, 24)]
    assert pool.num_bytes == 3 * block_bytes(config, 8, torch.float32)
    pool.reach(2)
    assert pool.memory_bytes >= pool.num_bytes
    for index, (keys, values) in enumerate(pool.layers[:3]):
        keys.fill_(index)
        values.fill_(index + 0.5)
    assert all((keys == index).all() for index, (keys, _) in enumerate(pool.layers[:3]))
    own, read = pool.layer(1), pool.layer(3)
    assert [each.data_ptr() for each in own] == [each.data_ptr() for each in read]
    with pytest.raises(ValueError, match="2 groups of layers are not in one tensor"):
        _ = pool.blocks
    other = KVPool(config, num_blocks=2, block_size=8, dtype=torch.float32, device=cpu)
    other.copy_block(pool, 2, 0)
    for index in range(3):
        assert (other.layer(index)[1][0] == index + 0.5).all()
        assert not other.layer(index)[1][1].any()


def test_layers_with_a_window_have_blocks_of_their_own_where_they_are_fewer() -> None:
    config, cpu = random_model_config("gemma3-tiny"), torch.device("cpu")
    pool = KVPool(
        config, num_blocks=9, block_size=8, dtype=torch.float32, device=cpu, window_blocks=2
    )
    assert pool.windowed == (True, True, False)
    assert [len(keys) for keys, _ in pool.layers] == [2, 2, 9]
    every, near = parted_bytes(config, 8, torch.float32)
    assert every + near == block_bytes(config, 8, torch.float32)
    assert pool.num_bytes == 9 * every + 2 * near
    pool.reach(0, 1)
    pool.settle()
    assert pool.memory_bytes > 0


def test_rows_of_sparse_attention_have_room_for_index_keys_in_every_layer() -> None:
    config = random_model_config("glm-dsa-tiny")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    assert [keys.shape for keys, _ in pool.layers] == [(3, 1, 8, 24 + 8 + 10)] * 4


def test_blocks_start_zero_and_cost_little_before_they_are_written() -> None:
    config = random_model_config("qwen3-tiny")
    before = resident_bytes()
    pool = KVPool(
        config, num_blocks=1 << 16, block_size=16, dtype=torch.float32, device=torch.device("cpu")
    )
    assert pool.num_bytes == 1 << 29
    assert not pool.layer(1)[1][-1].any()
    if before is not None:
        assert (resident_bytes() or 0) < before + AHEAD_BYTES + (1 << 26)


def resident_bytes() -> int | None:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE if statm.exists() else None


def test_more_memory_than_there_is_names_its_size_and_the_flag() -> None:
    config = random_model_config("qwen3-tiny")
    cpu = torch.device("cpu")
    with pytest.raises(LoadError, match=r"take 8388608\.0 GiB.*--num-blocks or --kv-cache-mib"):
        KVPool(config, num_blocks=1 << 40, block_size=16, dtype=torch.float32, device=cpu)


def test_fp8_takes_as_much_as_int8() -> None:
    config = random_model_config("qwen3-100m")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=4, block_size=16, dtype=FP8, device=cpu)
    assert pool.layer(0)[0].dtype == FP8
    assert pool.num_bytes == 4 * block_bytes(config, 16, torch.int8)


GROWN = """
import sys, torch
from runtime.model.kv_pool import KVPool
from runtime.model.presets import random_model_config
from tests.support.architecture import ROOT
from sessions.pages.memory_metrics import resident_bytes

num_blocks, written = map(int, sys.argv[1:])
config, cpu = random_model_config("qwen3-100m"), torch.device("cpu")
torch.zeros(1).fill_(1.0)
before = resident_bytes("self")
pool = KVPool(config, num_blocks=num_blocks, block_size=4, dtype=torch.float32, device=cpu)
pool.reach(written - 1)
for keys, values in pool.layers:
    keys[:written].fill_(1.0)
    values[:written].fill_(1.0)
pool.settle()
print(resident_bytes("self") - before, pool.memory_bytes, pool.num_bytes)
"""


@pytest.mark.tail
@pytest.mark.skipif(resident_bytes() is None, reason="the system does not say")
@pytest.mark.parametrize(("num_blocks", "written"), [(64, 1), (4096, 700), (1 << 15, 9)])
@pytest.mark.samples(1)
def test_memory_is_told_as_far_as_blocks_were_written(num_blocks: int, written: int) -> None:
    """In a process of its own: what other tests let go of counts there."""
    ran = subprocess.run(
        [sys.executable, "-c", GROWN, str(num_blocks), str(written)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    grown, told, whole = map(int, ran.stdout.split())
    assert told <= whole + (2 << 20)
    assert abs(grown - told) <= 0.3 * told + (4 << 20)


def test_index_keys_that_choose_blocks_lie_beside_keys_and_values() -> None:
    config = random_model_config("minimax-m3-tiny")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    assert [keys.shape for keys, _ in pool.layers] == [(3, 2, 8, 16)] * 3
    first, second = pool.beside(1), pool.beside(2)
    assert pool.beside(0) is None
    assert first is not None
    assert second is not None
    assert first.shape == second.shape == (3, 1, 8, 12)
    first.fill_(1)
    second.fill_(2)
    for keys, values in pool.layers:
        keys.fill_(3)
        values.fill_(4)
    assert (first == 1).all()
    other = KVPool(config, num_blocks=2, block_size=8, dtype=torch.float32, device=cpu)
    other.copy_block(pool, 2, 0)
    copied = other.beside(2)
    assert copied is not None
    assert (copied[0] == 2).all()
    assert pool.num_bytes == 3 * block_bytes(config, 8, torch.float32)
