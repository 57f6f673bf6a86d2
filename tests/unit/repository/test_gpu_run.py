"""Measurements one by one: what dies, hangs or gets no time costs no other its result."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.architecture import ROOT, imported_at_load
from tools import gpu_run
from tools.gpu_run import PARTS, Measurement, environment, last_json, run
from tools.gpu_server import steps


def program(name: str, text: str, limit_s: float = 20) -> Measurement:
    command = (sys.executable, "-c", text)
    return Measurement(name=name, command=command, limit_s=limit_s, rehearsed=command)


def lines(out: Path) -> list[dict[str, object]]:
    text = (out / "results.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.tail
def test_one_that_dies_and_one_that_hangs_leave_the_others_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "_GRACE_S", 0.3)
    hangs = "import signal, time; signal.signal(15, signal.SIG_IGN); print('{\"half\": 1}')"
    measurements = [
        program("good", "print('a table'); print('{\"us\": 7}')"),
        program("dies", "import os; print('before'); os.kill(os.getpid(), 9)"),
        program("hangs", f"{hangs}; time.sleep(600)", limit_s=1.5),
        program("wrong", 'print(\'{"failed": "off by 2"}\'); raise SystemExit(1)'),
        program("last", "print('{\"us\": 8}')"),
    ]
    assert not run(measurements, tmp_path, rehearse=True)
    found = lines(tmp_path)
    assert [line["name"] for line in found] == ["good", "dies", "hangs", "wrong", "last"]
    outcomes = [str(line["outcome"]) for line in found]
    assert outcomes[0] == outcomes[4] == "done"
    assert outcomes[1] == "exit code -9"
    assert outcomes[2].startswith("hung: ended after")
    assert outcomes[3] == "exit code 1"
    assert found[0]["value"] == {"us": 7}
    assert found[3]["value"] == {"failed": "off by 2"}
    assert "before" in str(found[1]["tail"])
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "a table" in log
    assert "before" in log


def test_what_has_no_time_left_is_written_down_as_not_run(tmp_path: Path) -> None:
    times: Iterator[float] = iter([0.0, 0.0, gpu_run.PART_S - 0.5])
    measurements = [program("first", "print('{}')"), program("second", "print('{}')")]
    assert not run(measurements, tmp_path, rehearse=True, clock=lambda: next(times))
    assert [line["outcome"] for line in lines(tmp_path)] == ["done", "not run: no time left"]


@pytest.mark.tail
def test_a_measurement_gets_no_more_than_what_is_left_of_its_part(tmp_path: Path) -> None:
    times: Iterator[float] = iter([0.0, gpu_run.PART_S - 1.2])
    sleeper = program("sleeper", "import time; time.sleep(60)", limit_s=60)
    assert not run([sleeper], tmp_path, rehearse=True, clock=lambda: next(times))
    assert str(lines(tmp_path)[0]["outcome"]).startswith("hung")


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "MOST_BYTES", 1000)
    noisy = program("noisy", "print('x' * 5000)")
    assert run([noisy, noisy], tmp_path, rehearse=True)
    assert (tmp_path / "log.txt").stat().st_size == 1000


@pytest.mark.parametrize(
    ("said", "value"),
    [("", None), ("{not json\n", None), ('{"a": 1}\nmore\n', {"a": 1}), ("[1]\n", None)],
)
def test_the_value_is_the_last_line_of_json(said: str, value: object) -> None:
    assert last_json(said) == value


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_imports_is_named_for_the_machine_that_runs_it(part: str) -> None:
    named = {"pytest"}
    for file in ("gpu-wheels.txt", "kernels-constraints.txt"):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        named |= {line.partition("==")[0] for line in lines if not line.startswith("#")}
    installs = re.search(r"-r gpu-wheels.txt (.*)", (ROOT / "Makefile").read_text("utf-8"))
    assert installs is not None
    named |= set(installs[1].split())
    commands = [each for measurement in PARTS[part] for each in each_command(measurement)]
    for command in commands:
        imported = loaded_by(command[command.index("-m") + 1])
        assert {name.replace("_", "-") for name in imported} <= named, command


def each_command(measurement: Measurement) -> tuple[tuple[str, ...], ...]:
    return (measurement.command, measurement.rehearsed or measurement.command)


def loaded_by(program: str) -> set[str]:
    """Packages of others that are imported when ``python -m program`` begins."""
    waiting, seen, others = [program, f"{program}.__main__"], set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = ROOT.joinpath(*name.split("."))
        if (ROOT / name.partition(".")[0]).is_dir():
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    waiting += imported_at_load(file.read_text(encoding="utf-8"))
            waiting.append(name.rpartition(".")[0] or name)
        elif name.partition(".")[0] not in sys.stdlib_module_names:
            others.add(name.partition(".")[0])
    return others


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_end_in_its_time_and_names_its_measurements_once(part: str) -> None:
    names = [measurement.name for measurement in PARTS[part]]
    assert len(set(names)) == len(names)
    assert all(measurement.limit_s <= gpu_run.PART_S for measurement in PARTS[part])


def test_rehearsals_interpret_kernels_and_servers_do_not() -> None:
    assert environment(interpreted=True)["TRITON_INTERPRET"] == "1"
    assert "KEEPWARM_KERNELS" not in environment(interpreted=False)
    servers = [m for part in PARTS.values() for m in part if m.name == "gpu_server"]
    assert len(servers) == 3
    assert not any(m.interpreted for m in servers)


def test_the_peers_interpreter_goes_to_those_that_are_measured_beside_it() -> None:
    peer = Path("/peer/bin/python")
    for part, measurements in PARTS.items():
        for measurement in measurements:
            given = gpu_run.beside(measurement, peer)
            assert (given != measurement) == (part == "4")
            assert gpu_run.beside(measurement, None) == measurement
            if part == "4":
                assert given.command[-2:] == ("--vllm-python", str(peer))
                assert given.rehearsed is not None
                assert given.rehearsed[-2:] == given.command[-2:]


@pytest.mark.tail
def test_measurements_can_be_chosen_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tuple(program(name, "print('{}')") for name in ("first", "second", "third"))
    monkeypatch.setitem(PARTS, "1", few)
    assert gpu_run.main(["1", str(tmp_path), "--only", "third", "first"]) == 0
    assert [line["name"] for line in lines(tmp_path)] == ["third", "first"]
    with pytest.raises(SystemExit):
        gpu_run.main(["1", str(tmp_path), "--only", "fourth"])
    assert "part 1 has first, second, third, not fourth" in capsys.readouterr().err


def test_a_servers_histograms_are_told_by_each_buckets_own_count() -> None:
    page = """keepwarm_engine_step_seconds_bucket{le="0.01"} 2.0
keepwarm_engine_step_seconds_bucket{le="0.02"} 2.0
keepwarm_engine_step_seconds_bucket{le="+Inf"} 5.0
keepwarm_engine_step_seconds_count 5.0
keepwarm_token_gap_bound_seconds 0.05
"""
    assert steps(page) == {
        "seconds": {"0.01": 2.0, "+Inf": 3.0},
        "token_gap_bound_seconds": {"": 0.05},
    }
