"""What is done once before a server is ready: every kind of draw, chunks of every size."""

import numpy as np
import pytest
import torch

from kernels.masked_sampling import SamplingBatch
from runtime.model import warm_up
from runtime.model.batch import NO_STATE
from runtime.model.warm_up import chunks, draws, single_token

CPU = torch.device("cpu")


def test_every_set_of_filters_is_drawn_with_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SamplingBatch] = []

    def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        seen.append(batch)
        return torch.zeros(logits.shape[0], dtype=torch.int64)

    monkeypatch.setattr(warm_up, "sample", sample)
    for draw in draws(100, CPU):
        draw()
    kinds = {
        (batch.masks is not None, bool(batch.top_k[0]), bool(batch.top_p[0] < 1))
        for batch in seen
        if batch.penalties is None
    }
    assert len(kinds) == 8
    assert sum(batch.penalties is not None for batch in seen) == 1


def test_draws_give_tokens_of_the_vocabulary() -> None:
    for draw in draws(100, CPU):
        tokens = draw()
        assert tokens.shape == (2,)
        assert ((tokens >= 0) & (tokens < 100)).all()


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(0, []), (300, [300]), (512, [512]), (2048, [512, 1024, 2048]), (700, [512, 700])],
)
def test_chunks_double_up_to_the_largest(most: int, sizes: list[int]) -> None:
    steps = list(chunks(most, 16))
    assert [len(step[0].tokens) for step in steps] == sizes
    for (step,) in steps:
        assert np.array_equal(step.block_table, np.arange(-(-len(step.tokens) // 16)))


def test_a_single_token_begins_and_needs_no_state() -> None:
    (part,) = single_token()
    assert (len(part.tokens), part.start, part.state_slot) == (1, 0, NO_STATE)
