"""A client's script, run to its end in its own environment."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import Environment, NotToBeHad, environment
from tests.clients.table import Agent, Client

KEPT = ("HOME", "LANG", "PATH", "TMPDIR")
"""What a script gets of our own environment: no keys, no proxies, no import paths."""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "ANONYMIZED_TELEMETRY": "False"}
"""LiteLLM fetches a list of prices when it is imported; this one ships with it."""


def kept() -> dict[str, str]:
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def made(client: Client | Agent) -> Environment:
    """Its environment; where it cannot be had its tests are skipped."""
    try:
        return environment(client)
    except NotToBeHad as reason:
        pytest.skip(f"{client.heading}: {reason}")


def run(where: Environment, script: Path, *arguments: str) -> str:
    """Run a script to its end; what it printed."""
    done = subprocess.run(
        [where.interpreter, script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=kept() | OFFLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
