"""Turns whose grammar takes long wait in the background; the others go on, and none changes."""

import random
from collections.abc import Iterator

import pytest

from runtime.engine.background import SHARE, BackgroundTasks, Pieces
from runtime.engine.emission import Settlement, Taken
from runtime.grammar.closing import Work
from runtime.messages import FinishReason, SamplingParams
from runtime.scheduling.sequence import Sequence
from tests.support.clock import FakeClock
from tests.support.engine_driver import EngineDriver, Result
from tools_api.grammar import GrammarSpec

PROMPT = list(range(97, 120))
SEARCHED = GrammarSpec(
    lark='start: %json {"type": "array", "items": {"anyOf": [{"enum": ["left", "right"]}, '
    '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 100}, "b": '
    '{"type": "string", "pattern": "^[a-c]{3,9}-(x|yy)$"}}, "required": ["a", "b"], '
    '"additionalProperties": false}]}, "x-guidance": {"whitespace_flexible": false}}'
)
"""Where it stands open, an ending has to be looked for."""


class Counted:
    """Work that does nothing, in so many pieces, and notes the order."""

    def __init__(self, name: str, count: int, order: list[str]) -> None:
        self.sequence = Sequence.__new__(Sequence)
        self.sequence.finish, self.sequence.preemptions = None, 0
        self.name, self.count, self.order = name, count, order
        self.closed = False
        self.settled: list[Settlement] = []

    def settlement(self) -> Settlement:
        return Settlement(
            sequence=self.sequence,
            num_drafted=0,
            pieces=Pieces(self._work()),
            preemptions=0,
            settled=self.settled.append,
        )

    def _work(self) -> Work[Taken]:
        try:
            for _ in range(self.count):
                self.order.append(self.name)
                yield
        except GeneratorExit:
            self.closed = True
            raise
        return Taken(self.count)


def test_what_fits_the_share_of_a_step_is_settled_at_once() -> None:
    background = BackgroundTasks(FakeClock(tick_s=0.0))
    background.begin_step()
    settlement = Counted("a", 100, []).settlement()
    assert background.finished_at_once(settlement)
    assert settlement.pieces.result == Taken(100)
    assert len(background) == 0


def test_what_does_not_fit_goes_on_in_turn_and_the_step_is_not_held_up() -> None:
    order: list[str] = []
    clock = FakeClock(tick_s=0.0001)
    background = BackgroundTasks(clock)
    works = [Counted(name, 6, order) for name in "abc"]
    background.begin_step()
    for work in works:
        assert not background.finished_at_once(work.settlement())
        assert work.sequence in background
    longest = 0.0
    while background:
        background.begin_step()
        started = clock.now_s
        background.resume()
        longest = max(longest, clock.now_s - started)
        background.end_step(0.002)
    assert longest < SHARE * 0.002 + 4 * clock.tick_s
    for work in works:
        (settlement,) = work.settled
        assert settlement.pieces.result == Taken(6)
        assert settlement.sequence is work.sequence


def test_the_share_follows_the_time_that_steps_take() -> None:
    def pieces_of_a_step(step_s: float) -> int:
        order: list[str] = []
        background = BackgroundTasks(FakeClock(tick_s=0.0001))
        for _ in range(100):
            background.end_step(step_s)
        background.begin_step()
        background.finished_at_once(Counted("a", 10_000, order).settlement())
        return len(order)

    assert pieces_of_a_step(0.1) > 8 * pieces_of_a_step(0.01)
    assert pieces_of_a_step(0.0) >= 1


def test_a_turn_that_ended_otherwise_is_forgotten() -> None:
    background = BackgroundTasks(FakeClock(tick_s=0.01))
    work = Counted("a", 50, [])
    background.begin_step()
    assert not background.finished_at_once(work.settlement())
    work.sequence.finish = FinishReason.CANCELLED
    background.drop_void()
    background.resume()
    assert work.settled == []
    assert work.closed
    assert work.sequence not in background


# In the engine


def constrained(driver: EngineDriver, seed: int, limit: int = 40) -> str:
    sampling = SamplingParams(temperature=1.2, seed=seed, top_logprobs=0)
    return driver.request(
        [*PROMPT, 97 + seed], max_new_tokens=limit, grammar=SEARCHED, sampling=sampling
    )


def slow(driver: EngineDriver) -> EngineDriver:
    """Every piece of a search takes a step of its own."""
    driver.engine.background.clock = FakeClock(tick_s=1.0)
    return driver


def said(results: list[Result]) -> Iterator[tuple[object, ...]]:
    for result in results:
        yield result.tokens, result.finish, [p.token for p in result.logprobs]


@pytest.mark.tail
@pytest.mark.parametrize("drafts", [0, 16])
def test_turns_that_step_aside_say_what_they_would_have_said(drafts: int) -> None:
    outputs = []
    for prepare in (lambda driver: driver, slow):
        driver = prepare(EngineDriver.load(max_draft_tokens=drafts))
        names = [constrained(driver, seed, 24 + 3 * seed) for seed in range(6)]
        free = driver.request(PROMPT, max_new_tokens=30)
        stood_aside = 0
        while driver.engine.has_work:
            driver.step()
            stood_aside = max(stood_aside, len(driver.engine.background))
        outputs.append(list(said([driver.results[name] for name in (*names, free)])))
        assert (stood_aside > 1) is (prepare is slow)
        driver.engine.check()
    assert outputs[0] == outputs[1]


