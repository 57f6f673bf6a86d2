"""Latent attention over the pool beside the reference's, which makes every head's keys and
values."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.codes import Codes, widen_codes
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.code_layouts import e4m3_codes
from runtime.model.config import Gated, Layer, ModelConfig
from runtime.model.kv_pool import KVPool
from runtime.model.latent import Indexer, Latent
from runtime.model.latent_mixer import LatentMixer
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable
from runtime.model.token_indexer import StepChoice
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")
HIDDEN, TOKENS = 28, 50
PLAIN = Latent(heads=5, rank=14, plain_dim=6, rotary_dim=8, value_dim=7, query_rank=16)
YARN = RopeConfig(
    kind="yarn", theta=100.0, factor=4.0, original_max_position=20, attention_factor=1.2
)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "queries without a latent": {"query_rank": None},
    "biases": {"bias": True},
    "biases, queries without a latent": {"bias": True, "query_rank": None},
    "pairs that are halves apart": {"interleaved": False},
    "stretched, a scale": {"rope": YARN, "scale": 0.4},
    "one head": {"heads": 1},
    "gates behind heads": {"gated": "heads"},
    "gates behind heads that choose": {
        "gated": "heads",
        "indexer": Indexer(heads=6, dim=10, top_k=20),
    },
    "gates of numbers, sinks": {"gated": "numbers", "sinks": True, "interleaved": False},
    "gates of numbers, sinks, what turns is last": {
        "gated": "numbers",
        "sinks": True,
        "indexer": Indexer(heads=6, dim=11, top_k=7, turns_last=True, eps=1e-2),
    },
    "neighbours that turn are last": {
        "indexer": Indexer(heads=6, dim=11, top_k=7, turns_last=True, interleaved=True),
    },
    "queries that grow": {"rope": replace(YARN, query_beta=0.4)},
    "queries that grow, without a latent": {
        "rope": RopeConfig(query_beta=0.4, original_max_position=7),
        "query_rank": None,
    },
    "chosen tokens": {"indexer": Indexer(heads=6, dim=10, top_k=20)},
    "chosen tokens, neighbours rotated": {
        "indexer": Indexer(heads=6, dim=11, top_k=7, interleaved=True),
        "rope": YARN,
    },
    "chosen pools": {
        "indexer": Indexer(heads=6, dim=10, top_k=12, pool=4),
        "rope": None,
        "rotary_dim": 0,
        "interleaved": False,
        "eps": 1e-3,
    },
    "chosen pools of three, one at a time": {
        "indexer": Indexer(heads=6, dim=10, top_k=3, pool=3),
        "rope": None,
        "rotary_dim": 0,
        "interleaved": False,
    },
    "more pools to choose than there are": {
        "indexer": Indexer(heads=6, dim=10, top_k=64, pool=4),
        "rope": None,
        "rotary_dim": 0,
        "interleaved": False,
    },
    "latents that no positions are beside": {"rope": None, "rotary_dim": 0},
    "more to choose than there are": {"indexer": Indexer(heads=2, dim=8, top_k=TOKENS)},
}


def config_of(spec: Latent) -> tuple[Layer, ModelConfig]:
    layer = Layer(mixer=spec, feed_forward=Gated(size=8))
    return layer, ModelConfig(
        model_type="test",
        vocab_size=9,
        hidden_size=HIDDEN,
        layers=(layer,),
        max_context_tokens=64,
        norm_eps=1e-3,
    )


def mixed(
    mixer: LatentMixer, config: ModelConfig, x: Tensor, chunk: int, kept: torch.dtype
) -> Tensor:
    table = RotaryTable(mixer.spec.rope, mixer.spec.rotary_dim, x.dtype, CPU)
    pool = KVPool(config, num_blocks=16, block_size=4, dtype=kept, device=CPU)
    rows = []
    for start in range(0, TOKENS, chunk):
        count = min(chunk, TOKENS - start)
        step = SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=np.arange(13, dtype=np.int32)[::-1].copy(),
            num_logits=0,
        )
        batch = StepBatch.build([step], 4)
        layout, indexer = batch.layout(CPU), mixer.spec.indexer
        rows.append(
            mixer(
                x[start : start + count],
                rotation=table.at(torch.from_numpy(batch.positions), start + count - 1),
                blocks=pool.layer(0),
                slots=torch.from_numpy(batch.slots),
                layout=layout,
                choice=None if indexer is None else StepChoice(layout, indexer, 4),
            )
        )
    return torch.cat(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 9, 50])
def test_a_prompt_in_chunks_mixes_as_the_reference_does(kind: str, chunk: int) -> None:
    spec = replace(PLAIN, **KINDS[kind])
    layer, config = config_of(spec)
    source = RandomWeights(0, torch.float64, CPU)
    mixer = LatentMixer(spec, "model.layers.0", HIDDEN, MapLoader(source=source))
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    expected = ReferenceModel(config, source.tensor).latent(layer, "model.layers.0", x)
    found = mixed(mixer, config, x, chunk, torch.float64)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_rows_in_8_bits_are_a_little_off() -> None:
    layer, config = config_of(PLAIN)
    source = RandomWeights(0, torch.float32, CPU)
    mixer = LatentMixer(PLAIN, "model.layers.0", HIDDEN, MapLoader(source=source))
    x = torch.randn(TOKENS, HIDDEN)
    exact = ReferenceModel(config, source.tensor).latent(layer, "model.layers.0", x.double())
    for chunk in (1, 9, 50):
        found = mixed(mixer, config, x, chunk, torch.int8).double()
        assert 1e-5 < (found - exact).norm() / exact.norm() < 0.02


class _InBlocks:
    """A source whose matrices are e4m3 in blocks of 4 x 8."""

    def __init__(self) -> None:
        self._drawn = RandomWeights(0, torch.float32, CPU)

    def tensor(self, name: str, shape: tuple[int, ...], *, wide: bool = False) -> Tensor:
        """The numbers that a matrix stands for."""
        if name.endswith(("norm.weight", "bias")):
            return self._drawn.tensor(name, shape, wide=wide)
        return widen_codes(self.matrix(name, shape), torch.float32)

    def matrix(self, name: str, shape: tuple[int, int]) -> Codes:
        weight = self._drawn.tensor(name, shape)
        grid = -(-shape[0] // 4), -(-shape[1] // 8)
        scales = torch.rand(grid, generator=torch.Generator().manual_seed(len(name))) + 0.5
        return e4m3_codes(weight.to(torch.float8_e4m3fn), scales, (4, 8))


@pytest.mark.parametrize("kind", ["plain", "chosen tokens, neighbours rotated"])
def test_matrices_in_few_bits_are_multiplied_as_they_are(kind: str) -> None:
    """Blocks end within heads, and within the part that is rotated."""
    spec = replace(PLAIN, **KINDS[kind])
    layer, config = config_of(spec)
    source = _InBlocks()
    loader = MapLoader(source=source, dtype=torch.float32)
    mixer = LatentMixer(spec, "model.layers.0", HIDDEN, loader)
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = ReferenceModel(config, source.tensor).latent(layer, "model.layers.0", x.double())
    found = mixed(mixer, config, x, 9, torch.float32).double()
    assert (found - expected).norm() / expected.norm() < 1e-5
