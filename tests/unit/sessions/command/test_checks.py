"""What a machine lacks is found, and comes with what to do about it."""

import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from runtime.config import EngineConfig
from sessions.command import checks
from sessions.command.checks import (
    findings,
    folder,
    journal,
    key_of_items,
    open_files,
    port,
    read_device,
)
from sessions.command.finding import Finding
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import resolve
from sessions.journal.sqlite import SqliteJournal

CPU = {
    "torch": "2.13.0+cpu",
    "cuda": None,
    "gpus": [],
    "threads": 2,
    "cpu_kernels": "cpu_kernels-1",
    "triton": None,
}


def options(**typed: str) -> ServeOptions:
    return read_serve_options(resolve("serve", SERVE_SETTINGS, typed=typed, environment={}), {})


def verdict(finding: Finding) -> str:
    assert bool(finding.advice) == (finding.verdict != "ok")
    return finding.verdict


def test_a_port_that_is_taken_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        finding = port("127.0.0.1", number)
        assert verdict(finding) == "fault"
        assert f"port {number}: Address already in use" in finding.found
    assert verdict(port("127.0.0.1", 0)) == "ok"
    assert verdict(port("host.invalid", 80)) == "fault"


@pytest.mark.parametrize(
    ("hard", "expected"), [(1631, "note"), (1632, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_too_few_open_files_are_a_note(
    hard: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server raises the soft limit itself."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
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
    (finding,) = checks.device(EngineConfig())
    assert (verdict(finding), finding.found) == ("fault", "exit status 1")


def test_all_is_looked_at_with_the_options_of_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "device", lambda _: [])
    typed = {"port": "0", "host_kv_mib": "1", "disk_kv_mib": "1", "disk_kv_folder": str(tmp_path)}
    typed["journal"] = str(tmp_path / "j")
    found = list(findings(options(**typed), {"XDG_CACHE_HOME": str(tmp_path)}))
    assert [finding.what for finding in found] == [
        *("versions", "packages", "model", "family", "context", "chat format", "port", "limits"),
        *("disk, cache", "disk, KV on disk", "journal"),
    ]
    assert [finding.verdict for finding in found if finding.what != "limits"] == ["ok"] * 10


def test_a_journal_is_opened_and_what_is_wrong_with_it_comes_with_a_way_out(
    tmp_path: Path,
) -> None:
    def found(place: Path | str, **more: str) -> Finding:
        *_, last = journal(options(journal=str(place), **more))
        assert last.what == "journal"
        return last

    assert verdict(found(":memory:")) == "ok"
    assert verdict(found(tmp_path / "j")) == "ok"
    held = SqliteJournal(tmp_path / "j", fingerprint=b"")
    assert verdict(found(tmp_path / "j")) == "fault"
    assert "another server's" in found(tmp_path / "j").found
    held.close()
    assert found(tmp_path / "j").found == f"{tmp_path / 'j'}: 0 sessions"
    broken = tmp_path / "a text"
    broken.write_text("hello" * 1000)
    assert verdict(found(broken)) == "fault"
    advice = found(broken).advice
    assert f"keepwarm sessions recover '{broken}' '{broken}'.saved" in advice
    assert verdict(found("postgresql://127.0.0.1:1/none")) == "fault"


def test_the_users_own_journal_needs_a_folder_that_can_be_made(tmp_path: Path) -> None:
    values = resolve("serve", SERVE_SETTINGS, typed={}, environment={})
    there = read_serve_options(values, {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert [verdict(finding) for finding in journal(there)] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []
    nowhere = read_serve_options(values, {"XDG_STATE_HOME": "/proc/nowhere"})
    assert [verdict(finding) for finding in journal(nowhere)] == ["fault"]


def test_a_key_of_compaction_items_has_to_be_one(tmp_path: Path) -> None:
    assert list(key_of_items(options().journal)) == []
    file = tmp_path / "key"
    for content, expected in ((b"k" * 32, "ok"), (b"short", "fault")):
        file.write_bytes(content)
        (finding,) = key_of_items(options(compaction_key=str(file)).journal)
        assert verdict(finding) == expected
        assert str(file) in finding.found
    file.unlink()
    os.mkfifo(file)  # what is in it can be read once, by the server
    assert list(key_of_items(options(compaction_key=str(file)).journal)) == []
