"""Keys of pools are made in place, however a prompt is cut; which tokens they choose is
``test_latent_mixer``'s."""

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.latent import Indexer
from runtime.model.layers import MapLoader
from runtime.model.pool_indexer import PoolIndexer
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.rotary import RotaryTable
from runtime.model.token_indexer import StepChoice

CPU = torch.device("cpu")
HIDDEN, BLOCK, TOKENS, DIM, POOL = 64, 8, 50, 10, 4
NOWHERE = RotaryTable(None, 0, torch.float64, CPU).at(torch.arange(1), 0)


@pytest.fixture(scope="module")
def indexer() -> PoolIndexer:
    spec = random_model_config("glm5-next-tiny").attention[0]
    loader = MapLoader(source=RandomWeights(0, torch.float64, CPU))
    return PoolIndexer(spec, spec.indexer, "model.layers.1.self_attn", HIDDEN, loader)


def written(indexer: PoolIndexer, x: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """[tokens, 2 * dim], as the pool has them in the end."""
    spec = Indexer(heads=6, dim=DIM, top_k=24, pool=POOL)
    rows = torch.full((7, 1, BLOCK, 3 + 2 * DIM), torch.nan, dtype=torch.float64)
    for start, end in zip((0, *cuts), cuts, strict=False):
        step = SequenceInput(
            tokens=np.zeros(end - start, dtype=np.int32),
            start=start,
            block_table=np.arange(7, dtype=np.int32)[::-1].copy(),
            num_logits=0,
        )
        batch = StepBatch.build([step], BLOCK)
        choice = StepChoice(batch.layout(CPU), spec, BLOCK)
        slots = torch.from_numpy(batch.slots)
        indexer.write_keys(x[start:end], NOWHERE, rows[..., 3:], slots, choice)
    assert rows[..., :3].isnan().all()
    return rows.flip(0).flatten(0, 2)[:TOKENS, 3:]


def test_a_pools_key_takes_the_place_of_its_last_tokens(indexer: PoolIndexer) -> None:
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    rows = written(indexer, x, (TOKENS,))
    single = torch.cat([written(indexer, x[at:].roll(0), (1,))[:1] for at in range(TOKENS)])
    last = torch.arange(TOKENS) % POOL == POOL - 1
    assert torch.allclose(rows[~last], single[~last], rtol=1e-12, atol=1e-12)
    assert torch.allclose(rows[:, DIM:], single[:, DIM:], rtol=1e-12, atol=1e-12)
    source = RandomWeights(0, torch.float64, CPU)
    bias = source.tensor("model.layers.1.self_attn.indexer.pool_bias", (POOL, DIM))
    for end in range(POOL, TOKENS, POOL):
        own = single[end - POOL : end]
        share = (own[:, DIM:] + bias).softmax(0)
        expected = (share * own[:, :DIM]).sum(0)
        assert torch.allclose(rows[end - 1, :DIM], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cuts", [(3, 9, 12, 31, TOKENS), tuple(range(1, TOKENS + 1))])
def test_keys_are_the_same_however_a_prompt_is_cut(
    indexer: PoolIndexer, cuts: tuple[int, ...]
) -> None:
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    whole = written(indexer, x, (TOKENS,))
    assert torch.allclose(written(indexer, x, cuts), whole, rtol=1e-12, atol=1e-12)
