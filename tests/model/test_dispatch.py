"""Which implementation runs where."""

import importlib.util

import pytest
import torch

import kernels.dispatch
from kernels.dispatch import triton_kernels, wants_triton


@pytest.mark.parametrize(
    ("device", "setting", "expected"),
    [
        ("cpu", "", False),
        ("cuda", "", True),
        ("cuda", "torch", False),
        ("cpu", "torch", False),
        ("cpu", "triton", True),
    ],
)
def test_triton_is_for_gpus_unless_torch_is_asked_for(
    device: str, setting: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.dispatch, "SETTING", setting)
    assert wants_triton(torch.device(device)) is expected


def test_triton_that_is_wanted_and_missing_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels.dispatch, "SETTING", "triton")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"keepwarm\[gpu\].*KEEPWARM_KERNELS=torch"):
        triton_kernels("attention", torch.ones(1))


def test_float64_stays_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.dispatch, "SETTING", "triton")
    assert triton_kernels("attention", torch.ones(1, dtype=torch.float64)) is None
