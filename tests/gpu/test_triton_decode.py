"""Decodes on a GPU: contexts in many parts, and rows that are padding."""

from dataclasses import replace

import pytest
import torch

from tests.support.attention_on_triton import compare
from tests.support.paged_contexts import make_contexts


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def test_one_long_context_is_split_into_many(device: torch.device) -> None:
    contexts = make_contexts(
        [(1100, 2), (3, 1)], seed=6, dtype=torch.float32, kv_heads=1, run_length=1
    )
    compare(contexts, device, heads=2)


def test_one_long_context_among_short_ones_leaves_more_parts_than_a_join_takes_at_once(
    device: torch.device,
) -> None:
    shapes = [*[(40, 1)] * 3, (9000, 2), *[(70, 1)] * 3, (64, 3)]
    contexts = make_contexts(shapes, seed=8, dtype=torch.float32, kv_heads=1)
    compare(contexts, device, heads=2)


def test_a_padded_sequence_is_left_alone(device: torch.device) -> None:
    contexts = make_contexts([(300, 1), (20, 1)], seed=7, dtype=torch.float32)
    layout = contexts.layout
    padded = replace(
        layout,
        query_starts=torch.cat((layout.query_starts, layout.query_starts[-1:])),
        context_lengths=torch.cat((layout.context_lengths, torch.zeros(1, dtype=torch.int32))),
        block_tables=torch.cat((layout.block_tables, torch.full_like(layout.block_tables[:1], -1))),
    )
    compare(replace(contexts, layout=padded), device, heads=4)
