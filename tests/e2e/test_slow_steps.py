"""A served engine one of whose steps hangs for a while: what it costs to wait once is not what
later turns are refused for."""

from pathlib import Path

import pytest

from keepwarm.demo.child_server import child_server
from tests.e2e.conftest import OPTIONS
from tools_api.sdk.sync_client import Client

PATCH = """
import itertools, time
from runtime.model.runner import ModelRunner
forward, steps = ModelRunner.forward, itertools.count()

def slow(self, *arguments):
    if next(steps) == {step}:
        time.sleep(1.5)
    return forward(self, *arguments)

ModelRunner.forward = slow
"""
"""Run by the engine's process before anything else, by way of Python's ``sitecustomize``."""


@pytest.mark.parametrize(
    ("step", "profile_ms"), [(0, 0), pytest.param(2, 0, marks=pytest.mark.slow), (1, 250)]
)
def test_an_idle_server_refuses_nothing_after_a_slow_step(
    step: int, profile_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 1.5 s among the first (of 1 ms), or among those timed at the start; the first token
    may take one second."""
    (tmp_path / "sitecustomize.py").write_text(PATCH.format(step=step))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = [
        *OPTIONS,
        *("--first-token-limit-s", "1"),
        *("--startup-profile-ms", str(profile_ms), "--startup-profile-folder", ""),
    ]
    with (
        child_server(options, log=tmp_path / "server.log") as serving,
        Client(serving.url) as client,
    ):
        for letters in (10, 10, 1300, 8000):
            prompt = "a" * letters
            answer = client.session().respond(prompt, max_output_tokens=4, temperature=0.0)
            assert answer.usage.output_tokens == 4  # a draw might end it before
            assert answer.usage.input_tokens > letters
