"""Which product codes of a checkpoint get: that of our own weights where the law is theirs."""

import pytest
import torch

from kernels.coded_tiles import tiled_codes
from kernels.native_library import native_library
from kernels.quant_matmul import quantise_reference
from kernels.tiled_matrix import TiledMatrix, fits_tiles
from tests.support.coded import random_codes

LIBRARY = native_library(torch.bfloat16)
needs_compiled = pytest.mark.skipif(
    not fits_tiles(torch.empty(16, 32, dtype=torch.bfloat16)), reason="no compiled products here"
)


@needs_compiled
@pytest.mark.parametrize(
    ("kind", "zeros", "group", "expected"),
    [
        ("int4", False, 32, "4"),
        ("int4", False, 128, "4"),
        ("int4", True, 32, "int4"),
        ("int4", False, 96, "int4"),  # the last group is shorter
        ("int8", False, 256, "8"),
        ("int8", False, 32, "int8"),
        ("int8", True, 256, "int8"),
        ("e2m1", False, 32, "e2m1"),
        ("e4m3", False, 128, "e4m3"),
    ],
)
def test_the_fastest_product_that_knows_the_numbers_is_taken(kind, zeros, group, expected) -> None:
    assert LIBRARY is not None
    made = tiled_codes(LIBRARY, random_codes(kind, 20, 256, group, zeros=zeros, seed=0))
    assert made.kind == expected
    assert (made.zeros is not None) == (expected == "int4" or zeros)


@needs_compiled
@pytest.mark.parametrize("bits", [4, 8])
def test_our_own_weights_laid_out_as_codes_are_the_same_bytes(bits) -> None:
    weight = torch.randn(40, 96).bfloat16()
    values, scales = quantise_reference(weight, bits)
    own = TiledMatrix(weight, bits=bits, group=32).weights
    codes = random_codes("int4" if bits == 4 else "int8", 40, 96, 32 if bits == 4 else 96, seed=0)
    raw = (values + 8).to(torch.uint8) if bits == 4 else values.view(torch.uint8)
    codes.values.copy_(raw[:, 0::2] | raw[:, 1::2] << 4 if bits == 4 else raw)
    codes.scales.copy_(scales)
    assert LIBRARY is not None
    made = tiled_codes(LIBRARY, codes)
    assert torch.equal(made.scales[:2], own.scales[:2])
    assert torch.equal(
        made.values[: 2 * 16 * 96 * bits // 8], own.values[: 2 * 16 * 96 * bits // 8]
    )
