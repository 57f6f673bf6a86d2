"""Rows behind windows are given back: the tokens are those of a plain run, whatever schedules,
drafts, failing steps, steps begun ahead and ranks do.

The schedules are those of ``test_identities``, in pools of which a part of the blocks have rows of
layers with a window.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from radix_cache.window_rows import WindowRows
from runtime.engine.lookahead import Lookahead
from runtime.model import window_plan
from runtime.scheduling import policy
from runtime.scheduling.costs import StepCosts
from tests.model import test_identities as schedules
from tests.support.engine_driver import EngineDriver
from tests.support.reference import ReferenceModel

WINDOWED = (
    "gemma3-tiny",
    "gpt-oss-tiny",
    "mimo-v2-tiny",
    "laguna-tiny",
    "step3.5-tiny",
    "afmoe-tiny",
    "dots1-tiny",
    "exaone4-tiny",
    "gemma4-tiny",
    "gemma4-moe-tiny",
    "deepseek-v4-tiny",
)
SMALL, AMPLE = 4, 5
"""Seeds of a schedule in a small pool, and of one in an ample one."""


@pytest.fixture(autouse=True)
def _few_window_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "ANSWER_LEVELS", (2, 6))
    monkeypatch.setattr(window_plan, "_RUNNING", 1)


def _windows(driver: EngineDriver) -> WindowRows:
    windows = driver.engine.memory.cache.windows
    assert windows is not None, "every block has rows of all layers"
    return windows


def _play(
    kind: str,
    seed: int,
    *,
    plant: Callable[[EngineDriver, int], None] = lambda driver, seed: None,
    **settings: object,
) -> EngineDriver:
    drivers: list[EngineDriver] = []

    def note(driver: EngineDriver, at: int) -> None:
        drivers.append(driver)
        plant(driver, at)

    reference = ReferenceModel.random(kind)
    schedules.play(reference, seed, None, 16, kind=kind, plant=note, **settings)
    return drivers[-1]


@pytest.mark.parametrize("seed", [SMALL, AMPLE])
@pytest.mark.parametrize("kind", WINDOWED)
@pytest.mark.samples(2)
def test_random_schedules_give_the_tokens_of_a_plain_run(kind: str, seed: int) -> None:
    windows = _windows(_play(kind, seed))
    assert windows.evicted > 0
    assert windows.total < len(windows.place)


@pytest.mark.tail
@pytest.mark.parametrize(
    ("kind", "seed"),
    [("gemma3-tiny", SMALL), ("gemma3-tiny", AMPLE), ("deepseek-v4-tiny", SMALL)],
)
def test_steps_that_fail_and_are_repeated_give_them_too(kind: str, seed: int) -> None:
    assert _windows(_play(kind, seed, plant=schedules.plant_failures)).evicted > 0


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("gpt-oss-tiny", SMALL), ("gpt-oss-tiny", AMPLE), ("deepseek-v4-tiny", AMPLE)],
)
@pytest.mark.samples(1)
def test_steps_begun_ahead_give_them_too(kind: str, seed: int) -> None:
    def ahead(driver: EngineDriver, _: int) -> None:
        driver.engine.computation.lookahead = Lookahead(
            driver.runner, StepCosts(), driver.clock, windows=_windows(driver), always=True
        )

    driver = _play(kind, seed, plant=ahead)
    assert _windows(driver).evicted > 0
    lookahead = driver.engine.computation.lookahead
    assert lookahead is not None
    assert lookahead.outcomes.used > 0


@pytest.mark.tail
@pytest.mark.parametrize(
    ("kind", "ranks"), [("gpt-oss-tiny", 2), ("mimo-v2-tiny", 4), ("deepseek-v4-tiny", 2)]
)
def test_ranks_give_them_too(kind: str, ranks: int) -> None:
    assert _windows(_play(kind, AMPLE, tensor_parallel=ranks)).evicted > 0


@pytest.mark.tail
@pytest.mark.parametrize("kind", ["gemma3-tiny", "deepseek-v4-tiny"])
def test_several_tenants_get_them_too(kind: str) -> None:
    assert _windows(_play(kind, SMALL, tenants=3)).evicted > 0


@pytest.mark.parametrize("kind", ["gpt-oss-tiny", "deepseek-v4-tiny"])
def test_steps_have_the_bits_of_those_that_keep_all_rows(kind: str) -> None:
    """In float32, with the compiled kernels where there are any: prompts in chunks and decodes, in
    contexts beyond what kernels divide them into."""
    told: list[list[torch.Tensor]] = []
    for share in (100, None):
        driver = EngineDriver.load(
            model=f"random:{kind}",
            dtype="float32",
            num_blocks=400,
            max_batch_tokens=300,
            max_running=2,
            window_share=share,
        )
        assert (driver.engine.memory.cache.windows is None) == (share == 100)
        forward, logits = driver.runner.forward, []

        def noting(*given: Any, forward: Any = forward, logits: Any = logits) -> torch.Tensor:
            found = forward(*given)
            logits.append(found.clone())
            return found

        driver.runner.forward = noting  # type: ignore[method-assign, assignment]
        rng, known, base = np.random.default_rng(0), 0, None
        for _ in range(4):
            new = rng.integers(32, 127, 650).tolist()
            result = driver.turn(new, session="a", base=base, offset=known, max_new_tokens=5)
            known, base = known + 650 + len(result.tokens), "a"
        told.append(logits)
    assert len(told[0]) == len(told[1]) > 20
    assert all(torch.equal(one, other) for one, other in zip(*told, strict=True))


def test_rows_that_are_there_are_read_where_a_transcript_goes_on() -> None:
    """A session's next turn begins at its end, and a fork where its transcript parts; behind other
    sessions' turns the rows are gone, and the miss says so."""
    driver = EngineDriver.load(
        model="random:gemma3-tiny",
        num_blocks=1500,
        block_size=4,
        max_batch_tokens=16,
        max_running=2,
    )
    first = list(range(32, 112))
    driver.turn(first, session="a", max_new_tokens=4)
    again = driver.turn([40] * 5, session="a", base="a", offset=84, max_new_tokens=4)
    fork = driver.turn([50] * 5, session="b", base="a", offset=40, max_new_tokens=4)
    assert again.start is not None
    assert fork.start is not None
    assert again.start.cached_tokens == 80
    assert fork.start.cached_tokens == 40
    for number in range(30):
        driver.turn([60 + number, *first], session=f"other{number}", max_new_tokens=4)
    gone = driver.turn([70] * 5, session="c", base="b", offset=40, max_new_tokens=4)
    assert gone.start is not None
    assert gone.start.cached_tokens == 0
    assert gone.start.miss_causes == {"state_missing": 40, "first_sight": 5}
    there = driver.turn([71] * 5, session="d", base="c", offset=40, max_new_tokens=4)
    assert there.start is not None
    assert there.start.cached_tokens == 40
    driver.engine.check()
