"""Compiles a small model's recorded steps for a GPU that is not there, in a process of its own.

    KEEPWARM_KERNELS=triton python -m tests.support.compile_ahead

Triton is told that sm_90 is there; whatever would launch something fails. Prints one line of
JSON: the kernels compiled when a runner is made, those in a second pass over its steps, those for
a hundred steps and draws that run as they come, the threads seen.
"""

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from benchmarks.gpu_host import CPU, shrunk
from kernels import launching
from runtime.messages import SamplingParams
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.cuda_graphs import compile_kernels
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights
from runtime.model.runner import ModelRunner, Recording
from runtime.model.sampler import SampleRow, sample
from runtime.model.sources import BYTE_TOKENIZER
from runtime.model.weights import LoadedModel


class AbsentGPU:
    """What Triton asks of a driver to compile; nothing to launch with."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    driver.set_active(AbsentGPU())
    counts: list[int] = []
    names: set[str] = set()

    class Watched(launching._Compilers):
        def __init__(self, threads: int, compiled: Any) -> None:
            super().__init__(threads, compiled)
            counts.append(0)

        def submit(self, *work: Any, **named: Any) -> Any:
            counts[-1] += 1

            def seen() -> object:
                names.add(threading.current_thread().name)
                compiled = work[0](*work[1:], **named)
                assert compiled.asm["cubin"]
                return compiled

            return super().submit(seen)

    launching._Compilers = Watched  # type: ignore[misc]
    config, dtype = shrunk(2), torch.float16
    model = LoadedModel(
        name="shrunk",
        config=config,
        decoder=Decoder(config, MapLoader(source=RandomWeights(0, dtype, CPU), dtype=dtype), CPU),
        tokenizer_folder=BYTE_TOKENIZER,
        dtype=dtype,
        device=CPU,
        load_s=0.0,
    )
    runner = ModelRunner(
        model,
        num_blocks=600,
        block_size=16,
        recording=Recording(
            record=lambda call: lambda: torch.empty(0), max_sequences=2, max_tokens=1024
        ),
    )
    graphs = runner.graphs
    assert graphs is not None
    compile_kernels(step.dry_run for step in graphs.steps.values())
    compile_kernels(served(runner, seed) for seed in range(100))
    print(json.dumps({"compiled": counts, "threads": len(names), "graphs": graphs.num_graphs}))


def served(runner: ModelRunner, seed: int) -> Callable[[], object]:
    """A step as agents' turns make it, that runs as it comes, and its draw."""
    rng = np.random.default_rng(seed)
    inputs = []
    prefix = np.arange(8, dtype=np.int32)
    for number in range(int(rng.integers(1, 24))):
        own = np.arange(8 + number * 24, 8 + number * 24 + 24, dtype=np.int32)
        new = int(rng.choice([1, 1, 1, 2, 5, 17, 33, 200]))
        start = int(rng.integers(1, 100)) if rng.random() < 0.5 else 128 + int(rng.integers(1, 50))
        table = np.concatenate((prefix, own))
        inputs.append(
            SequenceInput(
                tokens=np.zeros(new, dtype=np.int32), start=start, block_table=table, num_logits=1
            )
        )
    batch = StepBatch.build(inputs, 16)
    vocab = runner.model.config.vocab_size
    rows = [
        SampleRow(
            params=SamplingParams(
                seed=number,
                temperature=float(rng.choice([0.0, 0.7])),
                top_p=float(rng.choice([1.0, 0.9])),
                top_k=int(rng.choice([0, 5])),
                frequency_penalty=float(rng.choice([0.0, 0.5])),
            ),
            position=number,
            emitted=np.arange(int(rng.integers(0, 40)), dtype=np.int32),
            mask=np.full(-(-vocab // 32), -1, dtype=np.int32) if rng.random() < 0.5 else None,
        )
        for number in range(len(inputs))
    ]

    def call() -> object:
        return sample(runner.run_as_it_comes(batch, None), rows)

    return call


if __name__ == "__main__":
    main()
