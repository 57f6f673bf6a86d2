"""The engine's and the tiers' benchmarks: their plumbing on tiny models; no figure counts here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

import benchmarks.engine
import benchmarks.engine_attention
import benchmarks.engine_products
from benchmarks.engine import DEMANDS, bars, time_decodes
from benchmarks.engine_attention import attention_figures
from benchmarks.engine_loops import (
    EngineLoop,
    RunnerLoop,
    benchmark_config,
    fill_pool,
    gemm_rate,
    load,
    prefill_flops,
    take_turns,
    write_model,
)
from benchmarks.engine_products import cpu_features, product_figures
from benchmarks.plain_decoder import PlainDecoder
from benchmarks.tiers import measure
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.hf_config import read_model_config
from runtime.model.runner import ModelRunner

PACKS = torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_model(path, "tiny")
    return path


def test_the_folder_made_holds_the_shape_asked_for(folder: Path) -> None:
    assert read_model_config(folder) == benchmark_config("tiny")


def test_decodes_of_all_kinds_take_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.engine, "CONTEXT", 64)
    runners = {
        kind: load(folder, num_blocks=32, threads=1, quantization=kind) for kind in ("none", "int8")
    }
    timings = time_decodes(runners, benchmark_config("tiny"), 2, threads=1, rounds=3)
    faster = ["grouped", "packed"] if PACKS else ["grouped"]
    assert list(timings) == ["none", "int8", "plain", *faster]
    assert all(0 < timing.best <= timing.median for timing in timings.values())


def test_a_step_of_the_loop_emits_a_token_for_every_turn(folder: Path) -> None:
    loop = EngineLoop(load(folder, num_blocks=64, threads=1, quantization="none"), seed=0)
    loop.start_decoding(batch=3, context=100)
    assert [loop.step() for _ in range(20)] == [3] * 20


def test_every_prefill_computes_all_its_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(folder, num_blocks=64, threads=1, quantization="none")
    seen: list[int] = []
    forward = ModelRunner.forward

    def counting(self: ModelRunner, batch: StepBatch) -> torch.Tensor:
        seen.append(len(batch.token_ids))
        return forward(self, batch)

    monkeypatch.setattr(ModelRunner, "forward", counting)
    loop = EngineLoop(runner, seed=0)
    for _ in range(3):
        loop.prefill(200)
    assert sum(seen) == 600


def test_strewn_blocks_hold_as_much_context_as_runs(folder: Path) -> None:
    runner = load(folder, num_blocks=16, threads=1, quantization="none")
    fill_pool(runner)
    for scattered in (False, True):
        loop = RunnerLoop(runner, batch=2, context=128, scattered=scattered)
        assert loop.step().isfinite().all()
        tables = np.concatenate([one.block_table for one in loop.inputs])
        assert sorted(tables) == list(range(16))
        assert (np.diff(tables) == 1).all() != scattered


def test_the_yardstick_computes_what_the_engine_computes(folder: Path) -> None:
    """The same weights, the same logits: neither leaves work out."""
    config = benchmark_config("tiny")
    runner = load(folder, num_blocks=8, threads=1, quantization="none")
    tokens = torch.randint(0, 256, (1, 40))
    for grouped, packed in ((False, False), (True, False), (True, PACKS)):
        plain = PlainDecoder(config, batch=1, capacity=41, dtype=torch.bfloat16, grouped=grouped)
        give_weights(plain, folder)
        if packed:
            plain.pack()
        plain.step(tokens, 0)
        theirs = plain.step(torch.tensor([[7]]), 40).float()
        inputs = SequenceInput(
            tokens=np.append(tokens[0].numpy(), 7).astype(np.int32),
            start=0,
            block_table=np.arange(3, dtype=np.int32),
            num_logits=1,
        )
        ours = runner.run([inputs])
        assert (ours - theirs).norm() < 0.05 * ours.norm()


def give_weights(plain: PlainDecoder, folder: Path) -> None:
    """Replace a plain decoder's random weights by those of a folder."""
    weights = load_file(folder / "model.safetensors")
    plain.embedding, plain.norm = (
        weights["model.embed_tokens.weight"],
        weights["model.norm.weight"],
    )
    for index, layer in enumerate(plain.layers):
        of = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{index}.")
        }
        qkv = [of[f"self_attn.{part}_proj.weight"] for part in "qkv"]
        layer.qkv.weight.data = torch.cat(qkv)
        layer.output.weight.data = of["self_attn.o_proj.weight"]
        layer.gate_up.weight.data = torch.cat(
            [of["mlp.gate_proj.weight"], of["mlp.up_proj.weight"]]
        )
        layer.down.weight.data = of["mlp.down_proj.weight"]
        layer.norms = [of["input_layernorm.weight"], of["post_attention_layernorm.weight"]]
        layer.head_norms = [of["self_attn.q_norm.weight"], of["self_attn.k_norm.weight"]]


