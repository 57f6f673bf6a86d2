"""Time of decodes' attention beside reading the keys and values once.

Paged attention of eight turns over pools of random keys and values, in large pages as the engine
has them, layer by layer as in a step, and the sum over the same memory in turns.
"""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine_loops import BLOCK_SIZE, Timing, take_turns
from kernels.attention import paged_attention
from kernels.large_pages import large_pages
from kernels.paged_layout import PagedLayout
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.config import ModelConfig

TURNS = 8
CONTEXTS = {"2k": 2048, "8k": 8192}
ROUNDS = 9
_MOST_BYTES = 256 << 20
"""Fewer layers are run where all would hold more: beyond a cache, more makes no difference."""


def attention_figures(config: ModelConfig) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of a layer, and what attention takes over reading, medians."""
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, context in CONTEXTS.items():
        timings = time_attention(config, context, rounds=ROUNDS)
        for part, timing in timings.items():
            figures[f"{part}_{TURNS}x{name}_ms"] = round(1000 * timing.median, 3)
        ratio = timings["attention"].median / timings["read"].median
        ratios[f"attention_over_read_{TURNS}x{name}"] = ratio
    return figures, ratios


def _layout(context: int, order: NDArray[np.int64]) -> PagedLayout:
    """A decode of each turn; the blocks of the first one come first in ``order``."""
    each = len(order) // TURNS
    turns = [
        SequenceInput(
            tokens=np.array([5], dtype=np.int32),
            start=context - 1,
            block_table=blocks,
            num_logits=1,
        )
        for blocks in order.reshape(TURNS, each).astype(np.int32)
    ]
    return StepBatch.build(turns, BLOCK_SIZE).layout(torch.device("cpu"))


def time_attention(config: ModelConfig, context: int, *, rounds: int) -> dict[str, Timing]:
    """Seconds of a layer: attention of a decode of each turn with its blocks in a row and in any
    order, and a sum over what it reads."""
    each = -(-context // BLOCK_SIZE)
    mixer = config.attention[0]
    shape = (2, TURNS * each, mixer.kv_heads, BLOCK_SIZE, mixer.head_dim)
    layer_bytes = 2 * int(np.prod(shape))
    count = max(1, min(config.num_layers, _MOST_BYTES // layer_bytes))
    layers = [
        large_pages(layer_bytes).view(torch.bfloat16).view(shape).normal_() for _ in range(count)
    ]
    row = np.arange(TURNS * each)
    layouts = [_layout(context, row), _layout(context, np.random.default_rng(1).permutation(row))]
    queries = torch.randn(TURNS, mixer.heads, mixer.head_dim).to(torch.bfloat16)
    scale = mixer.head_dim**-0.5

    def attend(layout: PagedLayout) -> None:
        for keys, values in layers:
            paged_attention(queries, keys, values, layout, scale=scale, window=None)

    def read() -> None:
        for layer in layers:
            layer.view(torch.float32).sum()

    with torch.inference_mode():
        calls = {
            "attention": partial(attend, layouts[0]),
            "attention_any_order": partial(attend, layouts[1]),
            "read": read,
        }
        timings = take_turns(calls, rounds=rounds)
    return {
        name: Timing(best=timing.best / count, median=timing.median / count)
        for name, timing in timings.items()
    }
