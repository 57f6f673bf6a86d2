"""The mixer of gated delta layers beside the reference's, in chunks, whatever heads forget."""

from dataclasses import replace

import pytest
import torch

from runtime.model.delta_mixer import DeltaMixer
from runtime.model.layers import MapLoader
from runtime.model.recurrent import GatedDelta
from tests.support.mixing import HIDDEN, Paced, config_around, mixed_in_chunks
from tests.support.reference import ReferenceModel

SPEC = GatedDelta(key_heads=2, value_heads=6, key_dim=8, value_dim=10, taps=4)


@pytest.mark.parametrize("own", [{}, {"most_beta": 2.0, "norm_eps": 0.1}])
@pytest.mark.parametrize("pace", [-12.0, -2.0, 5.0])
@pytest.mark.parametrize("chunk", [1, 7, 50, 130])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(
    chunk: int, pace: float, own: dict[str, float]
) -> None:
    source, layer = Paced(pace), "model.layers.0"
    spec = replace(SPEC, **own)
    config = config_around(spec)
    mixer = DeltaMixer(spec, layer, HIDDEN, MapLoader(source=source), eps=config.norm_eps)
    x = torch.randn(130, HIDDEN, dtype=torch.float64)
    mixed = mixed_in_chunks(mixer, config, x, chunk)
    expected = ReferenceModel(config, source.tensor)._gated_delta(config.layers[0], layer, x)
    assert torch.allclose(mixed, expected, rtol=1e-9, atol=1e-9)
