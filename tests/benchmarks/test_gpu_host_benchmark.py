"""The count of launches and the time of preparing a step; no figure counts here."""

import pytest

from benchmarks import gpu_host
from benchmarks.gpu_host import main, prepare_s


@pytest.mark.parametrize("shared", [False, True])
def test_preparing_is_timed_over_steps_that_were_replayed(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_host, "REPEATS", 4)
    monkeypatch.setattr(gpu_host, "TURNS", 4)
    assert prepare_s(shared=shared) > 0
    assert prepare_s(shared=shared, chunk=1024) > 0


def test_without_triton_launches_have_no_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_host, "REPEATS", 4)
    monkeypatch.setattr(gpu_host, "TURNS", 4)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["--json"]) in {1, 2}
    assert '"name": "decode_launches", "value": null' in capsys.readouterr().out
