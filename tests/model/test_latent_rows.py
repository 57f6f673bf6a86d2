"""What tokens give attention over latents."""

import torch

from kernels.latent_rows import latent_rows, latent_rows_reference, whole_queries
from kernels.per_head import HeadMaps, per_head_reference

TOKENS, HEADS, PLAIN, ROTARY, RANK = 5, 3, 4, 6, 8


def test_rows_are_normed_turned_and_stored_and_queries_turned() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    queries, rows = normal(TOKENS, HEADS, PLAIN + ROTARY), normal(TOKENS, RANK + ROTARY)
    weight, angle = normal(RANK), normal(TOKENS, ROTARY // 2)
    slots = torch.tensor([3, 0, 9, 7, 4])
    for write in (latent_rows, latent_rows_reference):
        blocks = torch.zeros(3, 1, 4, RANK + ROTARY, dtype=torch.float64)
        turned = write(
            queries,
            rows,
            norm=(weight, 1e-6),
            rotation=(angle.cos(), angle.sin()),
            blocks=blocks,
            slots=slots,
        )
        stored = blocks.view(12, -1)[slots]
        latent = rows[:, :RANK]
        normed = latent / (latent.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight
        assert torch.allclose(stored[:, :RANK], normed)
        pairs = torch.view_as_complex(
            torch.stack((rows[:, RANK : RANK + 3], rows[:, RANK + 3 :]), dim=2)
        )
        by = torch.polar(torch.ones_like(angle), angle)
        assert torch.allclose(torch.view_as_real(pairs * by)[..., 0], stored[:, RANK : RANK + 3])
        assert torch.allclose(torch.view_as_real(pairs * by)[..., 1], stored[:, RANK + 3 :])
        low, high = queries[:, :, PLAIN : PLAIN + 3], queries[:, :, PLAIN + 3 :]
        asked = torch.view_as_complex(torch.stack((low, high), dim=3)) * by[:, None]
        assert torch.allclose(torch.view_as_real(asked)[..., 0], turned[..., :3])
        assert not blocks.view(12, -1)[[1, 2, 5, 6, 8, 10, 11]].any()


def test_room_before_turned_queries_is_known_and_filled() -> None:
    whole = torch.zeros(TOKENS, HEADS, RANK + ROTARY)
    found = whole_queries(whole[:, :, RANK:], RANK)
    assert found is not None
    maps = HeadMaps(torch.randn(HEADS, PLAIN, RANK))
    plain = torch.randn(TOKENS, HEADS, PLAIN + ROTARY)[:, :, :PLAIN]
    maps.into(plain, found[:, :, :RANK])
    assert torch.allclose(whole[:, :, :RANK], per_head_reference(plain, maps.weights))
    assert not whole[:, :, RANK:].any()
    assert whole_queries(torch.zeros(TOKENS, HEADS, ROTARY), RANK) is None
    assert whole_queries(torch.zeros(TOKENS, HEADS, RANK + ROTARY)[:, :, :ROTARY], RANK) is None
    assert whole_queries(whole[:, :2, RANK:], RANK) is None
    assert whole_queries(whole[1:, :, RANK:], RANK) is None
