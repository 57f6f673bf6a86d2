"""The mixer of Kimi Delta Attention beside the reference's, in chunks, whatever heads forget."""

from dataclasses import replace

import pytest
import torch

from runtime.model.kimi_mixer import KimiMixer
from runtime.model.layers import MapLoader
from runtime.model.recurrent import KimiDelta
from tests.support.mixing import HIDDEN, Paced, config_around, mixed_in_chunks
from tests.support.reference import ReferenceModel

SPEC = KimiDelta(heads=3, head_dim=10, taps=4)


@pytest.mark.parametrize("two_steps", [True, False])
@pytest.mark.parametrize("lowest", [None, -5.0, -0.3])
@pytest.mark.parametrize("pace", [-12.0, -2.0, 5.0])
@pytest.mark.parametrize("chunk", [1, 7, 50, 130])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(
    chunk: int, pace: float, lowest: float | None, two_steps: bool
) -> None:
    source, layer = Paced(pace), "model.layers.0"
    spec = replace(SPEC, lowest=lowest, two_steps=two_steps)
    config = config_around(spec)
    mixer = KimiMixer(spec, layer, HIDDEN, MapLoader(source=source), eps=config.norm_eps)
    x = torch.randn(130, HIDDEN, dtype=torch.float64)
    mixed = mixed_in_chunks(mixer, config, x, chunk)
    expected = ReferenceModel(config, source.tensor).kimi_delta(config.layers[0], layer, x)
    assert torch.allclose(mixed, expected, rtol=1e-9, atol=1e-9)
