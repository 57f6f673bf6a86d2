"""The plan of a decode's splits: every key of every decode once, in pieces of like size."""

import pytest
import torch

from kernels.paged_layout import PagedLayout, SharedPrefixes
from tests.support.attention_on_triton import on


@pytest.fixture(autouse=True)
def _triton_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.dispatch.SETTING", "triton")


def layout(
    lengths: list[int], queries: list[int], skips: list[int] | None, device: torch.device
) -> PagedLayout:
    starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    shared = None
    if skips is not None:
        shared = SharedPrefixes(
            members=torch.zeros((1, 2), dtype=torch.int32, device=device),
            lengths=torch.zeros(1, dtype=torch.int32, device=device),
            skips=torch.tensor(skips, dtype=torch.int32, device=device),
        )
    made = PagedLayout(
        query_starts=starts,
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.zeros((len(lengths), 1), dtype=torch.int32),
        max_query_tokens=max(queries),
        max_decode_tokens=max(queries),
        shared=shared,
    )
    return on(device, made)


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("count", [1, 3, 130])
@pytest.mark.parametrize("most", [1, 4, 128])
def test_the_splits_of_a_decode_cover_what_it_sees_and_no_more(
    window: int, count: int, most: int, device: torch.device
) -> None:
    from kernels.triton_split_plan import split_plan

    lengths = [(index * 7919) % 3000 + 1 for index in range(count)]
    queries = [min(length, 1 + index % 5) for index, length in enumerate(lengths)]
    step = layout(lengths, queries, None, device)
    plan = split_plan(step, shares=8, max_splits=most, tile_keys=64, window=window)
    first, keys, splits = plan.cpu().tolist()
    for index, length in enumerate(lengths):
        visible_from = max(length - queries[index] - window + 1, 0) if window else 0
        assert first[index] <= visible_from < first[index] + 64
        assert 1 <= splits[index] <= most
        assert keys[index] % 64 == 0
        assert first[index] + splits[index] * keys[index] >= length
        assert first[index] + (splits[index] - 1) * keys[index] < length


def test_what_is_no_decode_and_what_a_prefix_has_are_not_in_it(device: torch.device) -> None:
    from kernels.triton_split_plan import split_plan

    step = layout([900, 400, 50, 0], [1, 40, 2, 0], [512, 0, 0, 0], device)
    first, keys, splits = (
        split_plan(step, shares=8, max_splits=16, tile_keys=64, window=0).cpu().tolist()
    )
    assert first[0] == 512
    assert splits[1] == splits[3] == 0
    assert 512 + keys[0] * splits[0] >= 900
    assert splits[2] == 1


def test_a_step_works_its_plan_out_once(device: torch.device) -> None:
    from kernels.triton_split_plan import split_plan

    step = layout([900, 50], [1, 1], None, device)
    made = split_plan(step, shares=8, max_splits=16, tile_keys=64, window=0)
    assert split_plan(step, shares=8, max_splits=16, tile_keys=64, window=0) is made
    assert split_plan(step, shares=8, max_splits=16, tile_keys=64, window=128) is not made


def test_one_long_context_among_short_ones_is_split_and_they_are_not(
    device: torch.device,
) -> None:
    from kernels.triton_split_plan import split_plan

    step = layout([100] * 15 + [65536], [1] * 16, None, device)
    _, _, splits = split_plan(step, shares=8, max_splits=128, tile_keys=64, window=0).tolist()
    assert splits[:15] == [1] * 15
    assert splits[15] > 60
