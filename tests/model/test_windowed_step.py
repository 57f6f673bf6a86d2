"""Windows that a step fills and what its queries see, in slots of the pool."""

import numpy as np
import torch

from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.rope_config import RopeConfig
from runtime.model.rotary import RotaryTable
from runtime.model.windowed_step import WindowedStep
from tests.model.test_compressed_mixer import BLOCK, blocks_from

CPU = torch.device("cpu")


def test_a_step_is_worked_out_once() -> None:
    step = SequenceInput(
        tokens=np.zeros(9, dtype=np.int32),
        start=30,
        block_table=blocks_from(0),
        num_logits=0,
    )
    layout = StepBatch.build([step], BLOCK).layout(CPU)
    known = WindowedStep(layout, BLOCK, {4: RotaryTable(RopeConfig(), 4, torch.float32, CPU)})
    windows = known.windows(4)
    assert windows is not None
    assert known.windows(4) is windows
    slots = [block * BLOCK + place for block in blocks_from(0) for place in range(BLOCK)]
    assert windows.slots.tolist() == [slots[28:32], slots[32:36]]
    assert windows.before.tolist() == [slots[24:28], slots[28:32]]
    assert windows.is_first.tolist() == [False, False]
    near = known.near(3)
    assert near.slots.tolist() == [slots[at - 2 : at + 1] for at in range(30, 39)]
    entries = known.entries(4)
    assert entries.slots.tolist() == [slots[3:39:4]]
    assert entries.seen.tolist() == [7, 8, 8, 8, 8, 9, 9, 9, 9]
    choosing = known.choosing(4, 7)
    assert choosing is not None
    assert choosing.rows.tolist() == list(range(1, 9))
    assert choosing.spans[0].seen.tolist() == [8, 8, 8, 8, 9, 9, 9, 9]
    assert known.choosing(4, 9) is None


def test_sequences_of_a_step_have_windows_and_lists_of_their_own() -> None:
    steps = [
        SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=blocks_from(first),
            num_logits=0,
        )
        for first, start, count in ((0, 0, 3), (20, 0, 9), (40, 7, 1))
    ]
    layout = StepBatch.build(steps, BLOCK).layout(CPU)
    known = WindowedStep(layout, BLOCK, {4: RotaryTable(RopeConfig(), 4, torch.float32, CPU)})
    windows = known.windows(4)
    assert windows is not None
    own = [
        [block * BLOCK + place for block in blocks_from(first) for place in range(BLOCK)]
        for first in (0, 20, 40)
    ]
    assert windows.slots.tolist() == [own[1][:4], own[1][4:8], own[2][4:8]]
    assert windows.before.tolist() == [own[1][:4], own[1][:4], own[2][:4]]
    assert windows.is_first.tolist() == [True, False, False]
    entries = known.entries(4)
    assert entries.lists.tolist() == [0] * 3 + [1] * 9 + [2]
    assert entries.seen.tolist() == [0] * 3 + [0, 0, 0, 1, 1, 1, 1, 2, 2] + [2]
    assert entries.slots[1:].tolist() == [[own[1][3], own[1][7]], [own[2][3], own[2][7]]]
    assert known.near(4).counts.tolist() == [1, 2, 3, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    choosing = known.choosing(4, 1)
    assert choosing is not None
    assert choosing.rows.tolist() == [10, 11, 12]
    assert [span.first_row for span in choosing.spans] == [0, 2]


def test_tokens_of_chosen_windows_are_in_order_and_those_behind_the_last_full_one_follow() -> None:
    steps = [
        SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=blocks_from(first),
            num_logits=0,
        )
        for first, start, count in ((0, 12, 4), (20, 0, 3), (40, 21, 1))
    ]
    known = WindowedStep(StepBatch.build(steps, BLOCK).layout(CPU), BLOCK, {})
    choosing = known.choosing(3, 4)
    assert choosing is not None
    assert choosing.rows.tolist() == [2, 3, 7]
    assert choosing.counts == (2, 0, 1)
    own = [
        [block * BLOCK + place for block in blocks_from(first) for place in range(BLOCK)]
        for first in (0, 20, 40)
    ]
    chosen = torch.tensor([[0, 1, 2, 4], [0, 2, 3, 4], [1, 3, 5, 6]])
    slots, counts = known.tokens_of(choosing, chosen, 3)
    assert counts.tolist() == [12, 13, 13]
    seen = [row[:count] for row, count in zip(slots.tolist(), counts.tolist(), strict=True)]
    assert seen[0] == [own[0][at] for at in (*range(9), 12, 13, 14)]
    assert seen[1] == [own[0][at] for at in (0, 1, 2, *range(6, 15), 15)]
    assert seen[2] == [own[2][at] for at in (3, 4, 5, 9, 10, 11, *range(15, 21), 21)]
    windows = known.windows(3)
    assert windows is not None
    assert windows.rotation is None
