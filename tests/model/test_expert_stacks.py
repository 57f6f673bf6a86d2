"""Maps of experts as one: in which forms they lie, and what is taken of them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.codes import CodeKind, Codes, widen_codes
from runtime.model.expert_stacks import CodedStack, PlainStack, stack_of
from runtime.model.layers import Matrix
from tests.support.coded import KINDS, random_codes

EXPERTS, INPUTS = 3, 32
STARTS = torch.tensor([0, 2, 2, 5])


def product(x: Tensor, wide: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
    expert = torch.tensor([0, 0, 2, 2, 2])
    found = torch.einsum("pi,poi->po", x[rows], wide[expert])
    return found if bias is None else found + bias[expert]


def test_plain_maps_are_taken_once_each_and_stacked() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(EXPERTS, 2, 4, INPUTS, generator=generator, dtype=torch.float64)
    bias = torch.randn(EXPERTS, 8, generator=generator, dtype=torch.float64)
    asked: list[int] = []

    def matrices(place: int) -> Sequence[Matrix]:
        asked.append(place)
        return [*parts[place]]

    stack = stack_of(matrices, EXPERTS, 16, bias)
    assert isinstance(stack, PlainStack)
    assert asked == [0, 1, 2]
    assert stack.num_bytes == parts.nbytes
    x, rows = torch.randn(4, INPUTS, dtype=torch.float64), torch.tensor([3, 0, 1, 1, 2])
    wanted = product(x, parts.flatten(1, 2), rows, bias)
    assert torch.allclose(stack.multiply(x, rows, STARTS), wanted)
    assert torch.allclose(stack.multiply(x[rows], None, STARTS), wanted)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_stacked_as_they_lie(kind: CodeKind, zeros: bool) -> None:
    halves = [
        [random_codes(kind, 4, INPUTS, 16, zeros=zeros, seed=2 * n + k) for k in (0, 1)]
        for n in range(EXPERTS)
    ]
    stack = stack_of(lambda place: halves[place], EXPERTS, 16, None)
    assert isinstance(stack, CodedStack)
    assert stack.num_bytes == sum(each.num_bytes for pair in halves for each in pair)
    wide = torch.stack(
        [torch.cat([widen_codes(each, torch.float32) for each in pair]) for pair in halves]
    )
    x, rows = torch.randn(4, INPUTS), torch.tensor([3, 0, 1, 1, 2])
    wanted = product(x, wide, rows)
    near = {"rtol": 1e-5, "atol": 1e-5 * float(wanted.abs().max())}
    assert torch.allclose(stack.multiply(x, rows, STARTS), wanted, **near)
    assert torch.allclose(stack.multiply(x[rows], None, STARTS), wanted, **near)


def test_fp8_rounds_plain_maps_to_codes_and_leaves_codes() -> None:
    weights = torch.randn(EXPERTS, 4, INPUTS)
    stack = stack_of(lambda place: [weights[place]], EXPERTS, "fp8", None)
    assert isinstance(stack, CodedStack)
    x, rows = torch.randn(4, INPUTS), torch.tensor([3, 0, 1, 1, 2])
    wanted = product(x, weights, rows)
    assert (stack.multiply(x, rows, STARTS) - wanted).norm() / wanted.norm() < 0.05
    codes = [random_codes("int4", 4, INPUTS, 16, seed=n) for n in range(EXPERTS)]
    kept, plain = (stack_of(lambda place: [codes[place]], EXPERTS, b, None) for b in ("fp8", 16))
    assert kept is not None
    assert plain is not None
    assert torch.equal(kept.multiply(x, rows, STARTS), plain.multiply(x, rows, STARTS))


@pytest.mark.parametrize("odd", [1, 2])
def test_maps_of_several_forms_are_not_one(odd: int) -> None:
    codes = [random_codes("int8", 4, INPUTS, 16, seed=n) for n in range(EXPERTS)]
    others: list[Codes | Tensor] = [
        random_codes("int8", 4, INPUTS, 32, seed=9),
        random_codes("int4", 4, INPUTS, 16, seed=9),
        replace(codes[odd], zeros=torch.zeros(4, 2, dtype=torch.int8)),
        torch.zeros(4, INPUTS),
    ]
    for other in others:
        mixed = [*codes[:odd], other, *codes[odd + 1 :]]
        assert stack_of(lambda place, given=mixed: [given[place]], EXPERTS, 16, None) is None
        assert stack_of(lambda _, given=other: [codes[0], given], EXPERTS, 16, None) is None
    plain = torch.zeros(4, INPUTS)
    assert stack_of(lambda place: [plain if place != odd else codes[0]], EXPERTS, 16, None) is None
