"""How memory is divided between layers that see all and layers with a window."""

from dataclasses import replace

import pytest

from radix_cache.window_rows import claim_of, kept_for
from runtime.config import EngineConfig
from runtime.model.window_plan import plan_windows, plan_windows_below, tokens_of_step

CONFIG = EngineConfig(max_batch_tokens=512, max_running=4)
LEAST = 4 * claim_of(128, 16) + -(-tokens_of_step(CONFIG) // 16)


@pytest.mark.parametrize("near", [1000, 9000])
def test_all_memory_is_planned_for_and_a_sixteenth_of_the_blocks_have_near_rows(near: int) -> None:
    found = plan_windows(CONFIG, 128, (1000, near), 10_000_000)
    assert found is not None
    num_blocks, window_blocks = found
    assert window_blocks == LEAST + num_blocks // 16
    taken = num_blocks * 1000 + window_blocks * near
    assert 10_000_000 - 2 * (1000 + near) < taken <= 10_000_000


def test_longer_windows_have_a_larger_share_up_to_a_half() -> None:
    shares = []
    for window in (128, 512, 1024, 4096):
        found = plan_windows(CONFIG, window, (1000, 1000), 1 << 30)
        assert found is not None
        shares.append(round(found[1] / found[0], 2))
    assert shares == [0.06, 0.13, 0.25, 0.5]


def test_a_share_may_be_given_and_all_of_it_gives_nothing_back() -> None:
    half = replace(CONFIG, window_share=50, num_blocks=4000)
    assert plan_windows(half, 128, (1000, 1000), 0) == (4000, LEAST + 2000)
    assert plan_windows(replace(half, window_share=100), 128, (1000, 1000), 0) is None


def test_so_many_blocks_as_were_asked_for() -> None:
    config = EngineConfig(max_batch_tokens=512, max_running=4, num_blocks=4000)
    assert plan_windows(config, 128, (1000, 1000), 0) == (4000, LEAST + 250)


@pytest.mark.parametrize("budget", [0, 100_000, LEAST * 2000])
def test_where_it_would_save_nothing_every_block_has_all_rows(budget: int) -> None:
    assert plan_windows(CONFIG, 128, (1000, 1000), budget) is None


@pytest.mark.parametrize("budget", [1_000_000, 10_000_000])
def test_host_memory_has_the_share_and_one_window_at_least(budget: int) -> None:
    num_blocks, window_blocks = plan_windows_below(CONFIG, 128, (1000, 3000), budget)
    assert window_blocks == kept_for(128, 16) + num_blocks // 16
    assert budget - 2 * 4000 < num_blocks * 1000 + window_blocks * 3000 <= budget
    half = replace(CONFIG, window_share=50)
    assert plan_windows_below(half, 128, (1000, 3000), budget)[1] > 3 * window_blocks


@pytest.mark.parametrize("budget", [0, 3999, 4000, 40_000])
def test_in_little_host_memory_every_block_has_all_rows(budget: int) -> None:
    assert plan_windows_below(CONFIG, 128, (1000, 3000), budget) == (budget // 4000,) * 2


def test_a_plan_always_lets_the_cache_run_one_sequence() -> None:
    """Its least is above what ``WindowRows`` asks for."""
    assert claim_of(128, 16) + -(-tokens_of_step(CONFIG) // 16) <= LEAST
