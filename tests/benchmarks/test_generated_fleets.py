"""Generated sessions: what is shared, what is compacted, what has heavy tails."""

import statistics
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.generated_fleets import FleetShape, generate
from benchmarks.trace_sessions import Session, Turn

SHAPE = FleetShape()


def everybody(fleet: list[Session]) -> Iterator[Session]:
    for session in fleet:
        yield session
        for turn in session.turns:
            yield from turn.sub_agents


def turns_of(fleet: list[Session]) -> list[Turn]:
    return [turn for session in everybody(fleet) for turn in session.turns]


def in_common(left: Turn, right: Turn) -> int:
    length = min(len(left.tokens), len(right.tokens))
    differs = np.flatnonzero(left.tokens[:length] != right.tokens[:length])
    return int(differs[0]) if len(differs) else length


def test_a_fleet_follows_from_its_seed() -> None:
    lengths = [[len(turn.tokens) for turn in turns_of(generate(8, seed))] for seed in (1, 1, 2)]
    assert lengths[0] == lengths[1] != lengths[2]


@pytest.mark.parametrize("seed", range(3))
def test_a_turn_keeps_exactly_what_it_says_of_the_one_before(seed: int) -> None:
    for session in everybody(generate(8, seed)):
        for before, turn in zip(session.turns, session.turns[1:], strict=False):
            assert in_common(before, turn) == turn.kept_tokens < turn.prompt_tokens
            assert turn.prompt_tokens < len(turn.tokens)


@pytest.mark.parametrize("seed", range(3))
def test_compacted_contexts_keep_their_tools_alone_and_prompts_stay_bounded(seed: int) -> None:
    turns = turns_of(generate(24, seed))
    cut = [t for s in everybody(generate(24, seed)) for t in s.turns[1:]]
    compacted = [t for t in cut if t.kept_tokens == SHAPE.tools_tokens]
    assert 0.01 < len(compacted) / len(turns) < 0.15
    assert max(t.prompt_tokens for t in cut) <= SHAPE.compact_at + 1


@pytest.mark.parametrize("seed", range(3))
def test_sub_agents_begin_with_their_parents_context_or_with_its_tools(seed: int) -> None:
    shared = [
        (in_common(turn, helper.turns[0]), len(turn.tokens))
        for session in generate(48, seed)
        for turn in session.turns
        for helper in turn.sub_agents
    ]
    whole = [common == length for common, length in shared]
    assert 0.3 < statistics.fmean(whole) < 0.7
    assert all(common in (SHAPE.tools_tokens, length) for common, length in shared)
    assert max(len(t.sub_agents) for t in turns_of(generate(48, seed))) > 2


def test_sessions_share_a_few_sets_of_tools() -> None:
    fleet = generate(40, 1)
    starts = {int(session.turns[0].tokens[0]) for session in fleet}
    assert len(starts) == SHAPE.tool_sets


def test_pauses_have_a_heavy_tail() -> None:
    sessions = list(everybody(generate(64, 1)))
    gaps = sorted(
        turn.gap_s
        for session in sessions
        for before, turn in zip(session.turns, session.turns[1:], strict=False)
        if before.calls_tool
    )
    median = statistics.median(gaps)
    assert 6 < median < 13
    assert gaps[int(0.99 * len(gaps))] > 10 * median
