"""The GPU benchmark's plumbing on sizes that the interpreter manages; no figure counts here."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_cases
from benchmarks.gpu import bars, main, measure, table
from benchmarks.gpu_cases import Wrong, check
from benchmarks.gpu_plan import FULL
from runtime.models.presets import random_model_config

TINY = replace(
    FULL,
    heads=4,
    kv_heads=2,
    head_dim=16,
    checks=(((20, 1), (3, 1)), ((40, 34), (9, 2))),
    attention=(("B1 1k", (33,)), ("skewed", (5, 40))),
    verify=(2, 20, (1, 3)),
    shared_prefix=(3, 512, 20),
    models=(("Qwen3-8B", replace(random_model_config("qwen3-tiny"), num_layers=1)),),
    steps=((2, 20),),
    copy_bytes=1 << 16,
    round_bytes=1 << 14,
)


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def test_every_part_is_measured_and_tabled(device: torch.device) -> None:
    figures = measure(TINY, torch.float32, device)
    assert [row["case"] for row in figures["attention"]] == ["B1 1k", "skewed"]
    assert [row["queries"] for row in figures["verify"]] == [1, 3]
    assert [row["way"] for row in figures["shared_prefix"]] == ["flat", "once"]
    assert figures["steps"][0]["ms"] > 0
    assert figures["relative_error"] < 1e-5
    assert "| skewed |" in table("tiny", figures)
    values = {bar.name: bar.value for bar in bars(figures)}
    assert values["b1_up_to_4k_us"] == figures["attention"][0]["us"]
    assert values["step_8b_b1_4k_ms"] is None


def test_a_kernel_that_is_wrong_is_not_measured(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gpu_cases.paged_attention
    monkeypatch.setattr(
        gpu_cases, "paged_attention", lambda *args, **kw: right(*args, **kw) * 1.001
    )
    with pytest.raises(Wrong, match="is off by"):
        check(TINY, torch.float32, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().out.startswith("skipped: torch sees no GPU")
    assert not (tmp_path / "results").exists()
