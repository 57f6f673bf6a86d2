"""The GPU benchmark's plumbing on sizes that the interpreter manages; no figure counts here."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from benchmarks import gpu, gpu_cases, gpu_experts, gpu_kernels
from benchmarks.gpu import bars, main, measure, table
from benchmarks.gpu_cases import Wrong, check
from benchmarks.gpu_kernels import FILTERS
from benchmarks.gpu_plan import REHEARSAL
from kernels.masked_sampling import SamplingBatch, sample_reference

TINY = REHEARSAL
PARTS = ["attention", "verify", "shared_prefix", "fp8_kv", "sampling", "fp8_products", "experts"]
PARTS += [
    "sweep",
    "sweep_verify",
    "sweep_prefix",
    "sweep_fp8",
    "steps",
    "graphs",
    "verified_steps",
    "prefill",
    "tiers",
    "recurrent",
]
ELSEWHERE = ["peer", "peer_compiled", "lookahead"]
"""The last has ``tests/benchmarks/test_gpu_engine_benchmark.py``."""


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def test_every_part_is_measured_and_tabled(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = gpu.parts(TINY, torch.float32, device)
    assert list(everything) == [*PARTS, *ELSEWHERE]
    everything = {name: everything[name] for name in PARTS}
    monkeypatch.setattr(gpu, "parts", lambda *args: everything)
    kept: list[list[str]] = []
    figures = measure(TINY, torch.float32, device, lambda some: kept.append(list(some)))
    assert figures["failed"] == {}
    assert list(figures["seconds"]) == PARTS
    assert [some[-1] for some in kept] == PARTS
    assert [row["case"] for row in figures["attention"]] == ["B1 1k", "skewed"]
    assert [row["queries"] for row in figures["verify"]] == [1, 3]
    assert [row["way"] for row in figures["shared_prefix"]] == ["flat", "once"]
    assert figures["steps"][0]["ms"] > 0
    assert figures["relative_error"] < 1e-5
    assert len(figures["sampling"]) == len(FILTERS)
    assert [row["rows"] for row in figures["fp8_products"]] == [1, 5]
    assert [row["kept"] for row in figures["experts"][::2]] == ["dtype", "e4m3", "int4", "e2m1"]
    assert {row["experts_used"] for row in figures["experts"][::2]} == {2}
    assert [row["context"] for row in figures["prefill"]] == [0, 40]
    assert [(row["way"], row["blocks"]) for row in figures["tiers"]] == [
        (way, order) for order in ("in a row", "scattered") for way in ("down", "up")
    ]
    told = [(row["layer"], row["what"]) for row in figures["recurrent"]]
    assert told == [
        (layer.name, what)
        for layer in TINY.recurrent
        for what in ("decode", "commit", "snapshot copy", "prefill")
    ]
    assert figures["graphs"][0]["faster_recorded"] > 0
    assert [row["queries"] for row in figures["verified_steps"]] == [1, 3]
    page = table("tiny", figures)
    assert all(f"## {part}" in page for part in PARTS)
    assert "| skewed |" in page
    values = {bar.name: bar.value for bar in bars(figures)}
    assert values["b1_up_to_4k_us"] == figures["attention"][0]["us"]
    assert values["step_8b_b1_4k_ms"] is None


def test_a_part_that_fails_says_so_and_the_others_are_measured(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(logits: Tensor, batch: SamplingBatch) -> Tensor:
        return sample_reference(logits, batch) + 1

    few = ("sampling", "shared_prefix", "verify")
    everything = gpu.parts
    monkeypatch.setattr(gpu, "parts", lambda *args: {name: everything(*args)[name] for name in few})
    monkeypatch.setattr(gpu_kernels, "sample_reference", other)
    monkeypatch.setattr(gpu, "measure_shared_prefix", lambda *args: 1 / 0)
    figures = measure(TINY, torch.float32, device)
    assert "tokens differ" in figures["failed"]["sampling"]
    assert list(figures["failed"]) == ["sampling", "shared_prefix"]
    assert len(figures["verify"]) == 2
    figures |= {"attention": [], "steps": []}
    assert "sampling failed: benchmarks.gpu_cases.Wrong" in table("tiny", figures)
    assert {bar.value for bar in bars(figures)} == {None}


@pytest.mark.parametrize(
    ("part", "module", "name"),
    [
        ("fp8_kv", gpu_kernels, "paged_attention_reference"),
        ("fp8_products", gpu_kernels, "fp8_matmul_reference"),
        ("experts", gpu_experts, "grouped_matmul_reference"),
        ("experts", gpu_experts, "grouped_coded_matmul_reference"),
    ],
)
def test_a_part_whose_kernel_is_wrong_is_not_measured(
    part: str, module: ModuleType, name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **more: right(*args, **more) * 1.02)
    with pytest.raises(Wrong, match="off by"):
        gpu.parts(TINY, torch.float32, device)[part](1.0)


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
