"""The live comparison: what it plays, what it counts, and that both engines say the same."""

import pytest

from benchmarks.speculation_live import Comparison, LiveEngine, Supply, Timing, compare
from tests.support.clock import FakeClock


@pytest.fixture(scope="module")
def plain() -> LiveEngine:
    # On a machine that stalls, a search in the grammar would stand aside for a step.
    return LiveEngine(speculates=False, num_blocks=512, clock=FakeClock(tick_s=1e-6))


@pytest.fixture(scope="module")
def speculating() -> LiveEngine:
    return LiveEngine(speculates=True, num_blocks=512)


def test_a_seed_gives_the_same_turns_and_their_lengths_are_as_asked(plain: LiveEngine) -> None:
    first, again = (Supply(plain.tokenizer, 3).calls(6, least=300, most=600) for _ in range(2))
    assert [turn.prompt.tolist() for turn in first] == [turn.prompt.tolist() for turn in again]
    assert all(300 <= len(turn.prompt) <= 600 and turn.grammar for turn in first)
    (text,) = Supply(plain.tokenizer, 3).texts(1, least=1500, most=2500)
    assert 1500 <= len(text.prompt) <= 2500
    assert text.grammar is None


def test_both_engines_write_the_same_calls_and_only_one_takes_one_token_a_step(
    plain: LiveEngine, speculating: LiveEngine
) -> None:
    turns = Supply(plain.tokenizer, 1).calls(4, least=0, most=600)
    found = compare(plain, speculating, [turns[:1], turns[1:]])
    figures = found.figures("x")
    assert figures["x_pairs"] == 2
    assert figures["x_turns_alike"] == 1.0
    alone = found.plain[0]
    assert alone.steps == alone.tokens == len(alone.outputs[0]) - 1
    assert found.speculating[0].steps < alone.steps
    assert all(t.seconds > 0 for t in (*found.plain, *found.speculating))


def test_the_speedup_is_that_of_tokens_per_second() -> None:
    slow = Timing(seconds=2.0, tokens=20, steps=20, outputs=[[1, 2], [3]])
    fast = Timing(seconds=0.5, tokens=15, steps=5, outputs=[[1, 2], [4]])
    found = Comparison(plain=(slow, slow), speculating=(fast, fast))
    assert found.speedup == pytest.approx(3.0)
    figures = found.figures("x")
    assert figures["x_seconds_ratio"] == 4.0
    assert figures["x_turns_alike"] == 0.5
    assert figures["x_tokens_per_step"] == 3.0
