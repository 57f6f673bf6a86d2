"""Cost of a step to a GPU's host, counted and timed on a CPU: launches of a layer, preparations.

    python -m benchmarks.gpu_host --json

A recorded step of the shape of Qwen3-8B, its sizes shrunk: what counts is which kernels are
launched, not what they compute. Triton's launcher is replaced by a counter, and torch's operations
are counted where they would launch something; a product counts one. Where Triton is not
installed (``make kernels`` has it), launches are not counted and their bars have no value; nor are
they where there is a GPU, which launches them.

Of models with recurrent layers, of experts and of attention over latents, all launches of a
recorded decode are counted: those of a layer are the total by the number of layers.

Preparing a step is timed as the runner does it, for 64 turns of 12,000 tokens, on CPU tensors:
from the turns' tokens and blocks to the recording's buffers; also where one of them computes 1,024
tokens of a prompt.
"""

import importlib
import importlib.util
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels ask when they are defined
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.report import Bar, parser, report
from kernels import dispatch
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.cuda_graphs import StepGraphs
from runtime.model.decoder import Decoder
from runtime.model.kv_pool import KVPool
from runtime.model.layers import MapLoader, WeightBits
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.runner import ModelRunner, Recording
from runtime.model.state_plan import StatePlan
from runtime.model.step_buckets import (
    Bucket,
    RecordedSizes,
    buckets_up_to,
    large_chunks,
    smallest,
)
from runtime.model.weights import load_model

BLOCK_SIZE = 16
TURNS, CONTEXT, SHARED_BLOCKS = 64, 12_000, 500
CHUNK = 1024
"""Tokens of a prompt that one of them computes in the third figure."""
REPEATS = 200
CPU = torch.device("cpu")
MODELS = {
    "qwen3-moe-tiny": 22,
    "gpt-oss-tiny": 25,
    "glm4-moe-tiny": 23,
    "nemotron-h-tiny": 14,
    "qwen3.5-tiny": 20,
    "granite-hybrid-tiny": 22,
    "lfm2-tiny": 15,
    "deepseek-v3-100m": 16,
}
"""Models whose decodes are counted whole, and the most launches for a layer of each."""
_NO_LAUNCH = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "slice", "select", "split",
    "split_with_sizes", "unsqueeze", "squeeze", "expand", "as_strided", "detach", "alias",
    "unbind", "movedim", "empty", "empty_like", "new_empty", "empty_strided", "is_same_size",
    "narrow", "flatten", "unflatten", "view_as", "lift_fresh", "chunk",
}  # fmt: skip
"""Operations that look at memory or get some, and launch nothing."""


def shrunk(layers: int) -> ModelConfig:
    """Qwen3-8B with few small layers."""
    return replace(
        random_model_config("qwen3-8b"),
        vocab_size=256,
        hidden_size=64,
        layers=(
            Layer(
                mixer=Attention(
                    heads=4,
                    kv_heads=1,
                    head_dim=16,
                    rope=RopeConfig(theta=1000000.0),
                    norm="each",
                ),
                feed_forward=Gated(size=96),
            ),
        )
        * layers,
        shaping=None,
    )


class Launches(TorchDispatchMode):
    """Counts what a GPU would be given to run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _NO_LAUNCH:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Triton kernels are counted instead of run."""
    interpreter = importlib.import_module("triton.runtime.interpreter")

    def launched(executor: Any, *args: object, **options: object) -> None:
        counts[executor.fn.__name__] += 1

    with mock.patch.object(interpreter.GridExecutor, "__call__", launched):
        yield


def _scaled_mm(x: Tensor, matrix: Tensor, **options: Any) -> Tensor:
    """In place of the product in 8 bits, which a CPU does not have: one product."""
    return x.new_empty((x.shape[0], matrix.shape[1]), dtype=options["out_dtype"]).fill_(0)


@contextmanager
def on_triton() -> Iterator[None]:
    """Tensors of a CPU are for Triton kernels, and products in 8 bits can be had."""
    with (
        mock.patch.object(dispatch, "SETTING", "triton"),
        mock.patch("kernels.fp8_matmul.multiplies_fp8", return_value=True),
        mock.patch.object(torch, "_scaled_mm", _scaled_mm),
    ):
        yield


