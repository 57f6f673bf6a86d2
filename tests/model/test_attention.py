"""The attention reference against a softmax written out by hand."""

import math

import pytest
import torch

from kernels.attention import paged_attention_reference
from tests.support.paged_contexts import make_contexts


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
