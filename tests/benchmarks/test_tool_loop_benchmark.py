"""The benchmark of the tool loop reckons what was saved, and answers with all its bars."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tool_loop import Arrivals

ROOT = Path(__file__).parents[2]


def turn(calls: dict[str, float], end: float, begun: dict[str, float]) -> Arrivals:
    return Arrivals(calls=[calls, {}], ends=[end], begun=begun)


@pytest.mark.parametrize(
    ("begun", "ours", "oracle"),
    [
        ({"a": 1.0, "b": 2.0}, 1.0, 1.0),
        ({"a": 1.5, "b": 2.5}, 0.5, 1.0),
        ({"a": 3.0, "b": 3.0}, 0.0, 1.0),
    ],
)
def test_what_was_saved_is_reckoned_from_when_tools_began(
    begun: dict[str, float], ours: float, oracle: float
) -> None:
    assert turn({"a": 1.0, "b": 2.0}, 3.0, begun).saved(10.0) == (ours, oracle)


def test_a_tool_shorter_than_the_rest_of_its_turn_saves_its_own_time() -> None:
    assert turn({"a": 1.0}, 3.0, {"a": 1.0}).saved(0.5) == (0.5, 0.5)


@pytest.mark.parametrize("calls", [0, 5])
def test_turns_with_no_call_or_more_than_four_do_not_count(calls: int) -> None:
    names = {str(number): 1.0 for number in range(calls)}
    assert turn(names, 3.0, names).saved(10.0) == (0.0, 0.0)


@pytest.mark.slow
def test_it_answers_with_every_bar() -> None:
    command = [sys.executable, "-m", "benchmarks.tool_loop", "--json", "--models", "default"]
    command += ["--turns", "2", "--rounds", "1", "--long-turns", "8", "--imports", "1"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    bars = {bar["name"]: bar["value"] for bar in answer["bars"]}
    assert bars.keys() == {
        "overlap_saved",
        "tool_loop_over_wire",
        "bytes_growth",
        "import_ratio",
        "first_client_ratio",
    }
    assert bars["bytes_growth"] == 1.0
    # What a turn that a busy machine starts late saves may be less than nothing, never more
    # than an oracle's.
    assert bars["overlap_saved"] <= 1.0
    cases = [answer["figures"][f"default {duration} ms"] for duration in (50, 200)]
    assert [sum(case["turns_by_calls"].values()) for case in cases] == [2, 2]
