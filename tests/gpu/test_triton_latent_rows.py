"""Triton's rows of latents and rotated queries against torch's."""

import pytest
import torch

from kernels.dispatch import triton_kernels
from kernels.latent_rows import latent_rows, latent_rows_reference, whole_queries

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("tokens", "heads", "plain", "rank", "rotary"),
    [(1, 20, 128, 512, 64), (5, 8, 12, 40, 16), (3, 1, 16, 256, 32), (4, 9, 6, 20, 6)],
)
def test_rows_and_queries_are_those_of_torch(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    plain: int,
    rank: int,
    rotary: int,
    device: torch.device,
) -> None:
    """Both are parts of what one product gave; a token without a slot stores nothing."""
    generator = torch.Generator().manual_seed(rank)
    width = heads * (plain + rotary)
    first = torch.randn(tokens, width + rank + rotary, generator=generator).to(dtype)
    weight = torch.randn(rank, generator=generator).to(dtype)
    angle = torch.randn(tokens, rotary // 2, generator=generator)
    slots = torch.randperm(12, generator=generator)[:tokens]
    queries, rows = first[:, :width].view(tokens, heads, -1), first[:, width:]
    rotation = angle.cos().to(dtype), angle.sin().to(dtype)
    wanted = torch.full((3, 1, 4, rank + rotary), 7.0, dtype=dtype)
    expected = latent_rows_reference(
        queries, rows, norm=(weight, 1e-6), rotation=rotation, blocks=wanted, slots=slots
    )
    if tokens > 1:
        wanted.view(12, -1)[slots[-1]] = 7.0
        slots[-1] = -1
    moved = first.to(device)
    blocks = torch.full_like(wanted, 7.0, device=device)
    found = latent_rows(
        moved[:, :width].view(tokens, heads, -1),
        moved[:, width:],
        norm=(weight.to(device), 1e-6),
        rotation=(rotation[0].to(device), rotation[1].to(device)),
        blocks=blocks,
        slots=slots.to(device),
    )
    limit = TOLERANCE[dtype]
    assert torch.allclose(found.cpu(), expected, rtol=limit, atol=limit)
    assert torch.allclose(blocks.cpu(), wanted, rtol=limit, atol=limit)
    assert whole_queries(found, rank) is not None


def test_what_has_no_kernel_is_refused_and_no_tokens_are_none(device: torch.device) -> None:
    kernels = triton_kernels("latent_rows", torch.zeros(1, device=device))
    assert kernels is not None
    given = {
        "norm": (torch.ones(8, device=device), 1e-6),
        "rotation": (torch.ones(0, 2, device=device), torch.ones(0, 2, device=device)),
        "slots": torch.zeros(0, dtype=torch.int64, device=device),
    }
    queries, rows = torch.zeros(0, 2, 10, device=device), torch.zeros(0, 12, device=device)
    blocks = torch.zeros(2, 1, 4, 12, device=device)
    assert kernels.latent_rows(queries, rows, blocks=blocks, **given).shape == (0, 2, 4)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.latent_rows(queries, rows, blocks=blocks[:, :, ::2], **given)
