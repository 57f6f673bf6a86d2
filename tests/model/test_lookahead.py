"""Steps begun before the last one's tokens are known: nothing that is told differs."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from runtime.engine import lookahead
from runtime.engine.lookahead import Lookahead, Outcomes
from runtime.engine.step_rows import step_input
from runtime.messages import FinishReason, SamplingParams
from runtime.model.batch import StepBatch
from runtime.scheduling.costs import CostProfile, StepCosts
from runtime.scheduling.step_plan import Chunk
from tests.support.clock import FakeClock
from tests.support.engine_driver import END_OF_TURN, EngineDriver, Result
from tools_api.grammar import GrammarSpec

STEPS = 200
CROWDED: dict[str, object] = {"output_reserve_percent": 0, "session_context_percent": 1000}
"""Turns are admitted that cannot all grow to their end, so that some are preempted."""
WORDS = GrammarSpec(lark='start: "yes" | "no" | "perhaps"')
CALL = GrammarSpec(
    lark=r'''start: "{\"city\": \"" /[a-z]{2,9}/ "\", \"unit\": \"" ("c" | "f") "\"}"'''
)
"""Free text with forced runs before and behind it."""


def load(**settings: object) -> EngineDriver:
    """An engine that begins every step it can, over a model whose logits are gone with the
    next call, as those of recorded steps are."""
    driver = EngineDriver.load(looks_ahead=True, **settings)
    windows = driver.engine.memory.cache.windows
    driver.engine.computation.lookahead = Lookahead(
        driver.runner, StepCosts(), driver.clock, always=True, windows=windows
    )
    forward = driver.runner.forward
    last = torch.empty(0)

    def forgetful(batch: StepBatch, tokens: torch.Tensor | None = None) -> torch.Tensor:
        nonlocal last
        last.fill_(torch.nan)
        last = forward(batch, tokens).clone()
        return last

    driver.runner.forward = forgetful  # type: ignore[method-assign]
    return driver


def campaign(seed: int, *, ahead: bool, **settings: object) -> EngineDriver:
    """Turns that come, are cancelled, stop, end and go on at random; what happens depends on
    the seed and the number of the step alone."""
    rng = np.random.default_rng(seed)
    driver = load(**settings) if ahead else EngineDriver.load(looks_ahead=False, **settings)
    names: list[str] = []
    for _ in range(STEPS):
        if rng.random() < 0.12:
            names.append(submit(driver, rng))
        if names and rng.random() < 0.03:
            driver.cancel(names[int(rng.integers(len(names)))])
        if rng.random() < 0.02:
            driver.release(f"s{int(rng.integers(1, 9))}")
        if driver.engine.has_work:
            driver.step()
    driver.run()
    driver.engine.check()
    return driver


def submit(driver: EngineDriver, rng: np.random.Generator) -> str:
    ends = () if rng.random() < 0.5 else (END_OF_TURN,)
    kinds = rng.random(3)
    return driver.request(
        rng.integers(0, 250, int(rng.integers(1, 60))).tolist(),
        max_new_tokens=int(rng.integers(1, 45)) * (1 + 3 * (rng.random() < 0.2)),
        banned_tokens=ends,
        sampling=SamplingParams(
            temperature=float(rng.choice([0, 0.9])),
            seed=int(rng.integers(1 << 40)),
            top_p=float(rng.choice([1, 0.8])),
            frequency_penalty=float(rng.choice([0, 0.4])),
            stop=("e", "zz") if kinds[0] < 0.2 else (),
            top_logprobs=2 if kinds[1] < 0.2 else None,
        ),
        grammar=WORDS if kinds[2] < 0.15 else CALL if kinds[2] < 0.4 else None,
    )


def told(result: Result) -> dict[str, object]:
    """All of it; log-probabilities but for the last bits, which libraries sum up by how many
    rows there are."""
    logprobs = [
        (entry.token, round(entry.logprob, 9), [(t, round(p, 9)) for t, p in entry.top])
        for entry in result.logprobs
    ]
    return asdict(result) | {"logprobs": logprobs}


@pytest.mark.tail
@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_draft_tokens": 0},
        {"max_draft_tokens": 4, "draft_tokens_per_step": 4},
        {"max_draft_tokens": 0, "num_blocks": 12, **CROWDED},
        {"max_draft_tokens": 0, "num_blocks": 12, **CROWDED, "policy": "fcfs"},
    ],
    ids=["plain", "drafts", "few blocks", "fcfs"],
)
@pytest.mark.samples(2)
def test_every_answer_is_that_of_an_engine_that_does_not_look_ahead(
    seed: int, settings: dict[str, object]
) -> None:
    """Tokens, counts, causes of ending and the number of steps, of cancelled turns as well."""
    plain = campaign(seed, ahead=False, **settings)
    ahead = campaign(seed, ahead=True, **settings)
    assert plain.engine.computation.lookahead is None
    assert ahead.engine.computation.lookahead is not None
    assert ahead.engine.computation.lookahead.outcomes.used > 100
    assert ahead.engine.computation.lookahead.outcomes.second_passes >= 20
    assert ahead.preemptions > 0 or "num_blocks" not in settings
    expected = {name: told(result) for name, result in plain.results.items()}
    assert {name: told(result) for name, result in ahead.results.items()} == expected
    assert ahead.steps == plain.steps
    assert ahead.preemptions == plain.preemptions
    assert {result.finish for result in plain.results.values()} >= {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    one, other = ahead.last_stats, plain.last_stats
    assert one is not None
    assert other is not None
    assert (one.blocks_free, one.blocks_evictable) == (other.blocks_free, other.blocks_evictable)


def test_a_turn_that_ends_unforeseen_drops_out_of_the_step_that_was_begun() -> None:
    driver = load(max_draft_tokens=0)
    first = driver.request([1, 2, 3], max_new_tokens=30)
    second = driver.request([9, 8], max_new_tokens=30)
    third = driver.request([9, 7], max_new_tokens=30)
    for _ in range(10):
        driver.step()
    ahead = driver.engine.computation.lookahead
    assert ahead is not None
    used = ahead.outcomes.held
    assert used >= 7
    driver.cancel(second)
    driver.step()
    assert ahead.outcomes == Outcomes(held=used + 1)
    assert driver.results[second].finish is FinishReason.CANCELLED
    assert len(driver.results[first].tokens) == 11
    driver.cancel(first)
    driver.cancel(third)
    driver.request([4, 4], max_new_tokens=2)
    driver.step()
    assert ahead.outcomes == Outcomes(held=used + 1, dropped=1)  # nobody of those foreseen was left
    driver.run()
    assert driver.results[second].after_finish == 0
    driver.engine.check()


def test_no_turn_misses_a_step_whoever_comes_or_is_bound() -> None:
    """A newcomer is computed in a second pass of the step that was begun without it, and so is
    what a grammar forces."""
    driver = load(max_draft_tokens=0)
    free = driver.request([1, 2, 3], max_new_tokens=60)
    bound = driver.request([5, 6], max_new_tokens=60, grammar=CALL)
    driver.step()
    ahead = driver.engine.computation.lookahead
    assert ahead is not None
    for step in range(1, 20):
        before = {name: len(driver.results[name].tokens) for name in (free, bound)}
        if step == 4:
            late = driver.request(list(range(40)), max_new_tokens=5)
        driver.step()
        assert len(driver.results[free].tokens) == before[free] + 1
        if driver.results[bound].finish is None:
            assert len(driver.results[bound].tokens) > before[bound]
        assert ahead.outcomes.used == step
    assert driver.results[late].finish is FinishReason.LENGTH
    assert driver.results[bound].finish is FinishReason.STOP
    assert 2 <= ahead.outcomes.second_passes <= 5


def test_a_turn_under_a_grammar_or_with_log_probabilities_is_begun_ahead() -> None:
    answers = []
    for ahead in (True, False):
        driver = load(max_draft_tokens=0) if ahead else EngineDriver.load(max_draft_tokens=0)
        sampling = SamplingParams(seed=5, top_logprobs=2)
        answers.append(driver.turn([1, 2, 3], grammar=CALL, sampling=sampling, max_new_tokens=60))
        if driver.engine.computation.lookahead is not None:
            assert driver.engine.computation.lookahead.outcomes.used >= 3
    assert told(answers[0]) == told(answers[1])
    assert len(answers[0].logprobs) == len(answers[0].tokens) > 20


def test_a_token_that_the_limit_replaces_is_not_taken_for_the_one_that_was_drawn() -> None:
    """The turn has to close now, and draws on behind that: its step was begun with another."""
    closes = GrammarSpec(lark='start: "{" /[a-z]+/ "}" /[0-9][0-9]/')
    answers = []
    for ahead in (True, False):
        driver = load(max_draft_tokens=0) if ahead else EngineDriver.load(max_draft_tokens=0)
        names = [
            driver.request([n], grammar=closes, max_new_tokens=9, banned_tokens=())
            for n in range(4)
        ]
        driver.run()
        answers.append([told(driver.results[name]) for name in names])
        if driver.engine.computation.lookahead is not None:
            assert driver.engine.computation.lookahead.outcomes.second_passes > 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize("model", ["qwen3-tiny", "gemma3-tiny"])
def test_logits_are_handed_out_for_the_very_same_inputs_only(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of difference in one turn's row is met with a refusal of that row alone; of a model
    whose rows behind windows are given back, also in its window blocks."""
    seen = []
    handed_out = Lookahead.logits

    def watched(self: Lookahead, chunks: list[Chunk], batch: StepBatch) -> torch.Tensor:
        prospect, begun = self._prospect, self._begun
        if begun is not None and len(chunks) == 2:
            assert prospect is not None
            for name in ("token_ids", "positions", "slots", "block_tables"):
                values = getattr(batch, name).copy()
                values.flat[-1] += 1
                changed = replace(batch, **{name: values})
                assert lookahead.agreeing(chunks, changed, prospect, begun) == ([0, -1], [0])
            assert (batch.window is not None) == (model == "gemma3-tiny")
            for name in ("context_lengths", "block_tables") if batch.window is not None else ():
                values = getattr(batch.window, name).copy()
                values.flat[-1] += 1
                changed = replace(batch, window=replace(batch.window, **{name: values}))
                assert lookahead.agreeing(chunks, changed, prospect, begun) == ([0, -1], [0])
            sequence = chunks[1].sequence
            sequence.preemptions += 1
            assert lookahead.agreeing(chunks, batch, prospect, begun) == ([0, -1], [0])
            sequence.preemptions -= 1
            assert lookahead.agreeing(chunks, batch, prospect, begun) == ([0, 1], [0, 1])
            seen.append(begun)
        return handed_out(self, chunks, batch)

    monkeypatch.setattr(Lookahead, "logits", watched)
    driver = load(
        max_draft_tokens=0,
        model=f"random:{model}",
        num_blocks=4000,
        max_running=2,
        max_batch_tokens=64,
    )
    driver.request([1, 2, 3], max_new_tokens=6)
    driver.request([7, 2], max_new_tokens=6)
    driver.run()
    assert len(seen) == 5


