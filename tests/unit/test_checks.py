"""What a machine lacks is found, and comes with what to do about it."""

import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from keepwarm.commands.doctor import lines
from sessions.command import checks
from sessions.command.checks import Finding, findings, folder, model, open_files, port, read_device
from sessions.command.options import SERVE_SETTINGS, read_serve_options
from sessions.command.settings import resolve

CPU = {
    "torch": "2.13.0+cpu",
    "cuda": None,
    "gpus": [],
    "threads": 2,
    "cpu_kernels": "cpu_kernels-1",
    "triton": None,
}


def verdict(finding: Finding) -> str:
    assert bool(finding.advice) == (finding.verdict != "ok")
    return finding.verdict


def test_a_model_that_is_not_there_is_a_fault() -> None:
    assert verdict(model("default")) == "ok"
    assert verdict(model("/nowhere/model")) == "fault"


def test_a_port_that_is_taken_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        finding = port("127.0.0.1", number)
        assert verdict(finding) == "fault"
        assert f"port {number}: Address already in use" in finding.found
    assert verdict(port("127.0.0.1", 0)) == "ok"
    assert verdict(port("host.invalid", 80)) == "fault"


@pytest.mark.parametrize(
    ("soft", "expected"), [(1087, "note"), (1088, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_too_few_open_files_are_a_note(
    soft: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert verdict(open_files()) == expected


def test_a_folder_needs_room_and_may_have_to_be_made(tmp_path: Path) -> None:
    assert verdict(folder("x", tmp_path / "a" / "b", 1)) == "ok"
    assert not (tmp_path / "a").exists()
    finding = folder("x", tmp_path, 1 << 40)
    assert verdict(finding) == "fault"
    assert "MiB free" in finding.found


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, ["ok", "ok"]),
        ({"cuda": "12.8"}, ["note", "ok"]),
        ({"cpu_kernels": "none"}, ["ok", "note"]),
        ({"cuda": "12.8", "gpus": ["X, 80 GiB"]}, ["ok", "fault"]),
        ({"cuda": "12.8", "gpus": ["X, 80 GiB"], "triton": "3.7"}, ["ok", "ok"]),
    ],
)
def test_what_torch_says_is_judged(report: dict[str, Any], expected: list[str]) -> None:
    assert [verdict(finding) for finding in read_device(CPU | report)] == expected


def test_torch_that_does_not_load_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (finding,) = checks.device()
    assert (verdict(finding), finding.found) == ("fault", "exit status 1")


def test_all_is_looked_at_with_the_options_of_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "device", list)
    typed = {"port": "0", "host_kv_mib": "1", "disk_kv_mib": "1", "disk_kv_folder": str(tmp_path)}
    values = resolve("serve", SERVE_SETTINGS, typed=typed, environment={})
    found = list(findings(read_serve_options(values, {}), {"XDG_CACHE_HOME": str(tmp_path)}))
    assert [finding.what for finding in found] == [
        *("versions", "packages", "model", "port", "limits", "disk, cache", "disk, KV on disk"),
    ]
    assert [finding.verdict for finding in found if finding.what != "limits"] == ["ok"] * 6


def test_a_finding_is_a_line_and_its_advice_another() -> None:
    fault = Finding(what="port", verdict="fault", found="taken\x1b", advice="take another")
    assert lines(fault, colour=False) == ["fault: port: taken\ufffd", "  take another"]
    assert lines(fault, colour=True)[0].startswith("\x1b[31mfault")
