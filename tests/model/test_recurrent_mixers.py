"""Each description of a recurrent layer has its mixer."""

import pytest
import torch

from runtime.model.config import GatedDelta, Mamba2, Recurrent, ShortConv
from runtime.model.delta_mixer import DeltaMixer
from runtime.model.layers import MapLoader
from runtime.model.mamba_mixer import MambaMixer
from runtime.model.mixer import ConvMixer
from runtime.model.random_weights import RandomWeights
from runtime.model.recurrent_mixers import load_recurrent

HIDDEN = 12


@pytest.mark.parametrize(
    ("spec", "mixer"),
    [
        (ShortConv(channels=12, taps=3), ConvMixer),
        (GatedDelta(key_heads=1, value_heads=2, key_dim=4, value_dim=6, taps=4), DeltaMixer),
        (Mamba2(heads=2, head_dim=5, groups=1, state_dim=4, taps=4, bias=True), MambaMixer),
    ],
)
def test_a_layer_gets_the_mixer_of_its_description(spec: Recurrent, mixer: type) -> None:
    source = RandomWeights(0, torch.float64, torch.device("cpu"))
    found = load_recurrent(
        spec, "model.layers.0", HIDDEN, MapLoader(source=source, dtype=torch.float64), eps=1e-6
    )
    assert isinstance(found, mixer)
    taken = spec.num_parameters(HIDDEN) * torch.float64.itemsize
    assert 0 < found.step_bytes < taken
