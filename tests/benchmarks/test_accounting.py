"""The benchmark of accounting meters what the server meters, and answers with its bar."""

import json

import pytest

from benchmarks import accounting


def test_more_turns_take_a_larger_share_of_a_step() -> None:
    few, many = (accounting.accounting_share_of_step(turns) for turns in (2, 64))
    assert 0 < few < many
    assert accounting.accounting_share_of_step(2, step_s=1.0) < few


def test_it_answers_with_its_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "TURNS", 2)
    monkeypatch.setattr("sys.argv", ["accounting", "--json"])
    status = accounting.main()
    (bar,) = json.loads(capsys.readouterr().out)["bars"]
    assert (bar["name"], bar["op"], bar["bar"]) == ("accounting_share_of_step", "<=", 0.01)
    assert status == (0 if bar["met"] else 1)
