"""Linear maps: every form multiplies as the plain one does."""

import pytest
import torch
from torch.nn import functional

from runtime.model.layers import LinearByRows, MapLoader, WeightBits, make_linear, packs
from runtime.model.product_choice import RANK, Layout, ProductChoice
from runtime.model.random_weights import RandomWeights

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 3, 100])
def test_every_form_agrees_with_the_plain_product(
    dtype: torch.dtype, limit: float, with_bias: bool, tokens: int
) -> None:
    weight, x = (torch.randn(70, 64) / 8).to(dtype), torch.randn(tokens, 64).to(dtype)
    bias = torch.randn(70).to(dtype) if with_bias else None
    expected = functional.linear(x, weight, bias)
    linear = make_linear(weight.clone(), bias, 16)
    assert torch.allclose(linear(x), expected, rtol=limit, atol=limit)
    assert (
        linear.num_bytes
        == (-(-70 // 16) * 16 if dtype == torch.bfloat16 else 70) * 64 * dtype.itemsize
    )


ROWS = [1, 5, 8, 40, 41, 64, 300]
PAIRS = [(few, many) for few in RANK for many in RANK if few != many]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(70, 64), (70, 40)])
@pytest.mark.parametrize(
    "choice",
    [
        *(ProductChoice(few=layout) for layout in RANK),
        *(ProductChoice(few=few, many=many, from_rows=9) for few, many in PAIRS),
        ProductChoice(few="tiles", many="widened", from_rows=9),
    ],
    ids=str,
)
def test_every_layout_agrees_with_the_plain_product(
    choice: ProductChoice, shape: tuple[int, int], with_bias: bool
) -> None:
    """70 outputs do not fill their tiles, 40 inputs do not fit tiles at all."""
    outputs, inputs = shape
    weight = (torch.randn(shape) / 8).to(torch.bfloat16)
    bias = torch.randn(outputs).to(torch.bfloat16) if with_bias else None
    linear = make_linear(weight.clone(), bias, 16, choice)
    for rows in ROWS:
        x = torch.randn(rows, inputs).to(torch.bfloat16)
        expected = functional.linear(x, weight, bias)
        assert torch.allclose(linear(x), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_second_copy_of_fewer_bits_holds_the_rounded_weights(
    bits: WeightBits, with_bias: bool
) -> None:
    weight = (torch.randn(70, 64) / 8).to(torch.bfloat16)
    bias = torch.randn(70).to(torch.bfloat16) if with_bias else None
    single = make_linear(weight.clone(), bias, bits)
    choice = ProductChoice(few="tiles", many="packed", from_rows=9)
    double = make_linear(weight.clone(), bias, bits, choice)
    assert double.num_bytes == single.num_bytes
    for rows in ROWS:
        x = torch.randn(rows, 64).to(torch.bfloat16)
        assert torch.allclose(double(x), single(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("few", "many"), PAIRS)
def test_the_second_copy_multiplies_from_the_rows_of_the_choice_on(
    few: Layout, many: Layout
) -> None:
    weight = torch.randn(64, 64).to(torch.bfloat16)
    if not packs(weight):
        pytest.skip("no oneDNN for bfloat16 on this processor")
    both = make_linear(weight.clone(), None, 16, ProductChoice(few=few, many=many, from_rows=6))
    if not isinstance(both, LinearByRows):
        pytest.skip("no compiler, or a processor without AVX2")
    alone = {name: make_linear(weight.clone(), None, 16, ProductChoice(few=name)) for name in RANK}
    assert both.num_bytes == min(alone[few].num_bytes, alone[many].num_bytes)
    for rows, used in ((1, few), (5, few), (6, many), (100, many)):
        x = torch.randn(rows, 64).to(torch.bfloat16)
        assert torch.equal(both(x), alone[used](x))


def test_a_second_copy_that_would_lie_as_the_first_is_not_made() -> None:
    choice = ProductChoice(few="tiles", many="plain", from_rows=6)
    for weight in (torch.randn(16, 40), torch.randn(16, 64, dtype=torch.float64)):
        assert not isinstance(make_linear(weight, None, 16, choice), LinearByRows)


@pytest.mark.parametrize("bits", [8, 4, "fp8"])
def test_fewer_bits_take_less_memory_and_keep_the_bias(bits: WeightBits) -> None:
    weight, bias, x = torch.randn(64, 64), torch.randn(64) * 100, torch.randn(3, 64)
    linear = make_linear(weight.clone(), bias, bits)
    assert linear.num_bytes < weight.numel() * 2
    expected = functional.linear(x, weight, bias)
    assert (linear(x) - expected).norm() < 0.15 * (expected - bias).norm()


def test_fused_maps_lie_side_by_side() -> None:
    source = RandomWeights(0, torch.float64, CPU)
    fused = MapLoader(source=source).linear(["a", "b"], [3, 5], 4, bias=True)
    x = torch.randn(2, 4, dtype=torch.float64)
    for name, size, columns in (("a", 3, slice(0, 3)), ("b", 5, slice(3, 8))):
        weight, bias = (
            source.tensor(f"{name}.weight", (size, 4)),
            source.tensor(f"{name}.bias", (size,)),
        )
        assert torch.allclose(fused(x)[:, columns], x @ weight.T + bias)
