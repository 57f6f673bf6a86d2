"""Cost of a session's way back from host memory or disk, beside computing it again.

Sessions of one length take turns over a pool that holds two of them. A session's time is what
its turn of one token takes, from the request to the end, with the engine otherwise idle: all
of its transcript on the device, in host memory, on disk after a restart, or nowhere.
"""

import statistics
import tempfile
import time
from dataclasses import replace

import numpy as np

from benchmarks.report import Bar, parser, report
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import GenerationRequest, SamplingParams, TokenArray
from runtime.process.loading import load_engine

SESSIONS = 6
BLOCK = 16
MOST = 0.5
"""A tier from which a session does not come back in half of the time is not worth its memory."""


def run_turn(engine: Engine, name: str, prompt: TokenArray, max_new_tokens: int = 1) -> float:
    """Seconds of one turn on an idle engine."""
    started = time.perf_counter()
    engine.submit(
        [
            GenerationRequest(
                request_id=name,
                branch_id=name,
                tenant="t",
                base_branch_id=None,
                base_offset=0,
                new_tokens=prompt,
                max_new_tokens=max_new_tokens,
                sampling=SamplingParams(temperature=0),
            )
        ]
    )
    while engine.has_work:
        engine.step()
        if engine.pause_s:
            time.sleep(engine.pause_s)
    return time.perf_counter() - started


def measure(model: str, length: int, threads: int | None) -> dict[str, float]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(32, 127, length).astype(np.int32) for _ in range(SESSIONS)]
    blocks = length // BLOCK + 4
    figures: dict[str, float] = {"session_tokens": length}
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            model=model,
            num_blocks=2 * blocks,
            block_size=BLOCK,
            threads=threads,
            max_draft_tokens=0,
            host_kv_bytes=1 << 31,
            disk_kv_bytes=1 << 31,
            disk_kv_folder=folder,
        )

        def all_in_turn(engine: Engine) -> float:
            """Median over the sessions, the first one apart."""
            times = [run_turn(engine, f"s{i}", p) for i, p in enumerate(prompts)]
            return statistics.median(times[1:])

        engine = load_engine(config)
        run_turn(engine, "warm", prompts[0][: length // 2] + 1)
        figures["computed_s"] = all_in_turn(engine)
        figures["from_host_s"] = all_in_turn(engine)
        figures["on_device_s"] = statistics.median(
            run_turn(engine, f"s{SESSIONS - 1}", prompts[-1]) for _ in range(5)
        )
        engine.close()
        engine = load_engine(config)
        run_turn(engine, "warm", prompts[0][: length // 2] + 1)
        figures["from_disk_s"] = all_in_turn(engine)
        engine.close()
        engine = load_engine(replace(config, host_kv_bytes=0, disk_kv_bytes=0, disk_kv_folder=None))
        run_turn(engine, "warm", prompts[0][: length // 2] + 1)
        all_in_turn(engine)
        figures["without_tiers_s"] = all_in_turn(engine)
    return figures


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--model", default="random:qwen3-100m")
    options.add_argument("--tokens", type=int, default=2048, help="tokens of each session")
    options.add_argument("--threads", type=int, default=None)
    arguments = options.parse_args()
    figures = measure(arguments.model, arguments.tokens, arguments.threads)
    again = figures["without_tiers_s"]
    ratios = {
        f"{way}_over_recompute": figures[f"{way}_s"] / again for way in ("from_host", "from_disk")
    }
    bars = [Bar(name=name, value=ratio, op="<=", bar=MOST) for name, ratio in ratios.items()]
    rounded = {name: round(value, 4) for name, value in (figures | ratios).items()}
    return report("tiers", rounded, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
