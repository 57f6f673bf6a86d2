"""Triton's writes to rings, of up to three kinds of rows, against torch's."""

import pytest
import torch

from kernels.ring_write import MOST_PAIRS, ring_write, ring_write_reference

SHAPES = [(7,), (3, 517), (2,)]
"""Rows of one tile, of two, and short ones."""


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_rows_come_to_their_places_and_nowhere_else(kinds: int, device: torch.device) -> None:
    """Of a place that has no ring nothing is written; rows may be wider than rings."""
    generator = torch.Generator().manual_seed(kinds)
    places = torch.tensor([[2, 0, -1, 1], [5, 0, 3, 7], [4, 1, 2, 0]])
    pairs, wanted = [], []
    for shape in SHAPES[:kinds]:
        rings = torch.randn(3, 2, 8, *shape, generator=generator).bfloat16()
        rows = torch.randn(5, *shape, generator=generator)
        pairs.append((rings.to(device), rows.to(device)))
        kept = [part[places[0] >= 0] for part in places]
        ring_write_reference(1, (kept[0], kept[1], kept[2]), (rings, rows))
        wanted.append(rings)
    ring, place, token = (part.to(device) for part in places)
    ring_write(1, (ring, place, token), *pairs)
    for (found, _), rings in zip(pairs, wanted, strict=True):
        assert torch.equal(found.cpu(), rings)


def test_no_place_is_no_launch_and_too_many_kinds_are_an_error(device: torch.device) -> None:
    rings, rows = torch.zeros(1, 1, 2, 3, device=device), torch.ones(1, 3, device=device)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    ring_write(0, (nothing, nothing, nothing), (rings, rows))
    assert not rings.any()
    with pytest.raises(ValueError, match="kinds of rows"):
        ring_write(0, (nothing, nothing, nothing), *[(rings, rows)] * (MOST_PAIRS + 1))
