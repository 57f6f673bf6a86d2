"""Entries are made in place, and however a prompt is cut."""

import numpy as np
import pytest
import torch

from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.compressor import Compressor
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable
from runtime.model.windowed_step import WindowedStep

CPU = torch.device("cpu")
BLOCK = 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entries_have_the_same_bits_however_a_prompt_is_cut(dtype: torch.dtype) -> None:
    """Of rows with the same bits: products differ in their last ones."""
    source = RandomWeights(0, dtype, CPU)
    compressor = Compressor(
        "model.layers.0.self_attn.compressor",
        MapLoader(source=source, dtype=dtype),
        size=10,
        ratio=4,
        overlaps=True,
        begins=3,
        eps=1e-3,
    )
    table = RotaryTable(RopeConfig(), 4, dtype, CPU)
    pools = torch.randn(44, 43).to(dtype).repeat(2, 1, 1)
    for pool, cuts in zip(pools, ((44,), (3, 9, 10, 31, 44)), strict=True):
        for start, end in zip((0, *cuts), cuts, strict=False):
            step = SequenceInput(
                tokens=np.zeros(end - start, dtype=np.int32),
                start=start,
                block_table=np.arange(11, dtype=np.int32),
                num_logits=0,
            )
            layout = StepBatch.build([step], BLOCK).layout(CPU)
            windows = WindowedStep(layout, BLOCK, {4: table}).windows(4)
            if windows is not None:
                compressor.fill(pool, windows)
    assert torch.equal(*pools)


def test_an_entry_takes_the_place_of_what_its_last_token_gave_to_it() -> None:
    compressor = Compressor(
        "model.layers.0.self_attn.compressor",
        MapLoader(source=RandomWeights(0, torch.float64, CPU), dtype=torch.float64),
        size=10,
        ratio=4,
        overlaps=True,
        begins=3,
        eps=1e-3,
    )
    assert (compressor.begins, compressor.outputs) == (13, [20, 20])
    step = SequenceInput(
        tokens=np.zeros(9, dtype=np.int32),
        start=0,
        block_table=np.arange(3, dtype=np.int32),
        num_logits=0,
    )
    table = RotaryTable(RopeConfig(), 4, torch.float64, CPU)
    layout = StepBatch.build([step], BLOCK).layout(CPU)
    windows = WindowedStep(layout, BLOCK, {4: table}).windows(4)
    assert windows is not None
    pool = torch.randn(12, 43, dtype=torch.float64)
    before = pool.clone()
    compressor.fill(pool, windows)
    changed = (pool != before).nonzero()
    assert set(changed[:, 0].tolist()) == {3, 7}
    assert set(changed[:, 1].tolist()) == set(range(13, 23))
