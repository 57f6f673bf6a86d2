"""What fewer bits cost a whole model with experts: routers choose others where two are near."""

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.model.batch import SequenceInput
from runtime.model.layers import WeightBits
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model

BOUNDS: dict[WeightBits, float] = {8: 0.03, 4: 0.3, "fp8": 0.15}
"""Norm of the logits' error over the logits' norm, against float32."""
NUM_PLAIN = 256
"""Tokens whose logits the random model does not push away; the others would hide the error."""


@functools.cache
def logits(bits: WeightBits) -> Tensor:
    """Of 400 random tokens in two sequences, weights in ``bits``."""
    model = load_model(
        "random:qwen3-moe-tiny", dtype=torch.float32, device=torch.device("cpu"), bits=bits
    )
    runner = ModelRunner(model, num_blocks=32, block_size=16)
    tokens = np.random.default_rng(0).integers(0, NUM_PLAIN, (2, 200), dtype=np.int32)
    steps = [
        SequenceInput(
            tokens=tokens[index],
            start=0,
            block_table=np.arange(16 * index, 16 * index + 16, dtype=np.int32),
            num_logits=200,
        )
        for index in range(2)
    ]
    return runner.run(steps)[:, :NUM_PLAIN]


@pytest.mark.parametrize("bits", BOUNDS)
def test_the_error_of_a_whole_model_stays_within_what_is_stated(bits: WeightBits) -> None:
    exact, quantised = logits(16), logits(bits)
    error = float((quantised - exact).norm() / exact.norm())
    assert 0 < error <= BOUNDS[bits]


def test_fewer_bits_cost_more() -> None:
    errors = [float((logits(bits) - logits(16)).norm()) for bits in (8, "fp8", 4)]
    assert errors == sorted(errors)
