"""The mixer of Mamba-2 layers beside the reference's, in chunks, whatever heads forget."""

import numpy as np
import pytest
import torch

from runtime.model.config import Attention, Gated, Layer, Mamba2, ModelConfig
from runtime.model.layers import MapLoader
from runtime.model.mamba_mixer import MambaMixer
from runtime.model.random_weights import RandomWeights
from runtime.model.state_pool import StatePool
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")
HIDDEN = 28
SPEC = Mamba2(
    heads=6, head_dim=10, groups=2, state_dim=8, taps=4, bias=True, least_step=0.2, most_step=3.0
)
CONFIG = ModelConfig(
    model_type="test",
    vocab_size=9,
    hidden_size=HIDDEN,
    layers=(
        Layer(mixer=SPEC, feed_forward=Gated(size=8)),
        Layer(mixer=Attention(heads=2, kv_heads=1, head_dim=8), feed_forward=Gated(size=8)),
    ),
    max_context_tokens=256,
)


class Paced(RandomWeights):
    """Weights of a model all of whose heads forget as fast."""

    def __init__(self, pace: float) -> None:
        super().__init__(0, torch.float64, CPU)
        self._own_pace = pace

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> torch.Tensor:
        found = super().tensor(name, shape, wide=wide)
        return torch.full_like(found, self._own_pace) if name.endswith("A_log") else found


@pytest.mark.parametrize("pace", [-12.0, -2.0, 5.0])
@pytest.mark.parametrize("chunk", [1, 7, 50, 130])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(chunk: int, pace: float) -> None:
    source = Paced(pace)
    mixer = MambaMixer(
        SPEC, "model.layers.0", HIDDEN, MapLoader(source=source), eps=CONFIG.norm_eps
    )
    pool = StatePool(CONFIG, num_slots=2, num_rings=1, dtype=torch.float64, device=CPU)
    pool.begin(1, source=None, position=0)
    x = torch.randn(130, HIDDEN, dtype=torch.float64)
    rows = []
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        step = pool.step(np.array([1]), np.array([start]), np.array([0, len(part)]))
        rows.append(mixer(part, step, 0))
        step.done()
    expected = ReferenceModel(CONFIG, source.tensor)._mamba2(CONFIG.layers[0], "model.layers.0", x)
    assert torch.allclose(torch.cat(rows), expected, rtol=1e-9, atol=1e-9)
