"""The references of small kernels by hand, and the ways that are compiled against them."""

import math

import numpy as np
import pytest
import torch

import kernels.activation
from kernels import native_sampling
from kernels.activation import (
    silu_mul,
    silu_mul_reference,
    squared_relu,
    squared_relu_reference,
)
from kernels.attention import paged_attention_reference
from kernels.grouped_matmul import (
    grouped_matmul,
    grouped_matmul_reference,
    multiplies_grouped,
    sorted_by_expert,
)
from kernels.masked_sampling import sample, sample_reference
from kernels.native_library import compiled_library
from kernels.native_sampling import native_sampler
from kernels.paged_layout import PagedLayout
from kernels.rope import apply_rope, apply_rope_reference, turn_tail, turn_tail_reference
from tests.support.paged_contexts import make_contexts
from tests.support.sampling_batches import make_batch


@pytest.mark.parametrize("run_length", [1, 2, 7, 1000])
def test_spans_and_tensors_agree(run_length: int) -> None:
    rng = np.random.default_rng(run_length)
    shapes = [(int(n), int(rng.integers(1, n + 1))) for n in rng.integers(1, 200, 12)]
    contexts = make_contexts(shapes, seed=run_length, dtype=torch.float32, run_length=run_length)
    layout: PagedLayout = contexts.layout
    assert layout.max_query_tokens == max(new for _, new in shapes)
    for index, span in enumerate(layout.spans()):
        assert span.first_row == layout.query_starts[index]
        assert span.first_row + span.num_queries == layout.query_starts[index + 1]
        assert span.context_length == layout.context_lengths[index]
        blocks = [block + i for block, count in span.runs for i in range(count)]
        assert blocks == layout.block_tables[index, : len(blocks)].tolist()
        assert len(blocks) == -(-span.context_length // 16)


@pytest.mark.parametrize("window", [None, 3])
def test_each_query_averages_the_values_it_may_see(window: int | None) -> None:
    contexts = make_contexts([(9, 4), (3, 1)], seed=0, dtype=torch.float64, block_size=4)
    queries = torch.randn(5, 4, 8, dtype=torch.float64)
    output = paged_attention_reference(
        queries, *contexts.blocks, contexts.layout, scale=0.3, window=window
    )
    row = 0
    for (length, new), keys, values in zip(
        contexts.shapes, contexts.keys, contexts.values, strict=True
    ):
        for at in range(length - new, length):
            first = 0 if window is None else max(0, at - window + 1)
            for head in range(4):
                shared = head // 2
                weights = [
                    math.exp(0.3 * float(queries[row, head] @ keys[key, shared]))
                    for key in range(first, at + 1)
                ]
                mean = sum(
                    weight * values[first + index, shared] for index, weight in enumerate(weights)
                ) / sum(weights)
                assert torch.allclose(output[row, head], mean)
            row += 1


def angles(positions: torch.Tensor, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 100.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turned = torch.outer(positions.double(), frequencies)
    return turned.cos(), turned.sin()


def test_pairs_half_a_head_apart_turn_as_complex_numbers() -> None:
    x = torch.randn(5, 2, 8, dtype=torch.float64)
    cos, sin = angles(torch.arange(5), 4)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.complex(cos, sin)[:, None]
    expected = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(apply_rope_reference(x, cos, sin), expected)
    assert torch.equal(apply_rope(x, cos, sin), apply_rope_reference(x, cos, sin))


def test_neighbours_at_the_end_of_a_head_turn_as_complex_numbers() -> None:
    x = torch.randn(5, 2, 11, dtype=torch.float64)
    cos, sin = angles(torch.arange(5), 4)
    turned = torch.complex(x[..., 3::2], x[..., 4::2]) * torch.complex(cos, sin)[:, None]
    expected = torch.cat((x[..., :3], torch.view_as_real(turned).flatten(-2)), -1)
    assert torch.allclose(turn_tail_reference(x, cos, sin), expected)
    assert torch.equal(turn_tail(x, cos, sin), turn_tail_reference(x, cos, sin))
    assert torch.allclose(turn_tail(turn_tail(x, cos, sin), cos, -sin), x)


def test_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64).unbind()

    def product(query_at: int, key_at: int) -> torch.Tensor:
        turned = [
            apply_rope(x, *angles(torch.tensor([at]), 8)) for x, at in ((q, query_at), (k, key_at))
        ]
        return (turned[0] * turned[1]).sum()

    assert torch.allclose(product(7, 3), product(107, 103))
    assert not torch.allclose(product(7, 3), product(7, 4))


def test_the_reference_is_gate_times_its_logistic_times_up() -> None:
    gate, up = torch.randn(2, 6, 40, dtype=torch.float64).unbind()
    expected = gate / (1 + torch.exp(-gate)) * up
    assert torch.allclose(silu_mul_reference(torch.cat((gate, up), -1)), expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_every_way_agrees_with_the_reference(
    dtype: torch.dtype, tolerance: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels.activation, "native_library", lambda _: None)
    for tokens in (1, 3, 90):
        gate_up = torch.randn(tokens, 2 * 1000).to(dtype) * 5
        expected = silu_mul_reference(gate_up)
        assert torch.allclose(silu_mul(gate_up), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [-1e4, -90.0, 90.0, 1e4])
def test_extreme_gates_neither_overflow_nor_turn_nan(value: float) -> None:
    gate_up = torch.tensor([[value, 1.0]])
    assert torch.allclose(silu_mul(gate_up), silu_mul_reference(gate_up), atol=1e-30)


def test_what_is_below_0_is_squared_to_0() -> None:
    x = torch.tensor([[-3.0, 0.0, 2.0, torch.nan]])
    for found in (squared_relu(x), squared_relu_reference(x)):
        assert torch.equal(found[:, :3], torch.tensor([[0.0, 0.0, 4.0]]))
        assert found[0, 3].isnan()
    assert x[0, 0] == -3


@pytest.mark.parametrize("experts", [1, 4, 9])
def test_picks_are_sorted_and_multiplied_one_by_one(experts: int) -> None:
    torch.manual_seed(experts)
    x, matrices = torch.randn(12, 6).double(), torch.randn(experts, 5, 6).double()
    chosen = torch.randint(0, experts, (24,))
    order, starts = sorted_by_expert(chosen, experts)
    assert sorted(order.tolist()) == list(range(24))
    product = grouped_matmul_reference(x, matrices, order // 2, starts)
    for place, pick in enumerate(order.tolist()):
        assert torch.allclose(product[place], matrices[chosen[pick]] @ x[pick // 2])
    assert torch.equal(grouped_matmul(x, matrices, order // 2, starts), product)


def test_an_expert_that_nobody_takes_has_no_rows_and_order_is_kept() -> None:
    order, starts = sorted_by_expert(torch.tensor([3, 1, 3, 0, 1]), 5)
    assert starts.tolist() == [0, 1, 3, 3, 5, 5]
    assert order.tolist() == [3, 1, 4, 0, 2]


def test_a_cpu_without_triton_does_without() -> None:
    assert not multiplies_grouped(torch.zeros(1))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_rows_at_once_are_drawn_like_each_alone(dtype: torch.dtype) -> None:
    """Enough of them for several threads."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(40, 2000)) * 3).to(dtype)
    batch = make_batch(rng, 40, 2000)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))


def test_other_types_and_machines_without_a_compiler_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert native_sampler(torch.bfloat16) is None
    assert (native_sampler(torch.float32) is None) == (compiled_library() is None)
    monkeypatch.setattr(native_sampling, "compiled_library", lambda: None)
    native_sampler.cache_clear()
    rng = np.random.default_rng(1)
    logits, batch = torch.from_numpy(rng.normal(size=(5, 300))), make_batch(rng, 5, 300)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))
    native_sampler.cache_clear()
