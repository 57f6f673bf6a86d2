"""Attention over the pool beside the reference's: norms, positions, sinks, scales."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runtime.model.attention_shape import NormOfHeads
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.kv_pool import KVPool
from runtime.model.layers import MapLoader
from runtime.model.mixer import AttentionMixer
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")
HIDDEN = 28
PLAIN = Attention(heads=6, kv_heads=2, head_dim=12)
YARN = RopeConfig(kind="yarn", theta=100.0, factor=4.0, original_max_position=20)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"bias": True, "output_bias": True},
    "norms of each head": {"norm": "each"},
    "norms of all heads": {"norm": "all"},
    "half turned": {"rope": RopeConfig(rotated=6)},
    "a sixth turned, norms of each head": {"rope": RopeConfig(rotated=2), "norm": "each"},
    "part turned, norms of all heads": {"rope": RopeConfig(rotated=8), "norm": "all"},
    "part turned, biases, stretched": {
        "rope": replace(YARN, rotated=8, attention_factor=1.3),
        "bias": True,
    },
    "no positions": {"rope": None},
    "longrope": {
        "rope": RopeConfig(
            kind="longrope", rotated=4, factors=(1.0, 3.0), attention_factor=1.2, theta=50.0
        )
    },
    "queries that grow": {"rope": replace(YARN, query_beta=0.4)},
    "sinks": {"sinks": True},
    "sinks and a window": {"sinks": True, "window": 7},
    "a scale": {"scale": 0.05},
    "values normed, a part turned in proportion": {
        "value_norm": True,
        "norm": "each",
        "rope": RopeConfig(kind="proportional", rotated=4, factor=2.0),
    },
    "values that are keys": {"keys_are_values": True, "norm": "each", "bias": True},
    "values that are keys, normed": {"keys_are_values": True, "value_norm": True, "rope": None},
    "gates": {"gated": True, "norm": "each"},
    "gates, a part turned, biases": {"gated": True, "rope": RopeConfig(rotated=6), "bias": True},
    "gates of heads by softplus": {"gated_heads": True, "gate_function": "softplus"},
    "gates apart by softplus": {"gated": True, "gate_apart": True, "gate_function": "softplus"},
}


def steps(chunk: int) -> Iterator[tuple[int, int, StepBatch]]:
    """Begin, number of tokens and batch of each step that computes a prompt of 50 tokens."""
    for start in range(0, 50, chunk):
        count = min(chunk, 50 - start)
        step = SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=np.arange(13, dtype=np.int32),
            num_logits=0,
        )
        yield start, count, StepBatch.build([step], 4)


@pytest.mark.samples(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 9, 50])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(kind: str, chunk: int) -> None:
    spec = replace(PLAIN, **KINDS[kind])
    layer = Layer(mixer=spec, feed_forward=Gated(size=8))
    config = ModelConfig(
        model_type="test",
        vocab_size=9,
        hidden_size=HIDDEN,
        layers=(layer,),
        max_context_tokens=64,
    )
    source = RandomWeights(0, torch.float64, CPU)
    loader = MapLoader(source=source)
    mixer = AttentionMixer(spec, "model.layers.0", HIDDEN, loader, eps=config.norm_eps)
    table = RotaryTable(spec.rope, spec.head_dim, torch.float64, CPU)
    pool = KVPool(config, num_blocks=16, block_size=4, dtype=torch.float64, device=CPU)
    x = torch.randn(50, HIDDEN, dtype=torch.float64)
    rows = []
    for start, count, batch in steps(chunk):
        rows.append(
            mixer(
                x[start : start + count],
                rotation=table.at(torch.from_numpy(batch.positions), start + count - 1),
                blocks=pool.layer(0),
                slots=torch.from_numpy(batch.slots),
                layout=batch.layout(CPU),
            )
        )
    expected = ReferenceModel(config, source.tensor).attention(layer, "model.layers.0", x)
    assert torch.allclose(torch.cat(rows), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", ["each", None])
@pytest.mark.parametrize("chunk", [1, 9, 50])
def test_a_layer_reads_the_keys_of_another(norm: NormOfHeads | None, chunk: int) -> None:
    """And writes none: what lies in the pool is the other's, bit for bit."""
    own = replace(PLAIN, norm=norm, window=7)
    spec = replace(own, shares=0, window=11, bias=True)
    layers = tuple(Layer(mixer=mixer, feed_forward=Gated(size=8)) for mixer in (own, spec))
    config = ModelConfig(
        model_type="test", vocab_size=9, hidden_size=HIDDEN, layers=layers, max_context_tokens=64
    )
    source = RandomWeights(0, torch.float64, CPU)
    mixers = [
        AttentionMixer(mixer, f"model.layers.{index}", HIDDEN, MapLoader(source=source), eps=1e-6)
        for index, mixer in enumerate((own, spec))
    ]
    assert not mixers[1].is_plain
    table = RotaryTable(spec.rope, spec.head_dim, torch.float64, CPU)
    pool = KVPool(config, num_blocks=16, block_size=4, dtype=torch.float64, device=CPU)
    x, y = torch.randn(2, 50, HIDDEN, dtype=torch.float64)
    rows = []
    for start, count, batch in steps(chunk):
        for index, mixer in enumerate(mixers):
            before = pool.blocks.clone()
            mixed = mixer(
                (x, y)[index][start : start + count],
                rotation=table.at(torch.from_numpy(batch.positions), start + count - 1),
                blocks=pool.layer(index),
                slots=torch.from_numpy(batch.slots),
                layout=batch.layout(CPU),
            )
        assert torch.equal(pool.blocks, before)
        rows.append(mixed)
    reference = ReferenceModel(config, source.tensor)
    reference.attention(layers[0], "model.layers.0", x)
    expected = reference.attention(layers[1], "model.layers.1", y)
    assert torch.allclose(torch.cat(rows), expected, rtol=1e-10, atol=1e-10)
