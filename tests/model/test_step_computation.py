"""A step's forward pass and draw: rows in order, the next step begun only where asked for."""

import pytest
import torch

from runtime.engine.step_computation import Outlook
from runtime.scheduling.step_plan import Chunk
from tests.support.engine_driver import EngineDriver


def prefilled(driver: EngineDriver) -> list[Chunk]:
    """The first step of three requests, which are admitted and have computed nothing."""
    for number in range(3):
        driver.request([number + 1, 5, 6, 7], max_new_tokens=4)
    scheduler = driver.engine.scheduler
    return list(scheduler.schedule(0.0).others)


def never() -> Outlook:
    raise AssertionError("nobody begins a step ahead")


def test_logits_and_draws_come_in_the_order_of_the_chunks() -> None:
    driver = EngineDriver.load()
    chunks = prefilled(driver)
    computation = driver.engine.computation
    logits = computation.forward(chunks).clone()
    sampled = computation.draw(chunks, logits, never)
    backwards = computation.forward(chunks[::-1])
    assert torch.allclose(logits, backwards.flip(0), rtol=0, atol=1e-9)
    assert (
        sampled.tokens.tolist()
        == computation.draw(chunks[::-1], backwards, never).tokens[::-1].tolist()
    )


def test_a_step_without_rows_draws_nothing() -> None:
    driver = EngineDriver.load()
    chunks = prefilled(driver)
    for chunk in chunks:
        chunk.samples = False
    computation = driver.engine.computation
    logits = computation.forward(chunks)
    assert logits.shape[0] == 0
    assert len(computation.draw(chunks, logits, never).tokens) == 0


def test_the_time_of_masks_is_told_once() -> None:
    driver = EngineDriver.load()
    chunks = prefilled(driver)
    computation = driver.engine.computation
    logits = computation.forward(chunks)
    clock = iter([10.0, 10.5])
    computation.clock = lambda: next(clock)
    computation.draw(chunks, logits, never)
    assert (computation.pop_mask_s(), computation.pop_mask_s()) == (0.5, 0.0)


@pytest.mark.parametrize("drafts", [False, True])
def test_the_outlook_is_asked_where_a_step_may_be_begun_ahead(drafts: bool) -> None:
    driver = EngineDriver.load(looks_ahead=True)
    chunks = prefilled(driver)
    asked: list[Outlook] = []

    def outlook() -> Outlook:
        asked.append(Outlook(drafts=drafts, crowd=False, num_running=3))
        return asked[-1]

    computation = driver.engine.computation
    computation.draw(chunks, computation.forward(chunks), outlook)
    assert len(asked) == 1
    computation.nothing_runs()
    assert computation.pop_outcomes().used == 0


def test_the_pool_hears_when_nothing_runs_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = EngineDriver.load()
    running: list[int] = []
    queues = driver.engine.scheduler.queues
    monkeypatch.setattr(driver.runner.pool, "rest", lambda: running.append(len(queues.running)))
    driver.request([1, 5, 6, 7], max_new_tokens=4)
    driver.run()
    assert running
    assert not any(running)


@pytest.mark.parametrize("begun", [False, True])
def test_logits_are_told_apart_by_chunk_unless_the_next_step_may_have_taken_their_place(
    *, begun: bool
) -> None:
    driver = EngineDriver.load(looks_ahead=True)
    chunks = prefilled(driver)
    chunks[1].samples = False
    computation = driver.engine.computation
    assert computation.lookahead is not None
    computation.lookahead.always = True
    logits = computation.forward(chunks)
    if begun:
        computation.draw(chunks, logits, lambda: Outlook(drafts=False, crowd=False, num_running=3))
    apart = computation.apart(chunks, logits)
    told = [None if part is None else part.tolist() for part in apart]
    whole = logits.tolist()
    assert told == ([None] * 3 if begun else [[whole[0]], [], [whole[1]]])
    assert computation.apart(chunks, None) == [None] * 3
