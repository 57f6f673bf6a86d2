"""A model by its name: fetched once, served at its commit, also where there is no network."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from tests.support.architecture import ROOT
from tests.support.fake_hub import COMMIT, FakeHub, running
from tests.support.hf_models import make_model, save

TOKEN = "hf_" + "t" * 34
NAME = "somebody/small"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save(make_model("qwen3"), tmp_path_factory.mktemp("model"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    with running(FakeHub({**files, "pytorch_model.bin": b"a pickle"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        # The cache is empty, and nobody waits for kernels to be compiled.
        monkeypatch.setenv("KEEPWARM_NATIVE", "0")
        yield hub


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keepwarm", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def ask(url: str, model: str) -> dict[str, object]:
    request = {"model": model, "input": "hello", "max_output_tokens": 8}
    answer = httpx.post(f"{url}/responses", json=request, timeout=60)
    assert answer.status_code == 200, answer.text
    told: dict[str, object] = answer.json()
    return told


def test_a_fetched_model_is_served_by_its_name_without_a_network(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = typed("pull", NAME)
    assert done.returncode == 0, done.stderr
    pinned, folder = done.stdout.split()
    assert pinned == f"hub:{NAME}@{COMMIT}"
    assert "pytorch_model.bin" not in [path.name for path in Path(folder).iterdir()]
    asked = list(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    doctor = typed("doctor", "--model", f"hub:{NAME}", "--port", "0")
    assert f"ok: model: hub:{NAME}" in doctor.stdout
    options = ["--model", f"hub:{NAME}", "--kv-cache-mib", "64", "--threads", "1"]
    with child_server(options, log=tmp_path / "log") as server:
        assert pinned in server.ready_line
        for model in (NAME, f"hub:{NAME}", pinned, "default"):
            assert ask(server.url, model)["model"] == model
        listed = httpx.get(f"{server.url}/models", timeout=60).json()["data"]
        assert NAME in [model["id"] for model in listed]
    assert hub.asked == asked


def test_a_server_fetches_what_is_not_here_and_a_newer_commit_only_when_told(
    hub: FakeHub, tmp_path: Path
) -> None:
    options = ["--model", f"hub:{NAME}", "--kv-cache-mib", "64", "--threads", "1"]
    with child_server(options, log=tmp_path / "log") as server:
        assert f"@{COMMIT}" in server.ready_line
    newer = COMMIT[::-1]
    hub.revisions |= {"main": newer, newer: newer}
    asked = list(hub.asked)
    with child_server(options, log=tmp_path / "log") as server:
        assert f"@{COMMIT}" in server.ready_line
    assert hub.asked == asked
    assert newer in typed("pull", NAME).stdout


@pytest.mark.parametrize("command", ["pull", "serve"])
def test_what_cannot_be_fetched_is_told_in_one_line(hub: FakeHub, command: str) -> None:
    words = ["pull", "somebody/else"]
    if command == "serve":
        words = ["serve", "--model", "hub:somebody/else", "--port", "0", "--journal", ":memory:"]
    done = typed(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("keepwarm: error: hub:somebody/else@main: the hub has no such")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_doctor_fetches_nothing_and_says_what_does(hub: FakeHub) -> None:
    done = typed("doctor", "--model", f"hub:{NAME}", "--port", "0")
    assert done.returncode == 1
    assert f"keepwarm pull {NAME}@main fetches it" in done.stdout
    assert not hub.asked
