"""Attention over the pool beside the reference's: norms, positions, sinks, scales."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

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
    "gates": {"gated": True, "norm": "each"},
    "gates, a part turned, biases": {"gated": True, "rope": RopeConfig(rotated=6), "bias": True},
}


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
    for start in range(0, 50, chunk):
        count = min(chunk, 50 - start)
        step = SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=np.arange(13, dtype=np.int32),
            num_logits=0,
        )
        batch = StepBatch.build([step], 4)
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
