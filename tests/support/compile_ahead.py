"""Compiles a small model's recorded steps for a GPU that is not there, in a process of its own.

    KEEPWARM_KERNELS=triton python -m tests.support.compile_ahead

Triton is told that sm_90 is there; whatever would launch something fails. Prints one line of
JSON: the kernels compiled in a first pass over the steps, those in a second, the threads seen.
"""

import json
import threading
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from benchmarks.gpu_host import CPU, shrunk
from kernels import launching
from runtime.model.cuda_graphs import StepGraphs, compile_kernels
from runtime.model.decoder import Decoder
from runtime.model.kv_pool import KVPool
from runtime.model.random_weights import RandomWeights


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
    pool = KVPool(config, num_blocks=32, block_size=16, dtype=dtype, device=CPU)
    decoder = Decoder(config, RandomWeights(0, dtype, CPU), dtype, CPU)
    graphs = StepGraphs(
        decoder, pool, spare_block=31, max_sequences=2, record=lambda call: lambda: torch.empty(0)
    )
    compile_kernels(step.dry_run for step in graphs._steps.values())
    print(json.dumps({"compiled": counts, "threads": len(names), "graphs": graphs.num_graphs}))


if __name__ == "__main__":
    main()
