"""The comparison with llama.cpp reads its output rightly and says what it lacks."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.engine_loops import benchmark_config
from benchmarks.llama_cpp import read_rates, tensor_shapes

ROOT = Path(__file__).parents[2]


def test_decode_and_prefill_runs_are_told_apart() -> None:
    runs = [
        {"pp": 1024, "tg": 64, "pl": 1, "speed_pp": 900.0, "speed_tg": 100.5},
        {"pp": 1024, "tg": 64, "pl": 8, "speed_pp": 901.0, "speed_tg": 250.0},
        {"pp": 2048, "tg": 1, "pl": 1, "speed_pp": 1000.0, "speed_tg": 3.0},
    ]
    output = "\n".join(["a heading", *map(json.dumps, runs), ""])
    assert read_rates(output) == {"decode_b1": 100.5, "decode_b8": 250.0, "prefill": 1000.0}


def test_both_engines_get_the_same_matrices() -> None:
    config = benchmark_config("100m")
    shapes = tensor_shapes(config)
    assert sum(len(shape) == 2 for shape in shapes.values()) == 1 + 7 * config.num_layers
    assert shapes["blk.3.attn_k.weight"] == (config.layers[0].mixer.kv_size, config.hidden_size)


def test_without_the_binary_nothing_is_measured() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.llama_cpp", "--binary", "/nowhere/bench", "--json"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    assert "/nowhere/bench is missing" in ran.stderr
    assert [bar["met"] for bar in json.loads(ran.stdout)["bars"]] == [None] * 3
