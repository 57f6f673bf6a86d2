"""Entries go to their places and are the same however a prompt is cut."""

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
    rows, found = torch.randn(44, 43).to(dtype), torch.zeros(2, 11, 10, dtype=dtype)
    for entries, cuts in zip(found, ((44,), (3, 9, 10, 31, 44)), strict=True):
        for start, end in zip((0, *cuts), cuts, strict=False):
            step = SequenceInput(
                tokens=np.zeros(end - start, dtype=np.int32),
                start=start,
                block_table=np.arange(11, dtype=np.int32),
                num_logits=0,
            )
            layout = StepBatch.build([step], BLOCK).layout(CPU)
            windows = WindowedStep(layout, BLOCK, {4: table}, apart=True).windows(4)
            if windows is not None:
                compressor.fill(rows, entries, windows)
    assert torch.equal(*found)
    assert found.any(dim=2).all()


def test_entries_alone_are_written_those_of_windows_that_are_full() -> None:
    compressor = Compressor(
        "model.layers.0.self_attn.compressor",
        MapLoader(source=RandomWeights(0, torch.float64, CPU), dtype=torch.float64),
        size=10,
        ratio=4,
        overlaps=True,
        begins=3,
        eps=1e-3,
    )
    assert compressor.outputs == [20, 20]
    step = SequenceInput(
        tokens=np.zeros(9, dtype=np.int32),
        start=0,
        block_table=np.arange(3, dtype=np.int32),
        num_logits=0,
    )
    table = RotaryTable(RopeConfig(), 4, torch.float64, CPU)
    layout = StepBatch.build([step], BLOCK).layout(CPU)
    windows = WindowedStep(layout, BLOCK, {4: table}, apart=True).windows(4)
    assert windows is not None
    rows = torch.randn(12, 43, dtype=torch.float64)
    rows[:, :3], rows[8:] = torch.nan, torch.nan  # of others, and of a window that is not full
    before, entries = rows.clone(), torch.full((3, 12), torch.nan, dtype=torch.float64)
    compressor.fill(rows, entries[:, 1:11], windows)
    assert torch.equal(rows.nan_to_num(7), before.nan_to_num(7))
    assert (~entries.isnan()).nonzero().tolist() == [
        [row, number] for row in (0, 1) for number in range(1, 11)
    ]
