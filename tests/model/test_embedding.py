"""Rows of the embedding, whatever it is kept as."""

import pytest
import torch

from kernels.codes import widen_codes
from runtime.model.embedding import Embedding
from tests.support.coded import KINDS, random_codes

IDS = torch.tensor([3, 0, 3, 11])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_looked_up_are_rows_of_the_widened_matrix(kind, dtype: torch.dtype) -> None:
    codes = random_codes(kind, 12, 64, 32, zeros=True, seed=1)
    found = Embedding(codes, dtype)(IDS)
    assert found.dtype == dtype
    assert torch.equal(found, widen_codes(codes, dtype)[IDS])


def test_a_plain_one_is_looked_up_as_ever() -> None:
    weight = torch.randn(12, 8)
    assert torch.equal(Embedding(weight, torch.float32)(IDS), weight[IDS])
