"""Matrices of codes: what a code stands for, and products with it, wherever they are made."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.coded_matrix import coded_matmul_reference, coded_matrix
from kernels.codes import CodeKind, Codes, joined, widen_codes
from kernels.tiled_matrix import TiledMatrix, fits_tiles
from tests.support.coded import KINDS, random_codes

SHAPES = [(1, 32, 32), (16, 64, 32), (70, 160, 32), (40, 1056, 128), (33, 256, 256), (24, 96, 64)]


def value_by_hand(codes: Codes, output: int, place: int) -> float:
    """One weight, worked out digit by digit in Python's own numbers."""
    wide = codes.kind in ("int8", "e4m3")
    byte = int(codes.values[output, place if wide else place // 2])
    code = byte if wide else (byte >> 4 if place % 2 else byte & 15)
    group = place // codes.group
    if codes.kind == "e2m1":
        sign, exponent, last = code >> 3, code >> 1 & 3, code & 1
        size = last / 2 if exponent == 0 else (1 + last / 2) * 2.0 ** (exponent - 1)
        return (-size if sign else size) * 2.0 ** (int(codes.scales[output, group]) - 127)
    scale = float(codes.scales[output, group])
    if codes.kind == "e4m3":
        sign, exponent, last = code >> 7, code >> 3 & 15, code & 7
        size = last / 8 * 2.0**-6 if exponent == 0 else (1 + last / 8) * 2.0 ** (exponent - 7)
        return (-size if sign else size) * scale
    number = code if codes.kind == "int4" or code < 128 else code - 256
    zero = 8 if codes.kind == "int4" else 0
    if codes.zeros is not None:
        zero = int(codes.zeros[output, group])
    return (number - zero) * scale


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_code_stands_for_what_its_bits_say(kind: CodeKind, zeros: bool) -> None:
    codes = random_codes(kind, 5, 96, 64, zeros=zeros, seed=1)
    wide = widen_codes(codes, torch.float32)
    for output in range(5):
        for place in range(96):
            exact = torch.tensor(value_by_hand(codes, output, place), dtype=torch.float64)
            assert wide[output, place] == exact.float(), (output, place)


def exact_product(x: Tensor, codes: Codes) -> tuple[Tensor, Tensor]:
    """In float64, and for each output the sum of the sizes of what is added up."""
    weight = widen_codes(codes, torch.float32).double()
    return x.double() @ weight.T, x.double().abs() @ weight.abs().T


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 12, 13, 40, 41, 100])
def test_products_are_those_of_the_numbers(
    kind: CodeKind, zeros: bool, outputs: int, inputs: int, group: int, rows: int
) -> None:
    """Few rows multiply the weights as they are: what is rounded is the sum. Many rows may round
    the weights to bfloat16 first."""
    codes = random_codes(kind, outputs, inputs, group, zeros=zeros, seed=rows)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).bfloat16()
    matrix = coded_matrix(codes, torch.bfloat16)
    product, (exact, sizes) = matrix.multiply(x), exact_product(x, codes)
    assert product.shape == (rows, outputs)
    widened = rows > 40 or not isinstance(matrix, TiledMatrix)
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
    assert torch.equal(matrix.multiply(x), alone)


def test_the_smallest_and_the_largest_power_of_two_are_scales() -> None:
    codes = random_codes("e2m1", 16, 64, 32, seed=0)
    codes.scales[:, 0], codes.scales[:, 1] = 0, 250
    wide = widen_codes(codes, torch.float32)
    assert wide[:, :32].abs().max() <= 6 * 2.0**-127
    assert torch.equal(coded_matrix(codes, torch.bfloat16).widened(torch.float32), wide)


def test_matrices_of_one_form_are_joined_and_others_are_not() -> None:
    def shapes(parts: Sequence[Codes]) -> Tensor:
        return torch.cat([widen_codes(part, torch.float32) for part in parts])

    parts = [random_codes("int4", rows, 64, 32, zeros=True, seed=rows) for rows in (3, 16, 5)]
    whole = joined(parts)
    assert whole is not None
    assert torch.equal(widen_codes(whole, torch.float32), shapes(parts))
    for other in (
        random_codes("int4", 3, 64, 32, seed=0),
        random_codes("int4", 3, 64, 64, zeros=True, seed=0),
        random_codes("int8", 3, 64, 32, zeros=True, seed=0),
    ):
        assert joined([*parts, other]) is None


def test_rows_are_taken_with_their_scales() -> None:
    codes = random_codes("int8", 12, 64, 32, zeros=True, seed=5)
    order = torch.tensor([3, 0, 11])
    taken = widen_codes(codes.rows(order), torch.float32)
    assert torch.equal(taken, widen_codes(codes, torch.float32)[order])


def test_scales_that_do_not_fit_are_refused() -> None:
    codes = random_codes("int8", 12, 64, 32, seed=5)
    with pytest.raises(ValueError, match="groups"):
        Codes(kind="int8", values=codes.values, scales=codes.scales, group=64)