def test_rows_of_two_passes_come_in_the_order_of_the_step() -> None:
    driver = load(max_draft_tokens=0)
    names = [driver.request([n, 2], max_new_tokens=9) for n in range(3)]
    for _ in range(3):
        driver.step()
    ahead = driver.engine.computation.lookahead
    assert ahead is not None
    rows: list[list[float]] = []
    logits = ahead.logits

    def reversed_step(chunks: list[Chunk], batch: StepBatch) -> torch.Tensor:
        """The turns in another order, and one of them with a token of which nobody knew."""
        chunks = chunks[::-1]
        unforeseen = chunks[1].sequence
        unforeseen.buffer.truncate(len(unforeseen.buffer) - 1)
        unforeseen.buffer.append(200)
        batch = StepBatch.build([step_input(chunk, None) for chunk in chunks], 16)
        found = logits(chunks, batch).clone()
        expected = driver.runner.forward(batch)
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)
        rows.append(found[:, 0].tolist())
        return found.flip(0)

    ahead.logits = reversed_step  # type: ignore[assignment,method-assign]
    driver.step()
    assert len(set(rows[0])) == len(names) == 3
    assert ahead.outcomes.second_passes == 1


def test_a_turn_whose_blocks_are_full_is_given_one_in_time() -> None:
    driver = load(max_draft_tokens=0)
    driver.turn([1, 2, 3], max_new_tokens=100)
    ahead = driver.engine.computation.lookahead
    assert ahead is not None
    assert ahead.outcomes == Outcomes(held=99)


