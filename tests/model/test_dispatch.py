"""Which implementation runs where."""

import pytest
import torch

from kernels.dispatch import wants_triton


@pytest.mark.parametrize(
    ("device", "setting", "expected"),
    [("cpu", "", False), ("cuda", "", True), ("cuda", "torch", False), ("cpu", "torch", False)],
)
def test_triton_is_for_gpus_unless_torch_is_asked_for(
    device: str, setting: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPWARM_KERNELS", setting)
    assert wants_triton(torch.device(device)) is expected
