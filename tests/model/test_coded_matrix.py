"""Products with matrices of codes, wherever they are made."""

import pytest
import torch
from torch import Tensor

from kernels.coded_matrix import coded_matmul_reference, coded_matrix
from kernels.codes import CodeKind, Codes, widen_codes
from kernels.tiled_matrix import TiledMatrix, fits_tiles
from tests.support.coded import KINDS, random_codes

SHAPES = [(1, 32, 32), (16, 64, 32), (70, 160, 32), (40, 1056, 128), (33, 256, 256), (24, 96, 64)]


def exact_product(x: Tensor, codes: Codes) -> tuple[Tensor, Tensor]:
    """In float64, and for each output the sum of the sizes of what is added up."""
    weight = widen_codes(codes, torch.float32).double()
    return x.double() @ weight.T, x.double().abs() @ weight.abs().T


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 6, 7, 13, 24, 25, 40, 41, 100])
def test_products_are_those_of_the_numbers(
    kind: CodeKind, zeros: bool, outputs: int, inputs: int, group: int, rows: int
) -> None:
    """They multiply the weights as they are: what is rounded is the sum. Many rows may round the
    weights to bfloat16 first, for a matrix unit."""
    codes = random_codes(kind, outputs, inputs, group, zeros=zeros, seed=rows)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).bfloat16()
    matrix = coded_matrix(codes, torch.bfloat16)
    product, (exact, sizes) = matrix.multiply(x), exact_product(x, codes)
    assert product.shape == (rows, outputs)
    widened = not isinstance(matrix, TiledMatrix) or rows > matrix.most_rows
    allowed = exact.abs() * 2**-8 + sizes * (2**-8 if widened else 2**-20)
    assert bool(((product.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_is_widened_as_its_numbers_say(kind: CodeKind) -> None:
    for zeros in (False, True):
        for outputs, inputs, group in SHAPES:
            codes = random_codes(kind, outputs, inputs, group, zeros=zeros, seed=7)
            matrix = coded_matrix(codes, torch.bfloat16)
            exact = widen_codes(codes, torch.bfloat16)
            assert torch.equal(matrix.widened(torch.bfloat16), exact), (zeros, outputs, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_float32_model_multiplies_the_numbers_themselves(kind: CodeKind) -> None:
    codes = random_codes(kind, 20, 72, 24, seed=3)
    x = torch.randn(9, 72)
    expected = coded_matmul_reference(x, codes)
    assert torch.allclose(coded_matrix(codes, torch.float32).multiply(x), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_notice_its_neighbours(kind: CodeKind) -> None:
    if not fits_tiles(torch.empty(16, 32, dtype=torch.bfloat16)):
        pytest.skip("no compiler, or a processor without AVX2")
    matrix = coded_matrix(random_codes(kind, 75, 256, 128, seed=2), torch.bfloat16)
    x = torch.randn(30, 256).bfloat16()
    alone = torch.cat([matrix.multiply(x[row : row + 1]) for row in range(30)])
    for rows in (2, 6, 7, 24, 25, 30):
        assert torch.equal(matrix.multiply(x[:rows]), alone[:rows]), rows


def test_the_smallest_and_the_largest_power_of_two_are_scales() -> None:
    codes = random_codes("e2m1", 16, 64, 32, seed=0)
    codes.scales[:, 0], codes.scales[:, 1] = 0, 250
    wide = widen_codes(codes, torch.float32)
    assert wide[:, :32].abs().max() <= 6 * 2.0**-127
    assert torch.equal(coded_matrix(codes, torch.bfloat16).widened(torch.float32), wide)