def test_prefill_flops_are_those_that_torch_counts() -> None:
    """Of the linear maps; attention is counted causally, half of the square it is computed in."""
    config, length = benchmark_config("tiny"), 48
    plain = PlainDecoder(config, batch=1, capacity=length, dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        plain.step(torch.zeros(1, length, dtype=torch.long), 0)
    linear = sum(
        flops
        for operation, flops in counter.get_flop_counts()["Global"].items()
        if operation in (torch.ops.aten.mm, torch.ops.aten.addmm)
    )
    head = 2 * config.vocab_size * config.hidden_size
    attention = 2.0 * config.layers[0].mixer.query_size * length * (length + 1) * config.num_layers
    assert prefill_flops(config, length) == linear - head + attention


def test_transformers_generates_on_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.engine, "CONTEXT", 32)
    figures = benchmarks.engine.transformers_figures(folder)
    assert len(figures) == 3
    assert all(figure > 0 for figure in figures.values())


def test_rates_are_positive_and_rounds_are_counted() -> None:
    assert gemm_rate(benchmark_config("tiny"), 64) > 0
    calls: list[str] = []
    take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "a", "b", "b"] * 3, "a call is timed behind one of its own kind"


def test_products_of_all_layouts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.engine_products, "ROUNDS", 2)
    figures, ratios = product_figures(benchmark_config("tiny"))
    assert figures["choice"] is None
    assert list(figures["median_ms_64"]) == ["ours", "tiles", "packed", "plain"]
    assert list(ratios) == [f"products_over_best_{rows}" for rows in (1, 8, 16, 64, 256)]
    assert all(ratio > 0 for ratio in ratios.values())
    assert set(cpu_features()) <= {"amx_bf16", "avx512_bf16"}


def test_attention_and_reading_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.engine_attention, "CONTEXTS", {"2k": 40, "8k": 70})
    figures, ratios = attention_figures(benchmark_config("tiny"))
    assert all(figure >= 0 for figure in figures.values())
    assert {"attention_8x2k_ms", "attention_any_order_8x2k_ms", "read_8x2k_ms"} <= set(figures)
    assert list(ratios) == ["attention_over_read_8x2k", "attention_over_read_8x8k"]
    assert all(ratio > 0 for ratio in ratios.values())


@pytest.mark.parametrize("amx", [True, False])
def test_bars_are_those_of_the_parts_and_sizes_run(amx: bool) -> None:
    every = bars({}, benchmarks.engine.PARTS, benchmarks.engine.SIZES, amx=amx)
    assert len(every) == len(DEMANDS)
    assert {bar.met for bar in every} == {None}
    values = {"decode_b1_best_500m": 1.0, "decode_b8_best_500m": 1.1}
    some = bars(values, ["decode"], ["500m"], amx=amx)
    assert [(bar.name, bar.met) for bar in some] == [
        ("decode_b1_best_500m", True),
        ("decode_b8_best_500m", amx),
    ]


def test_every_way_back_is_measured() -> None:
    figures = measure("random:qwen3-tiny", 256, 1)
    assert figures.keys() == {
        "session_tokens",
        "computed_s",
        "from_host_s",
        "on_device_s",
        "from_disk_s",
        "without_tiers_s",
    }
    assert all(value > 0 for value in figures.values())
