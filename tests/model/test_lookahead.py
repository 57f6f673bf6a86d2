"""Steps begun before the last one's tokens are known: nothing that is told differs."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from runtime.batch import StepBatch
from runtime.lookahead import Lookahead
from runtime.messages import FinishReason, SamplingParams
from tests.support.engine_driver import END_OF_TURN, EngineDriver, Result
from tools_api.grammar import GrammarSpec

STEPS = 200
CROWDED: dict[str, object] = {"output_reserve_percent": 0, "session_context_percent": 1000}
"""Turns are admitted that cannot all grow to their end, so that some give way."""
WORDS = GrammarSpec(lark='start: "yes" | "no" | "perhaps"')


def campaign(seed: int, *, ahead: bool, **settings: object) -> EngineDriver:
    """Turns that come, are cancelled, stop, end and go on at random; what happens depends on
    the seed and the number of the step alone."""
    rng = np.random.default_rng(seed)
    driver = EngineDriver.load(looks_ahead=ahead, **settings)
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
            top_logprobs=2 if kinds[1] < 0.1 else None,
        ),
        grammar=WORDS if kinds[2] < 0.1 else None,
    )


def told(result: Result) -> dict[str, object]:
    return asdict(result) | {"logprobs": [str(entry) for entry in result.logprobs]}


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
def test_every_answer_is_that_of_an_engine_that_does_not_look_ahead(
    seed: int, settings: dict[str, object]
) -> None:
    """Tokens, counts, causes of ending and the number of steps, of cancelled turns as well."""
    plain = campaign(seed, ahead=False, **settings)
    ahead = campaign(seed, ahead=True, **settings)
    assert plain.engine.ahead is None
    assert ahead.engine.ahead is not None
    assert ahead.engine.ahead.hits > 20
    assert ahead.engine.ahead.misses > 0
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


def test_turns_that_end_unforeseen_cost_the_step_that_was_begun_and_nothing_else() -> None:
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    first = driver.request([1, 2, 3], max_new_tokens=30)
    second = driver.request([9, 8], max_new_tokens=30)
    for _ in range(10):
        driver.step()
    ahead = driver.engine.ahead
    assert ahead is not None
    used = ahead.hits
    assert used >= 7
    assert ahead.misses == 0
    driver.cancel(second)
    driver.step()
    assert (ahead.hits, ahead.misses) == (used, 1)
    assert driver.results[second].finish is FinishReason.CANCELLED
    assert len(driver.results[first].tokens) == 11
    driver.run()
    assert len(driver.results[first].tokens) == 30
    assert driver.results[second].after_finish == 0
    driver.engine.check()


def test_a_turn_bound_by_a_grammar_is_not_begun_ahead() -> None:
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    driver.turn([1, 2, 3], grammar=WORDS, max_new_tokens=9)
    ahead = driver.engine.ahead
    assert ahead is not None
    assert (ahead.hits, ahead.misses) == (0, 0)


def test_logits_are_handed_out_for_the_very_same_inputs_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind of difference is met with a refusal; the same step with the logits."""
    seen = []
    take = Lookahead.take

    def watched(self: Lookahead, parts: list, batch: StepBatch) -> torch.Tensor | None:  # type: ignore[type-arg]
        foreseen = self._foreseen
        if foreseen is not None:
            for name in ("token_ids", "positions", "slots", "logit_rows", "block_tables"):
                values = getattr(batch, name).copy()
                values.flat[-1] += 1
                self._foreseen = foreseen
                changed = StepBatch(
                    **{
                        field: values if field == name else getattr(batch, field)
                        for field in StepBatch.__slots__
                    }
                )
                assert take(self, parts, changed) is None
            self._foreseen = foreseen
            assert take(self, parts[:-1], batch) is None
            self._foreseen = foreseen
            seen.append(foreseen)
        return take(self, parts, batch)

    monkeypatch.setattr(Lookahead, "take", watched)
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
    result = driver.turn([1, 2, 3], max_new_tokens=6)
    assert len(result.tokens) == 6
    assert len(seen) == 5


def test_a_draw_that_fails_ends_its_turn_and_looks_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = EngineDriver.load(looks_ahead=True, max_draft_tokens=0)
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