def launches(layers: int, need: Bucket, bits: WeightBits) -> Counter[str]:
    """Launches of a recorded step that has room for ``need``."""
    config = shrunk(layers)
    dtype = torch.bfloat16 if bits == "fp8" else torch.float16
    pool = KVPool(config, num_blocks=32, block_size=BLOCK_SIZE, dtype=dtype, device=CPU)
    calls: list[Callable[[], Tensor]] = []

    def keep(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        calls.append(call)
        return call

    with on_triton():
        decoder = Decoder(
            config, MapLoader(source=RandomWeights(0, dtype, CPU), bits=bits, dtype=dtype), CPU
        )
        sizes = RecordedSizes(max_sequences=need.sequences)
        StepGraphs(decoder, pool, spare_block=31, sizes=sizes, record=keep)
        recorded = buckets_up_to(need.sequences)
        bucket = smallest(recorded, need)
        assert bucket is not None
        mode = Launches()
        with counted(mode.counts), torch.inference_mode(), mode:
            calls[::-1][recorded.index(bucket)]()  # the largest was recorded first
    return mode.counts


def launches_of_a_layer(need: Bucket, bits: WeightBits = 16) -> dict[str, int]:
    """By kernel: what two layers more launch, halved."""
    few, more = launches(1, need, bits), launches(3, need, bits)
    return {name: (more[name] - few[name]) // 2 for name in more if more[name] != few[name]}


def launches_of_a_model(preset: str) -> tuple[Counter[str], int]:
    """Launches of a recorded decode of eight turns, by kernel, and the model's layers.

    Args:
        preset: one of ``random:NAME``, whose sizes are small.
    """
    need, _ = steps()["decode"]
    calls: list[Callable[[], Tensor]] = []

    def keep(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        calls.append(call)
        return call

    mode = Launches()
    with on_triton(), counted(Counter()), torch.inference_mode():
        model = load_model(f"random:{preset}", dtype=torch.float16, device=CPU)
        held = StatePlan(slots=need.sequences, rings=need.sequences)
        runner = ModelRunner(
            model,
            num_blocks=32,
            block_size=BLOCK_SIZE,
            recording=Recording(record=keep, max_sequences=need.sequences),
            states=held if model.config.recurrent else None,
        )
        assert runner.graphs is not None
        recorded = [*runner.graphs.steps]
        bucket = smallest(sorted(recorded, key=Bucket.cost), need)
        assert bucket is not None
        with counted(mode.counts), mode:
            calls[recorded.index(bucket)]()
    return mode.counts, model.config.num_layers


def steps() -> dict[str, tuple[Bucket, WeightBits]]:
    """The recorded steps whose launches have a bar."""
    decode = Bucket(sequences=8, tokens=8, logits=8, decode_width=1)
    verify = Bucket(sequences=8, tokens=40, logits=40, decode_width=8, shared=True)
    return {"decode": (decode, 16), "verify": (verify, 16), "fp8": (decode, "fp8")}


def turns(*, shared: bool, chunk: int = 0) -> list[SequenceInput]:
    """The next tokens of the turns; with ``shared`` their contexts begin alike, with ``chunk``
    the last computes so many tokens of its prompt."""
    blocks = -(-CONTEXT // BLOCK_SIZE)
    order = np.random.default_rng(0).permutation(TURNS * blocks).astype(np.int32)
    inputs = []
    for turn in range(TURNS):
        table = order[turn * blocks : (turn + 1) * blocks].copy()
        if shared:
            table[:SHARED_BLOCKS] = order[:SHARED_BLOCKS]
        inputs.append(
            SequenceInput(
                tokens=np.zeros(1, dtype=np.int32),
                start=CONTEXT - 1,
                block_table=table,
                num_logits=1,
            )
        )
    if chunk:
        tokens = np.zeros(chunk, dtype=np.int32)
        inputs[-1] = replace(inputs[-1], tokens=tokens, start=CONTEXT - chunk)
    return inputs


def prepare_s(*, shared: bool, chunk: int = 0) -> float:
    """Median seconds from turns to a recording that could be replayed."""
    config = shrunk(1)
    blocks = TURNS * -(-CONTEXT // BLOCK_SIZE) + 1
    pool = KVPool(config, num_blocks=blocks, block_size=BLOCK_SIZE, dtype=torch.float16, device=CPU)
    decoder = Decoder(
        config,
        MapLoader(source=RandomWeights(0, torch.float16, CPU), dtype=torch.float16),
        CPU,
    )
    logits = torch.zeros(TURNS, config.vocab_size)
    times = []
    with on_triton(), torch.inference_mode():
        graphs = StepGraphs(
            decoder,
            pool,
            spare_block=blocks - 1,
            sizes=RecordedSizes(max_sequences=TURNS, large_chunks=large_chunks(TURNS, 2 * chunk)),
            record=lambda call: lambda: logits,
        )
        inputs = turns(shared=shared, chunk=chunk)
        for _ in range(REPEATS):
            began = time.perf_counter()
            graphs.forward(StepBatch.build(inputs, BLOCK_SIZE))
            times.append(time.perf_counter() - began)
        assert graphs.counts.replayed + graphs.counts.replayed_chunks == REPEATS
    return statistics.median(times[REPEATS // 4 :])


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, time and report."""
    options = parser(__doc__.splitlines()[0] if __doc__ else None).parse_args(arguments)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
        figures = {
            f"{name}_launches": launches_of_a_layer(need, bits)
            for name, (need, bits) in steps().items()
        }
    totals: dict[str, float] = {name: sum(of.values()) for name, of in figures.items()}
    if figures:
        for preset in MODELS:
            found, layers = launches_of_a_model(preset)
            figures[f"{preset}_decode_launches"] = dict(found) | {"layers": layers}
            totals[f"{preset}_decode_launches"] = sum(found.values()) / layers
    for shared in (False, True):
        figures[f"prepare_{'shared' if shared else 'flat'}_ms"] = prepare_s(shared=shared) * 1e3
    figures["prepare_chunk_ms"] = prepare_s(shared=True, chunk=CHUNK) * 1e3
    worst = max(figures["prepare_shared_ms"], figures["prepare_flat_ms"])
    limits = {"decode": 11, "verify": 12, "fp8": 14}
    bars = [
        Bar(name=f"{name}_launches", value=totals.get(f"{name}_launches"), op="<=", bar=limit)
        for name, limit in limits.items()
    ]
    bars += [
        Bar(
            name=f"{preset}_decode_launches_a_layer",
            value=totals.get(f"{preset}_decode_launches"),
            op="<=",
            bar=limit,
        )
        for preset, limit in MODELS.items()
    ]
    bars.append(Bar(name="prepare_ms", value=worst, op="<=", bar=0.4))
    chunk_ms = figures["prepare_chunk_ms"]
    bars.append(Bar(name="prepare_chunk_ms", value=chunk_ms, op="<=", bar=0.3))
    return report("gpu_host", figures, bars, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
