"""A runner that is broken ends the engine: no turn is tried alone, and none is failed for it."""

from typing import Any

import pytest

from runtime.engine.engine import EngineBroken
from runtime.model.rank_link import Room, RunnerBroken
from tests.support.engine_driver import EngineDriver


def broken(*arguments: Any, **options: Any) -> Any:
    raise RunnerBroken("rank 2 was killed by SIGKILL")


@pytest.mark.parametrize("when", ["forward", "draw", "tend"])
def test_a_broken_runner_ends_the_engine_and_no_turn(when: str) -> None:
    driver = EngineDriver.load()
    names = [driver.request([5, number]) for number in range(3)]
    driver.step()
    if when == "forward":
        driver.runner.forward = broken  # type: ignore[method-assign]
    elif when == "tend":
        driver.engine.memory.tend = broken  # type: ignore[method-assign]
    else:
        driver.engine.computation.draw = broken  # type: ignore[method-assign]
    with pytest.raises(EngineBroken, match="rank 2 was killed by SIGKILL"):
        driver.run()
    assert all(driver.results[name].finish is None for name in names)


def test_an_order_on_states_that_breaks_the_runner_ends_the_engine_and_no_turn() -> None:
    driver = EngineDriver.load(model="random:lfm2-tiny", max_running=2)
    name = driver.request([5, 6])
    states: Any = driver.runner.states
    states.begin = broken
    with pytest.raises(EngineBroken, match="rank 2 was killed by SIGKILL"):
        driver.run()
    assert driver.results[name].finish is None


def test_room_is_within_another_where_there_is_no_more_of_anything() -> None:
    assert Room(4, 3, 2).within(Room(4, 5, 2))
    assert not Room(4, 6, 2).within(Room(4, 5, 2))
    assert not Room(5, 0, 0).within(Room(4, 5, 2))


def test_a_step_ahead_that_breaks_the_runner_ends_the_engine() -> None:
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    ahead = driver.engine.computation.lookahead
    assert ahead is not None
    ahead.always = True
    driver.request([5, 6])
    forward = driver.runner.forward

    def breaks_ahead(batch: Any, tokens: Any = None) -> Any:
        return forward(batch) if tokens is None else broken()

    driver.runner.forward = breaks_ahead  # type: ignore[method-assign]
    with pytest.raises(EngineBroken, match="rank 2"):
        driver.run()
