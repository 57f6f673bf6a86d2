"""The benchmark of published formats: every folder is one that is served, every bar is computed."""

from pathlib import Path

import pytest
import torch

from benchmarks.checkpoint_folders import NAMES, SHAPES, write
from benchmarks.checkpoints import RUNS, Figures, bars
from runtime.model.weights import load_model


@pytest.mark.parametrize("name", NAMES)
def test_every_folder_is_a_model(name: str, tmp_path: Path) -> None:
    path = write(name, SHAPES["tiny"], tmp_path / name)
    model = load_model(path, dtype=torch.bfloat16, device=torch.device("cpu"))
    plain = name in ("bf16", "experts_bf16")
    assert (model.config.quantisation is None) == plain


def test_all_runs_have_a_folder_and_every_format_its_bars() -> None:
    assert {folder for folder, _ in RUNS.values()} == set(NAMES)
    one = Figures(load_s=2.0, held_over_file=1.1, prefill_s=1.0, decode_tokens_s=50.0)
    found = {bar.name: bar.value for bar in bars(dict.fromkeys(RUNS, one))}
    assert found["fp8_over_bf16"] == 1.0
    assert found["awq_resident_over_file"] == 1.1
    assert "nvfp4_resident_over_file" not in found
    assert "gguf_q4_k_resident_over_file" not in found
    assert all(value is not None for value in found.values())
    assert all(bar.value is None for bar in bars({}))


def test_a_slower_format_misses_its_bar() -> None:
    fast = Figures(load_s=1.0, held_over_file=1.0, prefill_s=1.0, decode_tokens_s=100.0)
    slow = Figures(load_s=3.0, held_over_file=1.3, prefill_s=2.0, decode_tokens_s=70.0)
    found = {bar.name: bar.met for bar in bars({**dict.fromkeys(RUNS, fast), "fp8": slow})}
    for name in ("over_bf16", "prefill_over_bf16", "load_over_bf16_load", "resident_over_file"):
        assert found[f"fp8_{name}"] is False
    assert found["int4_group32_over_own_int4"] is True
