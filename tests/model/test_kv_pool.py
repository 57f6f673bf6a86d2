"""The pool's shape and size."""

import torch

from runtime.kv_pool import KVPool, block_bytes
from runtime.models.presets import random_model_config


def test_layers_are_separate_and_the_size_is_what_blocks_take() -> None:
    config = random_model_config("qwen3-tiny")
    cpu = torch.device("cpu")
    pool = KVPool(config, num_blocks=3, block_size=8, dtype=torch.float32, device=cpu)
    for index in range(config.num_layers):
        for number, tensor in enumerate(pool.layer(index)):
            assert tensor.shape == (3, config.num_kv_heads, 8, config.head_dim)
            tensor.fill_(10 * index + number)
    for index in range(config.num_layers):
        for number, tensor in enumerate(pool.layer(index)):
            assert (tensor == 10 * index + number).all()
    assert pool.num_bytes == 3 * block_bytes(config, 8, torch.float32)
