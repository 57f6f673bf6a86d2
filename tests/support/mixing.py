"""A recurrent mixer alone: a small model around it, its weights, and a prompt in chunks."""

from typing import Any

import numpy as np
import torch

from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.random_weights import RandomWeights
from runtime.model.recurrent import Recurrent
from runtime.model.state_pool import StatePool

CPU = torch.device("cpu")
HIDDEN = 28


def config_around(spec: Recurrent) -> ModelConfig:
    """A model of the mixer's layer and one of attention."""
    return ModelConfig(
        model_type="test",
        vocab_size=9,
        hidden_size=HIDDEN,
        layers=(
            Layer(mixer=spec, feed_forward=Gated(size=8)),
            Layer(mixer=Attention(heads=2, kv_heads=1, head_dim=8), feed_forward=Gated(size=8)),
        ),
        max_context_tokens=512,
    )


class Paced(RandomWeights):
    """Weights of a model all of whose heads forget as fast."""

    def __init__(self, pace: float) -> None:
        super().__init__(0, torch.float64, CPU)
        self._own_pace = pace

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> torch.Tensor:
        found = super().tensor(name, shape, wide=wide)
        return torch.full_like(found, self._own_pace) if name.endswith("A_log") else found


def mixed_in_chunks(mixer: Any, config: ModelConfig, x: torch.Tensor, chunk: int) -> torch.Tensor:
    """The mixer's output for the rows ``x`` [T, hidden], so many at a time, [T, hidden]."""
    pool = StatePool(config, num_slots=2, num_rings=1, dtype=torch.float64, device=CPU)
    pool.begin(1, source=None, position=0)
    rows = []
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        step = pool.step(np.array([1]), np.array([start]), np.array([0, len(part)]))
        rows.append(mixer(part, step, 0))
        step.done()
    return torch.cat(rows)