@pytest.mark.tail
def test_the_others_emit_a_token_in_every_step() -> None:
    driver = slow(EngineDriver.load(max_draft_tokens=0))
    free = driver.request(PROMPT, max_new_tokens=1000)
    while not driver.results[free].tokens:
        driver.step()
    names = [constrained(driver, seed) for seed in range(3)]
    waited = 0
    while any(driver.results[name].finish is None for name in names):
        before = len(driver.results[free].tokens)
        driver.step()
        assert len(driver.results[free].tokens) == before + 1
        waited += len(driver.engine.background) > 0
    assert waited > 100


@pytest.mark.tail
def test_a_new_grammar_is_looked_at_beside_steps() -> None:
    """Its compilation is slow, another turn emits a token in every step; two turns that want
    it share it, and one that is cancelled does not stop it."""
    driver = slow(EngineDriver.load(max_draft_tokens=0))
    free = driver.request(PROMPT, max_new_tokens=400)
    while not driver.results[free].tokens:
        driver.step()
    names = [constrained(driver, seed) for seed in range(3)]
    driver.step()
    assert len(driver.engine.background) == 1, "one compilation for all of them"
    driver.cancel(names[0])
    steps = 0
    while not any(driver.results[name].start for name in names):
        before = len(driver.results[free].tokens)
        driver.step()
        assert len(driver.results[free].tokens) == before + 1
        steps += 1
    assert steps > 5
    driver.run()
    finishes = [driver.results[name].finish for name in names]
    assert finishes == [FinishReason.CANCELLED, FinishReason.STOP, FinishReason.STOP]


def test_a_compilation_that_nobody_waits_for_is_dropped() -> None:
    driver = slow(EngineDriver.load(max_draft_tokens=0))
    name = constrained(driver, 0)
    driver.step()
    assert len(driver.engine.background) == 1
    driver.cancel(name)
    driver.run()
    assert driver.results[name].finish is FinishReason.CANCELLED
    assert len(driver.engine.background) == 0
    again = constrained(driver, 0)
    driver.run()
    assert driver.results[again].finish is FinishReason.STOP


def test_a_turn_that_is_alone_does_not_pause() -> None:
    driver = slow(EngineDriver.load(max_draft_tokens=0))
    name = constrained(driver, 1)
    while driver.results[name].finish is None:
        driver.step()
        if len(driver.engine.background):
            assert driver.engine.has_work
            assert driver.engine.pause_s == 0.0


@pytest.mark.parametrize("neighbours", [0, 1])
def test_a_turn_steps_aside_only_where_somebody_waits(neighbours: int) -> None:
    driver = EngineDriver.load(max_draft_tokens=0)
    driver.engine.background.clock = FakeClock(tick_s=0.00004)
    for _ in range(neighbours):
        driver.request(PROMPT, max_new_tokens=1000)
    name = constrained(driver, 1)
    compiling = running = 0
    while driver.results[name].finish is None:
        driver.step()
        stands_aside = len(driver.engine.background) > 0
        running += driver.results[name].start is not None and stands_aside
        compiling += driver.results[name].start is None and stands_aside
    assert (running > 0) is bool(neighbours)
    assert (compiling > 0) is bool(neighbours)


def test_a_turn_may_be_cancelled_while_it_stands_aside() -> None:
    driver = slow(EngineDriver.load(max_draft_tokens=4))
    name = constrained(driver, 2)
    other = driver.request(PROMPT, max_new_tokens=200)
    while not len(driver.engine.background):
        driver.step()
    driver.cancel(name)
    driver.step()
    assert driver.results[name].finish is FinishReason.CANCELLED
    assert len(driver.engine.background) == 0
    driver.run()
    assert driver.results[other].finish is FinishReason.LENGTH
    driver.engine.check()


@pytest.mark.tail
@pytest.mark.parametrize("seed", range(3))
def test_a_turn_may_have_to_give_way_while_it_stands_aside(seed: int) -> None:
    """Random loads on few blocks, some turns cancelled: as on many, where nobody steps
    background."""

    def play(driver: EngineDriver) -> tuple[list[tuple[object, ...]], int]:
        rng = random.Random(seed)
        names, gave_way = [], 0
        for number in range(10):
            names.append(constrained(driver, number, 20 + rng.randrange(40)))
            free = [97 + number] * rng.randrange(20, 60)
            names.append(driver.request(free, max_new_tokens=rng.randrange(20, 60)))
            gave_way += steps(driver, rng.randrange(30))
        gave_way += steps(driver, 20_000)
        driver.engine.check()
        return list(said([driver.results[name] for name in names])), gave_way

    def steps(driver: EngineDriver, count: int) -> int:
        gave_way = 0
        for _ in range(count):
            if driver.engine.has_work:
                tasks = driver.engine.background.queue
                queue = [task for task in tasks if isinstance(task, Settlement)]
                driver.step()
                gave_way += any(s.sequence.preemptions > s.preemptions for s in queue)
        return gave_way

    expected, _ = play(EngineDriver.load(num_blocks=512, block_size=4))
    small = EngineDriver.load(num_blocks=40, block_size=4, output_reserve_percent=0)
    found, gave_way = play(slow(small))
    assert found == expected
    assert gave_way > 0
