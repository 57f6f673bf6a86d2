"""Triton's paged attention against the reference: every kind of step."""

from dataclasses import replace

import pytest
import torch

from kernels.attention import fits_triton
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
@pytest.mark.parametrize(("heads", "rank", "rest"), [(20, 256, 16), (3, 512, 64)])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("shapes", [DECODE, MIXED], ids=["decode", "mixed"])
def test_rows_of_latents_are_keys_and_their_first_numbers_values(
    dtype: torch.dtype,
    heads: int,
    rank: int,
    rest: int,
    sinks: bool,
    shapes: list[tuple[int, int]],
    device: torch.device,
) -> None:
    assert fits_triton(rank + rest, rank)
    contexts = make_contexts(shapes, seed=5, dtype=dtype, kv_heads=1, head_dim=rank + rest)
    scaled = replace(contexts, blocks=(contexts.blocks[0] / 4, contexts.blocks[1]))
    compare(scaled, device, heads=heads, value_dim=rank, sinks=sinks)


def test_heads_that_tiles_have_no_room_for_are_not_asked_of_triton() -> None:
    for head_dim, value_dim in ((288, 288), (576, 510), (640, 512), (1088, 1024), (264, 256)):
        assert not fits_triton(head_dim, value_dim)
    assert fits_triton(256, 256)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("shapes", [DECODE, MIXED], ids=["decode", "mixed"])
def test_sinks_take_their_share_of_every_kind_of_step(
    dtype: torch.dtype, window: int | None, shapes: list[tuple[int, int]], device: torch.device
) -> None:
    contexts = make_contexts(shapes, seed=4, dtype=dtype, head_dim=32)
    compare(contexts, device, heads=8, window=window, sinks=True)
