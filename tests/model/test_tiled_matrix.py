"""Tiles of 16 outputs: every number of rows, every width of weights."""

import pytest
import torch

from kernels.quant_matmul import GROUP, quantise_reference, widen_reference
from kernels.tiled_matrix import NEVER, TiledMatrix, fits_tiles


def needs_compiled() -> None:
    if not fits_tiles(torch.empty(16, 32, dtype=torch.bfloat16)):
        pytest.skip("no compiler, or a processor without AVX2")


@pytest.mark.parametrize("widened_from", [None, 5, NEVER])
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 32), (16, 64), (70, 160), (200, 96), (40, 1056)]
)
def test_products_are_those_of_the_matrix(
    bits, outputs: int, inputs: int, widened_from: int | None
) -> None:
    """In fewer bits tiles multiply what was kept, and a widened matrix has been rounded again."""
    needs_compiled()
    torch.manual_seed(outputs)
    weight = torch.randn(outputs, inputs).to(torch.bfloat16)
    matrix = TiledMatrix(weight, bits=bits, group=GROUP, widened_from=widened_from)
    exact = weight
    if bits != 16:
        exact = widen_reference(*quantise_reference(weight, bits), torch.bfloat16)
    assert torch.equal(matrix.widened(torch.bfloat16), exact)
    for rows in [*range(18), 40, 41, 100]:
        x = torch.randn(rows, inputs).to(torch.bfloat16)
        product = matrix.multiply(x)
        assert product.shape == (rows, outputs)
        assert torch.allclose(product.float(), x.float() @ exact.float().T, rtol=1e-2, atol=0.2)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize(("rows", "inputs"), [(13, 256), (700, 256), (700, 2048)])
def test_a_row_does_not_notice_its_neighbours_until_the_matrix_is_widened(
    bits, rows: int, inputs: int
) -> None:
    """700 rows do not stay in a cache and are multiplied in parts; by a matrix unit those of 2,048
    inputs."""
    needs_compiled()
    weight = torch.randn(75, inputs).to(torch.bfloat16)
    matrix = TiledMatrix(weight, bits=bits, group=GROUP, widened_from=NEVER)
    x = torch.randn(rows, inputs).to(torch.bfloat16)
    alone = torch.cat([matrix.multiply(x[row : row + 1]) for row in range(rows)])
    assert torch.equal(matrix.multiply(x), alone)


def test_what_is_no_number_stays_in_its_row_and_output() -> None:
    needs_compiled()
    weight = torch.randn(20, 64).to(torch.bfloat16)
    weight[3, 5] = torch.nan
    x = torch.randn(9, 64).to(torch.bfloat16)
    x[2, 7], x[4, 9] = torch.nan, torch.inf
    product = TiledMatrix(weight, bits=16, group=GROUP).multiply(x)
    expected = x.float() @ weight.float().T
    assert torch.equal(product.isnan(), expected.isnan())
    assert torch.equal(product.isinf(), expected.isinf())


def test_extreme_weights_round_as_the_reference_does() -> None:
    needs_compiled()
    weight = torch.zeros(16, 64)
    weight[1, 3], weight[2, 40], weight[3] = 1e30, -1e-30, 5.0
    for bits in (8, 4):
        matrix = TiledMatrix(weight.to(torch.bfloat16), bits=bits, group=GROUP)
        values, scales = quantise_reference(weight.to(torch.bfloat16), bits)
        assert torch.equal(
            matrix.widened(torch.bfloat16), widen_reference(values, scales, torch.bfloat16)
        )


def test_a_strided_input_is_read_as_what_it_is() -> None:
    needs_compiled()
    weight = torch.randn(32, 64).to(torch.bfloat16)
    wide = torch.randn(3, 128).to(torch.bfloat16)
    matrix = TiledMatrix(weight, bits=16, group=GROUP)
    assert torch.equal(matrix.multiply(wide[:, :64]), matrix.multiply(wide[:, :64].contiguous()))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((16, 40), torch.bfloat16), ((16, 64), torch.float32)]
)
def test_what_does_not_fit_is_told_before(shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert not fits_tiles(torch.empty(shape, dtype=dtype))
