"""Matrices of codes: what a code stands for."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.codes import CodeKind, Codes, joined, widen_codes
from tests.support.coded import KINDS, random_codes


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
