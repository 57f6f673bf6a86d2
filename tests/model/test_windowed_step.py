"""Windows that a step fills and what its queries see, in slots of the pool."""

from dataclasses import replace

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


def test_entries_have_places_in_the_blocks_in_which_their_windows_end() -> None:
    step = SequenceInput(
        tokens=np.zeros(9, dtype=np.int32), start=30, block_table=blocks_from(0), num_logits=0
    )
    layout = StepBatch.build([step], BLOCK).layout(CPU)
    known = WindowedStep(layout, BLOCK, {}, apart=True)
    blocks = blocks_from(0).tolist()
    # of 3 tokens two end in some blocks of 4, of 6 at most one
    of_three = [2 * blocks[last // 4] + last % 4 // 3 for last in range(2, 39, 3)]
    assert known.entries(3).slots.tolist() == [of_three]
    windows = known.windows(3)
    assert windows is not None
    assert windows.entries.tolist() == of_three[10:]
    assert known.entries(6).slots.tolist() == [[blocks[last // 4] for last in range(5, 39, 6)]]
    choosing = known.choosing(3, 12)
    assert choosing is not None
    assert choosing.spans[0].slots.tolist() == of_three
    beside = WindowedStep(layout, BLOCK, {}).windows(3)
    assert beside is not None
    assert beside.entries.tolist() == beside.slots[:, -1].tolist()


def test_tokens_lie_in_window_blocks_where_rows_are_given_back_and_entries_do_not() -> None:
    """Of two sequences one has all its rows, the other those of blocks from its sixth on."""
    steps = [
        SequenceInput(
            tokens=np.zeros(count, dtype=np.int32),
            start=start,
            block_table=blocks_from(first),
            num_logits=0,
            window=(begun, np.array(own, dtype=np.int32)),
        )
        for first, start, count, begun, own in (
            (0, 0, 5, 0, [7, 2]),
            (20, 1054, 6, 260, [9, 4, 1, 30, 31]),
        )
    ]
    steps[1] = replace(steps[1], block_table=np.arange(20, 300, dtype=np.int32))
    batch = StepBatch.build(steps, BLOCK)
    assert batch.window is not None
    known = WindowedStep(batch.layout(CPU), BLOCK, {}, near=batch.window.layout(CPU), apart=True)
    first = [block * BLOCK + place for block in (7, 2) for place in range(BLOCK)]
    second = {
        1040 + at: block * BLOCK + at % BLOCK
        for at, block in enumerate(np.repeat([9, 4, 1, 30, 31], BLOCK).tolist())
    }
    near = known.near(3)
    assert near.counts.tolist() == [1, 2, 3, 3, 3] + [3] * 6
    assert near.slots[4].tolist() == first[2:5]
    assert near.slots[5:].tolist() == [
        [second[at] for at in range(query - 2, query + 1)] for query in range(1054, 1060)
    ]
    windows = known.windows(3)
    assert windows is not None
    assert windows.slots.tolist() == [
        first[:3],
        [second[at] for at in (1053, 1054, 1055)],
        [second[at] for at in (1056, 1057, 1058)],
    ]
    assert windows.before[1:].tolist() == [
        [second[at] for at in (1050, 1051, 1052)],
        [second[at] for at in (1053, 1054, 1055)],
    ]
    plain = WindowedStep(
        StepBatch.build([replace(each, window=None) for each in steps], BLOCK).layout(CPU),
        BLOCK,
        {},
        apart=True,
    )
    assert torch.equal(known.entries(3).slots, plain.entries(3).slots)
    assert windows.entries.tolist() == plain.windows(3).entries.tolist()
    # behind its blocks with rows a sequence's tokens are not asked for
    far = known.near(40).slots[5:]
    assert far.min() >= 0


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
