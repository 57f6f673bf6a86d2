"""The soak's figures from looks at memory that a test made up, and a short one that is played."""

import json
from typing import Any

import pytest

from benchmarks import soak as module
from benchmarks.soak import Look, Soak, figures, share
from keepwarm.demo.child_server import ChildServer
from runtime.messages import ENGINE_PARTS
from sessions.pages.memory_metrics import SERVER_PARTS


def looks(server: list[float], parts: list[float]) -> list[Look]:
    """A look each two seconds; the engine stays as it is."""
    return [
        Look(
            2.0 * number,
            {"server": whole, "engine": 400.0},
            {"server": {"responses": part, "sessions": 1.0}, "engine": {"kv": 64.0}},
        )
        for number, (whole, part) in enumerate(zip(server, parts, strict=True))
    ]


def played(found: list[Look]) -> dict[str, Any]:
    server: Any = ChildServer
    return figures(Soak(server, 0.0, found, [12] * module.AGENTS))


def test_growth_is_that_of_the_last_third_and_parts_since_the_tenth_turn() -> None:
    rising = [100.0 + number for number in range(60)] + [160.0] * 60
    found = played(looks(rising, [number * 0.9 for number in range(60)] + [54.0] * 60))
    assert found["growth_server_mib"] == 0.0
    assert found["early_server_mib"] == pytest.approx(55.5)
    assert found["parts_server_mib"] == pytest.approx(49.95)
    assert found["explained_server"] == pytest.approx(0.9)
    assert (found["growth_engine_mib"], found["explained_engine"]) == (0.0, 1.0)


def test_a_leak_that_no_part_knows_is_not_explained() -> None:
    leak = [100.0 + number / 4 for number in range(120)]
    found = played(looks(leak, [3.0] * 120))
    assert found["growth_server_mib"] == pytest.approx(7.5, abs=0.5)
    assert found["explained_server"] == 0.0


@pytest.mark.parametrize(
    ("grown", "told", "explained"),
    [
        (3.0, 1.0, 1.0),
        (10.0, 9.0, 0.9),
        (9.0, 10.0, 0.9),
        (9.0, 18.0, 0.5),
        (10.0, -1.0, 0.0),
        (-10.0, 9.0, 0.0),
        (-10.0, -5.0, 0.5),
    ],
)
def test_what_is_explained_is_the_smaller_over_the_larger(
    grown: float, told: float, explained: float
) -> None:
    assert share(grown, told, 4.0) == pytest.approx(explained)


@pytest.mark.slow
def test_a_short_soak_with_faults_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["soak", "--json", "--minutes", "0.1", "--fault-every-s", "2"]
    monkeypatch.setattr(module, "TENTH", 2)
    monkeypatch.setattr(module, "EVERY_S", 0.2)
    monkeypatch.setattr("sys.argv", words)
    for name in ("FAULT_SUITE_FORGET_S", "FAULT_SUITE_REPORT"):
        monkeypatch.setenv(name, "")
    module.main()
    found = json.loads(capsys.readouterr().out)["figures"]
    assert found["faults"] >= 2
    assert found["turns"] >= 2 * module.AGENTS
    assert {*found["parts_of_server"]} == {*SERVER_PARTS}
    assert {*found["parts_of_engine"]} == {*ENGINE_PARTS}
    assert found["first_server_mib"] > 30
    assert found["first_engine_mib"] > 100
