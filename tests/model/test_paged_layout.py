"""A layout's two readings, tensors for kernels and spans for the host, say the same."""

import numpy as np
import pytest
import torch

from tests.support.paged_contexts import make_contexts


@pytest.mark.parametrize("run_length", [1, 2, 7, 1000])
def test_spans_and_tensors_agree(run_length: int) -> None:
    rng = np.random.default_rng(run_length)
    shapes = [(int(n), int(rng.integers(1, n + 1))) for n in rng.integers(1, 200, 12)]
    contexts = make_contexts(shapes, seed=run_length, dtype=torch.float32, run_length=run_length)
    layout = contexts.layout
    assert layout.max_query_tokens == max(new for _, new in shapes)
    for index, span in enumerate(layout.spans):
        assert span.first_row == layout.query_starts[index]
        assert span.first_row + span.num_queries == layout.query_starts[index + 1]
        assert span.context_length == layout.context_lengths[index]
        blocks = [block + i for block, count in span.runs for i in range(count)]
        assert blocks == layout.block_tables[index, : len(blocks)].tolist()
        assert len(blocks) == -(-span.context_length // 16)
