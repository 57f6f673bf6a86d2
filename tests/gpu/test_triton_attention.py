"""Triton's paged attention against the reference: every kind of step."""

import pytest
import torch

from tests.support.attention_on_triton import DECODE, DTYPES, EXTEND, MIXED, VERIFY, compare
from tests.support.paged_contexts import make_contexts


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes", [DECODE, VERIFY, EXTEND, MIXED], ids=["decode", "verify", "extend", "mixed"]
)
def test_every_kind_of_step_agrees_with_the_reference(
    dtype: torch.dtype, shapes: list[tuple[int, int]], device: torch.device
) -> None:
    compare(make_contexts(shapes, seed=3, dtype=dtype, head_dim=32), device, heads=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("shapes", [DECODE, MIXED], ids=["decode", "mixed"])
def test_sinks_take_their_share_of_every_kind_of_step(
    dtype: torch.dtype, window: int | None, shapes: list[tuple[int, int]], device: torch.device
) -> None:
    contexts = make_contexts(shapes, seed=4, dtype=dtype, head_dim=32)
    compare(contexts, device, heads=8, window=window, sinks=True)
