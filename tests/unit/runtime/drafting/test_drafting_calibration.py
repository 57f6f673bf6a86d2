"""How outcomes change what votes are worth."""

import pytest

from runtime.drafting.calibration import Calibration
from runtime.drafting.votes import Vote
from runtime.scheduling.draft import DraftSource

VOTE = Vote(token=7, probability=0.5, source=DraftSource.SESSION, length=8)


def learnt(right: float, times: int = 400) -> Calibration:
    """After votes of which that share was right, evenly."""
    calibration = Calibration()
    for n in range(times):
        calibration.learn("t", VOTE, int((n + 1) * right) > int(n * right))
    return calibration


def test_an_estimate_is_taken_as_it_is_until_something_is_known() -> None:
    assert Calibration().probability("t", VOTE) == 0.5


@pytest.mark.parametrize("right", [0.1, 0.25, 0.5, 0.8])
def test_estimates_come_to_what_outcomes_are(right: float) -> None:
    assert learnt(right).probability("t", VOTE) == pytest.approx(right, abs=0.05)


def test_nothing_becomes_certain_and_nothing_hopeless() -> None:
    assert learnt(1.0, 5000).probability("t", VOTE) == 0.99
    assert learnt(0.0, 5000).probability("t", VOTE) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("tenant", "source", "length", "known"),
    [
        ("t", DraftSource.SESSION, 8, True),
        ("t", DraftSource.SESSION, 15, True),
        ("t", DraftSource.SESSION, 16, False),
        ("t", DraftSource.SESSION, 7, False),
        ("t", DraftSource.MEMORY, 8, False),
        ("other", DraftSource.SESSION, 8, False),
    ],
)
def test_what_is_learnt_holds_for_the_tenant_the_source_and_about_that_length(
    tenant: str, source: DraftSource, length: int, known: bool
) -> None:
    vote = Vote(token=3, probability=0.5, source=source, length=length)
    assert (learnt(0.1).probability(tenant, vote) < 0.5) is known


def test_every_tenant_has_a_probe_now_and_then() -> None:
    calibration = Calibration()
    probes = [n for n in range(1, 129) if calibration.is_probe("t")]
    assert probes == [32, 64, 96, 128]
    assert not calibration.is_probe("other")


def test_what_was_learnt_longest_ago_is_forgotten_when_there_is_too_much() -> None:
    calibration = learnt(0.0)
    for n in range(4095):
        calibration.learn(f"tenant {n}", VOTE, False)
    assert calibration.probability("t", VOTE) < 0.5
    calibration.learn("one more", VOTE, False)
    assert calibration.probability("t", VOTE) == 0.5
    assert calibration.probability("tenant 0", VOTE) < 0.5
