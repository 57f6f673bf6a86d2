"""Which sequences of a step are found to begin with the same blocks.

That attention is the same with and without is for ``tests/gpu/test_triton_decode.py``.
"""

import numpy as np
import pytest
import torch

from kernels.paged_layout import find_shared_prefixes

BLOCK_SIZE = 16
MANY = list(range(100, 140))
"""Forty blocks: 640 tokens."""


def found(
    tables: list[list[int]], starts: list[int], counts: list[int]
) -> tuple[list[list[int]], list[int], list[int]] | None:
    """Groups, their lengths and every sequence's skip, as lists."""
    width = max(map(len, tables))
    padded = np.array([row + [-1] * (width - len(row)) for row in tables], dtype=np.int32)
    shared = find_shared_prefixes(padded, starts, counts, BLOCK_SIZE)
    if shared is None:
        return None
    members = [[index for index in row if index >= 0] for row in shared.members.tolist()]
    return members, shared.lengths.tolist(), shared.skips.tolist()


@pytest.mark.parametrize(
    ("tables", "starts", "counts", "expected"),
    [
        pytest.param(
            [[*MANY, 1], [*MANY, 2], [*MANY, 3]],
            [645, 640, 650],
            [1, 1, 5],
            ([[0, 1, 2]], [640], [640, 640, 640]),
            id="equal blocks make a group",
        ),
        pytest.param(
            [[*MANY, 1], [*MANY[:35], 2, 3, 4, 5, 6], [7, *MANY[:38]]],
            [645, 630, 600],
            [1, 1, 1],
            ([[0, 1]], [512], [512, 512, 0]),
            id="35 equal blocks are 560 tokens, of which whole tiles count",
        ),
        pytest.param(
            [[*MANY, 1], [*MANY, 2]],
            [645, 630],
            [1, 1],
            ([[0, 1]], [576], [576, 576]),
            id="the prefix ends before any member's queries",
        ),
        pytest.param(
            [[*MANY, 1], [*MANY, 2, 3, 4]],
            [645, 640],
            [1, 40],
            None,
            id="a prefill chunk is no member",
        ),
        pytest.param(
            [[*MANY[:31], 1, 2], [*MANY[:31], 3, 4]],
            [520, 520],
            [1, 1],
            None,
            id="a short prefix is not worth it",
        ),
        pytest.param([[*MANY, 1]], [645], [1], None, id="one alone shares nothing"),
    ],
)
def test_groups_are_decodes_with_a_long_common_run_of_first_blocks(
    tables: list[list[int]],
    starts: list[int],
    counts: list[int],
    expected: tuple[list[list[int]], list[int], list[int]] | None,
) -> None:
    assert found(tables, starts, counts) == expected


def test_two_groups_of_one_step_stand_side_by_side() -> None:
    other = list(range(200, 240))
    tables = [[*MANY, 1], [*other, 2], [*MANY, 3], [*other, 4], [*MANY, 5]]
    assert found(tables, [645] * 5, [1] * 5) == (
        [[0, 2, 4], [1, 3]],
        [640, 640],
        [640] * 5,
    )


def test_all_of_a_shared_layout_is_on_the_device_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # there is no GPU
    tables = np.array([[*MANY, 1], [*MANY, 2]], dtype=np.int32)
    shared = find_shared_prefixes(tables, [645, 645], [1, 1], BLOCK_SIZE)
    assert shared is not None
    moved = shared.to(torch.device("meta"))
    assert {part.device.type for part in (moved.members, moved.lengths, moved.skips)} == {"meta"}
