"""A head of our own is on a private address, and is known by its command line alone."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import ray_head
from cluster.ray_head import RayHead, RayHeadError, find, prepare, private_address


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.3", "192.168.1.9", "::1", "fd00::1"])
def test_private_addresses_may_be_listened_on(text: str) -> None:
    assert private_address(text) == text


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "8.8.8.8", "2606:4700::1", "host", ""])
def test_others_may_not(text: str) -> None:
    with pytest.raises(RayHeadError):
        private_address(text)


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "other")
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")


@pytest.mark.usefixtures("_environment")
def test_ray_asks_for_a_token_that_its_user_alone_can_read(tmp_path: Path) -> None:
    prepare(tmp_path, "10.0.0.1")
    token = tmp_path / "ray.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"
    before = token.read_text()
    prepare(tmp_path, "127.0.0.1")
    assert token.read_text() == before
    assert len(before) == 64
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_a_head_is_found_while_it_runs_and_no_other_process_is_taken_for_it(tmp_path: Path) -> None:
    temp = tmp_path / "kw-ray-x"
    program = "import time; print(flush=True); time.sleep(60)"
    words = [sys.executable, "-c", program, f"--temp-dir={temp}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told = {"address": "127.0.0.1:6379", "process": process.pid, "temp": str(temp)}
        (tmp_path / "ray.json").write_text(json.dumps(told))
        head = find(tmp_path)
        assert head == RayHead(address="127.0.0.1:6379", process=process.pid, temp=temp)
        assert head.host == "127.0.0.1"
        (tmp_path / "ray.json").write_text(json.dumps(told | {"temp": "/tmp/kw-ray-y"}))
        assert find(tmp_path) is None
        (tmp_path / "ray.json").write_text(json.dumps(told))
        ray_head.end(head, tmp_path)
        assert process.wait(20) != 0
    assert find(tmp_path) is None
    assert not (tmp_path / "ray.json").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"address": "a", "process": "x", "temp": "y"}'])
def test_a_file_that_is_another_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ray.json").write_text(text)
    assert find(tmp_path) is None
