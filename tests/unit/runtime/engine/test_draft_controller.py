"""Who gets drafts: by what steps with and without them brought, and by what proposing takes."""

from collections.abc import Callable

import numpy as np
import pytest

from runtime.config import EngineConfig
from runtime.engine.draft_controller import DraftController
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.scheduling.draft import Draft, DraftSource
from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.clock import FakeClock
from tests.support.requests import make_request

STEP_S = 0.01
CONFIG = EngineConfig(max_draft_tokens=16, draft_tokens_per_step=32)


class SlowDrafter:
    """Proposes four tokens for each turn; each takes as long as a test says."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.clock = FakeClock()
        self.seconds = seconds
        self.asked: list[str] = []
        self.num_bytes = 0

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        self.asked.append(branch_id)
        count = 0
        while count < 4 and may_go_on():
            self.clock.advance(self.seconds.get(branch_id, 0.0))
            count += 1
        return Draft(
            tokens=np.arange(count, dtype=np.int32),
            sources=(DraftSource.SESSION,) * count,
            survival=(0.9,) * count,
        )

    def verified(self, branch_id: str, verified: int, accepted: int) -> None: ...

    def remember(self, tenant: str, output: TokenArray) -> None: ...

    def close(self, branch_id: str) -> None: ...


def turns(count: int) -> list[Sequence]:
    made = []
    for number in range(count):
        request = make_request(
            5, request_id=f"r{number}", branch_id=f"s{number}", max_new_tokens=100
        )
        made.append(Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0))
    return made


def rounds(drafter: SlowDrafter) -> DraftController:
    return DraftController(drafter, CONFIG, drafter.clock)


def test_without_a_drafter_nobody_gets_drafts() -> None:
    nothing = DraftController(None, CONFIG, FakeClock())
    assert nothing.propose(turns(3), step_s=STEP_S) == {}
    assert not nothing.expects_drafts(1)


@pytest.mark.parametrize(("count", "expected"), [(1, True), (8, True), (9, False), (32, False)])
def test_before_anything_is_measured_a_few_turns_get_drafts(count: int, expected: bool) -> None:
    asked = rounds(SlowDrafter({}))
    assert asked.expects_drafts(count) is expected
    assert bool(asked.propose(turns(count), step_s=STEP_S)) is expected


@pytest.mark.samples(4)
@pytest.mark.parametrize("count", [2, 8, 32])
@pytest.mark.parametrize("gain", [0.5, 0.9, 1.2, 2.0])
def test_what_brings_more_tokens_a_second_is_done(count: int, gain: float) -> None:
    """And the other thing now and then, so that it can show that it has become better."""
    asked, running = rounds(SlowDrafter({})), turns(count)
    chosen = []
    for _ in range(1000):
        expected = asked.expects_drafts(count)
        drafts = bool(asked.propose(running, step_s=STEP_S))
        assert drafts is expected
        chosen.append(drafts)
        tokens = 3 * count if drafts else count
        asked.observe(tokens, (3 / gain if drafts else 1.0) * STEP_S)
    share = sum(chosen[-640:]) / 640
    assert share == pytest.approx(1 - 1 / 33 if gain > 1 else 1 / 33, abs=0.01)
    for _ in range(1500):
        drafts = bool(asked.propose(running, step_s=STEP_S))
        chosen.append(drafts)
        asked.observe(count, (gain if drafts else 1.0) * STEP_S)
    assert (sum(chosen[-64:]) > 32) is (gain <= 1), "the tables have turned"


def test_one_slow_step_changes_nothing() -> None:
    asked, running = rounds(SlowDrafter({})), turns(4)
    for number in range(600):
        drafts = bool(asked.propose(running, step_s=STEP_S))
        seconds = STEP_S * (3 / 1.5 if drafts else 1.0)
        asked.observe(12 if drafts else 4, seconds * (40 if number == 500 else 1))
    assert asked.expects_drafts(4)


def test_proposing_for_several_turns_has_a_share_of_a_step() -> None:
    drafter = SlowDrafter({f"s{n}": STEP_S / 8 for n in range(4)})
    drafts = rounds(drafter).propose(turns(4), step_s=STEP_S)
    assert drafter.clock.now_s < 0.75 * STEP_S
    assert 0 < sum(len(draft.tokens) for draft in drafts.values()) < 8
    drafter.clock.now_s = 0.0
    (alone,) = rounds(drafter).propose(turns(1), step_s=STEP_S / 100).values()
    assert len(alone.tokens) == 4, "nobody waits for it"


def test_a_turn_whose_proposals_are_slow_goes_without_for_longer_and_longer() -> None:
    drafter = SlowDrafter({"s1": 3 * STEP_S})
    asked = rounds(drafter)
    both = turns(2)
    for _ in range(300):
        asked.propose(both, step_s=STEP_S)
    assert drafter.asked.count("s0") > 280
    assert 5 <= drafter.asked.count("s1") <= 12
    asked.propose(both[:1], step_s=STEP_S)
    assert len(asked.pauses) <= 1, "turns that are gone are forgotten"
