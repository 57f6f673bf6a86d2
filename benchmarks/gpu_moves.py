"""Prefill behind contexts of several lengths, and copies of KV blocks down and up again."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from benchmarks.dense_shape import dense_layer
from benchmarks.gpu_cases import Wrong, blocks_for, make_batch, wall_seconds
from benchmarks.gpu_graphs import make_model
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from runtime.model.config import ModelConfig
from runtime.model.kv_pool import KVPool
from runtime.model.runner import ModelRunner
from runtime.offload.copies import Copies, StreamCopies, ThreadCopies

_REPEATS = 5


def measure_prefill(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """A chunk of a prompt behind contexts that are there already, by the clock. ``tflops`` counts
    products with weights and of attention, once each."""
    rows: list[dict[str, Any]] = []
    name, config = plan.models[-1]
    model = make_model(config, dtype, device)
    for chunk, context in plan.prefill:
        shapes = [(context + chunk, chunk)]
        runner = ModelRunner(model, num_blocks=blocks_for(shapes), block_size=BLOCK_SIZE)
        runner.pool.blocks.normal_()
        batch = make_batch(shapes, runner.num_blocks)
        taken = wall_seconds(lambda: runner.forward(batch), device, _REPEATS)  # noqa: B023
        operations = 2 * chunk * parameters(config) + attention_operations(config, chunk, context)
        rows.append(
            {
                "model": name,
                "tokens": chunk,
                "context": context,
                "ms": taken * 1e3,
                "tokens_per_s": chunk / taken,
                "tflops": operations / taken / 1e12,
            }
        )
    return rows


def parameters(config: ModelConfig) -> int:
    """Parameters of the matrices that each token is multiplied by; the head is for a prompt's last
    alone."""
    mixer, mlp, _ = dense_layer(config)
    heads = (2 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
    return config.num_layers * config.hidden_size * (heads + 3 * mlp.size)


def attention_operations(config: ModelConfig, chunk: int, context: int) -> int:
    """Two products of ``head_dim`` for each pair of a query and a key it may see."""
    pairs = chunk * context + chunk * (chunk + 1) // 2
    return 4 * config.num_layers * config.layers[0].mixer.query_size * pairs


def measure_tiers(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Blocks to host memory and back to other places, in a row and scattered.

    Raises:
        Wrong: they came back changed.
    """
    name, config = plan.models[-1]
    count = plan.moved_blocks
    pool = KVPool(config, num_blocks=3 * count, block_size=BLOCK_SIZE, dtype=dtype, device=device)
    pool.blocks.normal_()
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(1) as worker:
        copies: Copies = StreamCopies(pool) if pool.blocks.is_cuda else ThreadCopies(pool, worker)
        below = copies.new_rows(count)
        size = below.nbytes
        for order in ("in a row", "scattered"):
            ids = np.arange(3 * count, dtype=np.int32)
            if order == "scattered":
                ids = np.random.default_rng(0).permutation(ids)
            sources, targets = ids[:count], ids[count : 2 * count]
            host = np.arange(count, dtype=np.int32)
            times: dict[str, list[float]] = {"down": [], "up": []}
            for _ in range(_REPEATS):
                for way in ("down", "up"):
                    began = time.perf_counter()
                    if way == "down":
                        copies.down(sources, below, host).wait()
                    else:
                        copies.up(below, host, targets).wait()
                    times[way].append(time.perf_counter() - began)
            same = torch.equal(pool.blocks[:, :, sources], pool.blocks[:, :, targets])
            if not same:
                raise Wrong(f"blocks that lay {order} came back changed")
            for way, taken in times.items():
                best = min(taken[1:])
                rows.append(
                    {
                        "model": name,
                        "way": way,
                        "blocks": order,
                        "bytes": size,
                        "ms": best * 1e3,
                        "gb_per_s": size / best / 1e9,
                    }
                )
        copies.drop_rows(below)
    return rows