@pytest.mark.parametrize("pass_s", [0.001, 0.1])
def test_a_step_is_begun_while_that_pays(pass_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the steps need a second pass; the host takes 10 ms between two steps."""
    clock = FakeClock()
    costs = StepCosts(CostProfile(decode_step_s=pass_s))
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    ahead = driver.engine.computation.lookahead = Lookahead(driver.runner, costs, clock)
    begun: list[bool] = []
    foresee, arrived = Lookahead.foresee, Lookahead.arrived

    def watched(self: Lookahead, *args: object, **options: object) -> StepBatch | None:
        batch = foresee(self, *args, **options)  # type: ignore[arg-type]
        begun.append(batch is not None)
        return batch

    def slow(self: Lookahead) -> None:
        arrived(self)
        clock.advance(0.01)

    monkeypatch.setattr(Lookahead, "foresee", watched)
    monkeypatch.setattr(Lookahead, "arrived", slow)
    driver.request([1], max_new_tokens=400)
    for step in range(100):
        if step % 2:
            driver.request([2, step], max_new_tokens=1)
        driver.step()
    assert begun[0]
    assert sum(begun[50:]) == (50 if pass_s < 0.01 else 0)
    assert ahead.outcomes.second_passes > 10 or pass_s > 0.01
    for _ in range(80):  # nobody comes any more
        driver.step()
    assert begun[-1]


def test_what_the_host_does_while_nothing_goes_on_is_not_the_price_of_a_step() -> None:
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    ahead = driver.engine.computation.lookahead = Lookahead(
        driver.runner, StepCosts(), driver.clock
    )
    gone = driver.request([1, 2], max_new_tokens=30)
    driver.step()
    driver.step()
    driver.cancel(gone)
    driver.run()
    driver.clock.advance(1000)
    driver.turn([1, 2], max_new_tokens=3)
    assert ahead.host_s < 1


def test_a_draw_that_fails_ends_its_turn_and_looks_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = load(max_draft_tokens=0)
    forward = driver.runner.forward

    def poisoned(batch: StepBatch, tokens: torch.Tensor | None = None) -> torch.Tensor:
        logits = forward(batch, tokens).clone()
        logits[-1, 3] = torch.nan
        return logits

    monkeypatch.setattr(driver.runner, "forward", poisoned)
    healthy = driver.request([4, 5], max_new_tokens=6)
    driver.step()
    monkeypatch.setattr(driver.runner, "forward", forward)
    driver.run()
    assert driver.results[healthy].finish is FinishReason.ERROR
    assert driver.turn([4, 5], max_new_tokens=6).finish is FinishReason.LENGTH
    assert "step ahead failed" not in caplog.text


class Told:
    """Adds up what steps tell of those begun ahead."""

    def __init__(self, driver: EngineDriver) -> None:
        self._driver = driver
        self.outcomes = Outcomes()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._driver.last_stats = None
            self._driver.step()
            stats = self._driver.last_stats
            if stats is not None:
                self.outcomes.held += stats.ahead_held_delta
                self.outcomes.second_passes += stats.ahead_second_passes_delta
                self.outcomes.dropped += stats.ahead_dropped_delta


def test_steps_tell_how_those_begun_ahead_turned_out() -> None:
    driver = load(max_draft_tokens=0)
    told = Told(driver)
    first = driver.request([1, 2, 3], max_new_tokens=30)
    told.step()
    assert told.outcomes == Outcomes()  # nobody could foresee it
    told.step(4)
    assert told.outcomes == Outcomes(held=4)
    driver.request([9, 8], max_new_tokens=1)
    told.step()
    assert told.outcomes == Outcomes(held=4, second_passes=1)
    told.step(2)
    assert told.outcomes == Outcomes(held=6, second_passes=1)
    driver.cancel(first)
    told.step()
    assert not driver.engine.has_work
    assert told.outcomes == Outcomes(held=6, second_passes=1, dropped=1)
    assert driver.engine.computation.lookahead is not None
    assert driver.engine.computation.lookahead.outcomes == told.outcomes


def test_what_was_dropped_is_not_counted_again_when_the_next_turn_comes() -> None:
    driver = load(max_draft_tokens=0)
    gone = driver.request([1, 2, 3], max_new_tokens=30)
    driver.step()
    driver.cancel(gone)
    driver.run()
    driver.turn([1, 2, 3], max_new_tokens=3)
    assert driver.engine.computation.lookahead is not None
    assert driver.engine.computation.lookahead.outcomes == Outcomes(held=2, dropped=1)


def test_on_a_cpu_no_step_is_begun_ahead_and_none_is_told_of() -> None:
    driver = EngineDriver.load(max_draft_tokens=0)
    assert driver.engine.computation.lookahead is None
    told = Told(driver)
    driver.request([1, 2, 3], max_new_tokens=5)
    told.step(5)
    assert not driver.engine.has_work
    assert told.outcomes == Outcomes()
