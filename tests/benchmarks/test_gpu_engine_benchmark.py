"""The GPU benchmark's engine part on a CPU: that all fits together; no figure counts here."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import gpu_engine
from benchmarks.gpu_cases import Wrong
from benchmarks.gpu_engine import measure_lookahead
from benchmarks.gpu_plan import FULL, Plan
from runtime.engine.lookahead import Lookahead
from runtime.model.presets import random_model_config

CPU = torch.device("cpu")
TINY: Plan = replace(
    FULL,
    models=(("tiny", random_model_config("qwen3-tiny")),),
    engine_turns=(1, 4),
    engine_prompt=20,
    engine_steps=12,
)


def test_turns_say_the_same_whether_steps_are_begun_ahead_or_not() -> None:
    rows = measure_lookahead(TINY, torch.float64, CPU)
    assert [(row["dtype"], row["turns"], row["under_grammar"]) for row in rows] == [
        *(("float64", *turns) for turns in ((1, 0), (4, 0), (4, 2))),
        ("float32", 4, 4),
    ]
    for row in rows:
        assert row["used"] >= (12 if row["dtype"] == "float64" else 6)
        assert row["second_passes"] < row["used"] / 2  # as turns come, and behind forced runs
        assert row["tokens_that_differ"] == row["turns_that_differ"] == 0
        assert row["faster_ahead"] > 0


def _says_otherwise(monkeypatch: pytest.MonkeyPatch, *kinds: type[Lookahead]) -> None:
    run = gpu_engine._Run

    class Other(run):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if type(self.lookahead) in kinds:
                self.said[-1][:3] = [-1, -1, -1]

    monkeypatch.setattr(gpu_engine, "_Run", Other)


def test_turns_that_say_something_else_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _says_otherwise(monkeypatch, Lookahead)
    for row in measure_lookahead(TINY, torch.float64, CPU):
        assert (row["turns_that_differ"], row["tokens_that_differ"]) == (1, 3)


def test_what_overlap_changes_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _says_otherwise(monkeypatch, gpu_engine._Alone)
    with pytest.raises(Wrong, match="overlap changes 3 tokens of 1 turns of 4"):
        measure_lookahead(TINY, torch.float64, CPU)


def test_alone_computes_as_many_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[type[Lookahead] | None, int] = {}
    run = gpu_engine._Run

    class Noted(run):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if self.lookahead is not None:
                used[type(self.lookahead)] = self.lookahead.outcomes.used

    monkeypatch.setattr(gpu_engine, "_Run", Noted)
    measure_lookahead(TINY, torch.float64, CPU)
    assert used[gpu_engine._Alone] == used[gpu_engine._Always] >= 12


def test_a_turn_that_ends_in_the_middle_spoils_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_engine, "_LETS_TURNS_IN", -8)
    with pytest.raises(Wrong, match="ended in the middle"):
        measure_lookahead(TINY, torch.float64, CPU)
