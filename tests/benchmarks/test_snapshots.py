from pathlib import Path

import pytest

from benchmarks import snapshots
from benchmarks.snapshots import IntervalRule, LastBlockRule, OurRule, ideal, load_runs, replay

SMOKE = Path(__file__).parents[3] / "shared" / "traces" / "smoke.sessions.jsonl"


@pytest.mark.skipif(not SMOKE.is_file(), reason="no recorded runs here")
def test_no_rule_computes_less_than_keys_and_values_ask_for_and_more_slots_never_more() -> None:
    runs = load_runs(SMOKE)
    requests = [each for each in replay(runs, 4) if isinstance(each, snapshots.Placed)]
    least = ideal(requests)
    for make in (
        OurRule,
        lambda slots: OurRule(slots, host_slots=slots),
        lambda slots: OurRule(slots, host_slots=slots, intervals=False),
        lambda slots: LastBlockRule(slots, 528),
        IntervalRule,
    ):
        few, many = (sum(map(make(slots).computed, requests)) for slots in (4, 4096))
        assert least <= many <= few
