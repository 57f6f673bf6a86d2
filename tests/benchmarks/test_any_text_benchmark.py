"""The benchmark of any text sends what it says, and answers with its bars."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import any_text
from benchmarks.report import DataMissing
from runtime.tokenizer import Tokenizer

SHIPPED = Path(__file__).parents[2] / "runtime" / "assets" / "default_model"


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_text, "LENGTHS", (2_000, 20_000))
    monkeypatch.setattr(any_text, "ROUNDS", 1)


def test_a_run_is_as_long_as_it_was_asked_for() -> None:
    for kind, sign in any_text.KINDS.items():
        run = any_text.run_of(kind, 100)
        assert len(run) == 100
        assert set(run) <= set(sign)


def test_growth_is_that_of_the_time_for_each_character(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(any_text.time, "perf_counter", lambda: now[0])

    def squared(text: str) -> None:
        now[0] += len(text) ** 2

    assert set(any_text.growth(squared).values()) == {10.0}


def test_it_tokenises_runs_of_every_kind() -> None:
    assert any_text.encoding(Tokenizer.load(SHIPPED)).keys() == any_text.KINDS.keys()


def test_it_asks_a_server_and_answers_with_its_bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Tokenizer.load(SHIPPED)
    monkeypatch.setattr(any_text, "train_tokenizer", lambda data, folder, seed: loaded)
    monkeypatch.setattr("sys.argv", ["any_text", "--json"])
    status = any_text.main()
    answer = json.loads(capsys.readouterr().out)
    assert [bar["name"] for bar in answer["bars"]] == list(any_text.BARS)
    assert status == (0 if all(bar["met"] for bar in answer["bars"]) else 1)
    for name in ("encode_shipped", "encode_trained", "refuse", "cut"):
        assert answer["figures"][name].keys() == any_text.KINDS.keys()


def test_without_its_data_it_has_no_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise DataMissing("no corpus")

    monkeypatch.setattr(any_text, "train_tokenizer", missing)
    monkeypatch.setattr("sys.argv", ["any_text", "--json"])
    assert any_text.main() == 2
    assert [bar["value"] for bar in json.loads(capsys.readouterr().out)["bars"]] == [None] * 3
