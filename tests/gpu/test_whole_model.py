"""Whole models on Triton's kernels: the same logits and tokens as on torch."""

import numpy as np
import pytest
import torch

from runtime.batch import SequenceInput
from runtime.model_runner import ModelRunner
from runtime.weights import load_model

NUM_BLOCKS = 24


def steps() -> list[list[SequenceInput]]:
    """A prefill of two sequences, then a chunk beside a decode, then a verification."""
    tokens = np.random.default_rng(0).integers(0, 256, (2, 90), dtype=np.int32)
    tables = np.random.default_rng(1).permutation(NUM_BLOCKS).astype(np.int32).reshape(2, -1)

    def part(sequence: int, start: int, stop: int, num_logits: int) -> SequenceInput:
        return SequenceInput(
            tokens=tokens[sequence, start:stop],
            start=start,
            block_table=tables[sequence],
            num_logits=num_logits,
        )

    return [
        [part(0, 0, 40, 1), part(1, 0, 7, 1)],
        [part(0, 40, 85, 1), part(1, 7, 8, 1)],
        [part(0, 85, 90, 5), part(1, 8, 9, 1)],
    ]


def logits_of(family: str, device: torch.device) -> list[torch.Tensor]:
    model = load_model(f"random:{family}", dtype=torch.float32, device=device)
    runner = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=16)
    for index in range(model.config.num_layers):
        for part in runner.pool.layer(index):
            part.fill_(torch.nan)
    return [runner.run(step).cpu() for step in steps()]


@pytest.mark.parametrize("family", ["qwen3-tiny", "qwen2-tiny", "llama-tiny", "mistral-tiny"])
def test_logits_are_those_of_torch(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(family, torch.device("cpu"))
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")
    for found, wanted in zip(logits_of(family, device), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
