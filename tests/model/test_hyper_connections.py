"""Streams around a half of a layer beside the same worked out token by token."""

from dataclasses import replace

import pytest
import torch

from runtime.model.config import ModelConfig
from runtime.model.hyper_connections import HyperConnection, StreamHead, joined
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.streams import Streams
from tests.support.reference import ReferenceModel
from tests.support.reference_compressed import into_half, last_mixture, out_of_half

CPU = torch.device("cpu")
HIDDEN, EPS = 20, 1e-3
SPECS = {
    "four": Streams(count=4, iterations=20, eps=1e-6),
    "three, in one round": Streams(count=3, iterations=1, eps=1e-2),
    "kept as they are": Streams(count=4, iterations=None, eps=1e-2, largest=1.3, behind_eps=1e-2),
    "one": Streams(count=1, iterations=5, eps=1e-6),
}


def config_of(spec: Streams) -> ModelConfig:
    tiny = random_model_config("deepseek-v4-tiny")
    return replace(tiny, hidden_size=HIDDEN, norm_eps=EPS, streams=spec)


@pytest.mark.parametrize("kind", SPECS)
def test_a_half_sees_and_joins_what_the_reference_does(kind: str) -> None:
    spec, source = SPECS[kind], RandomWeights(0, torch.float64, CPU)
    reference = ReferenceModel(config_of(spec), source.tensor)
    name = "model.layers.0.attn_hc"
    streams = torch.randn(7, spec.count, HIDDEN, dtype=torch.float64)
    made = torch.randn(7, HIDDEN, dtype=torch.float64)
    found = HyperConnection(spec, name, HIDDEN, source, eps=EPS)(streams)
    expected = into_half(reference, name, streams)
    assert (found[2] is None) == (expected[2] is None) == (spec.iterations is None)
    for one, other in zip(found[: 2 + (found[2] is not None)], expected, strict=False):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    behind = joined(streams, made, *found[1:])
    other = out_of_half(streams, made, *expected[1:])
    assert torch.allclose(behind, other, rtol=1e-12, atol=1e-12)
    last = StreamHead(spec, HIDDEN, source, eps=EPS)(streams)
    assert torch.allclose(last, last_mixture(reference, streams), rtol=1e-12, atol=1e-12)


def test_matrices_between_streams_keep_their_sum() -> None:
    spec, source = SPECS["four"], RandomWeights(0, torch.float64, CPU)
    connection = HyperConnection(spec, "model.layers.0.attn_hc", HIDDEN, source, eps=EPS)
    streams = torch.randn(7, 4, HIDDEN, dtype=torch.float64)
    _, _, mixing = connection(streams)
    assert torch.allclose(mixing.sum(1), torch.ones(7, 4).double(), atol=1e-4)
    assert torch.allclose(mixing.sum(2), torch.ones(7, 4).double(), atol=1e-2)
    nothing = torch.zeros(7, HIDDEN, dtype=torch.float64)
    sums = joined(streams, nothing, torch.ones(7, 4).double(), mixing).sum(1)
    assert torch.allclose(sums, streams.sum(1), atol=0.1)


def test_weights_are_computed_in_float32_of_narrower_streams() -> None:
    source = RandomWeights(0, torch.bfloat16, CPU)
    connection = HyperConnection(SPECS["four"], "model.layers.0.ffn_hc", HIDDEN, source, eps=EPS)
    streams = torch.randn(7, 4, HIDDEN).bfloat16()
    seen, behind, mixing = connection(streams)
    assert (seen.dtype, behind.dtype, mixing.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.float32,
    )
    assert joined(streams, seen, behind, mixing).dtype == torch.bfloat16
