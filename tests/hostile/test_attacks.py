"""Each attack of ``benchmarks.attacks`` beside a tenant that behaves: it notices little of it.

Bounded in time and count, loopback only. The bars are for a busy machine, far above what is
measured on a quiet one: a turn of the neighbour ends, a health check is answered, and the server
holds no more than its configured bounds. ``KEEPWARM_ATTACK_SECONDS`` sets how long each lasts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.attacks import ATTACKS
from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tools_api.limits import DEFAULT_LIMITS, MIB

SECONDS = float(os.environ.get("KEEPWARM_ATTACK_SECONDS", "1.5"))
VICTIM, HOSTILE = "victim-" + "v" * 32, "hostile-" + "h" * 32
KEYS = [
    ApiKey.of(VICTIM, tenant="victim", name="victim"),
    ApiKey.of(HOSTILE, tenant="hostile", name="hostile"),
    ApiKey.of("boss-" + "b" * 32, tenant="ops", name="boss", role=Role.OPERATOR),
]


@dataclass
class Seen:
    """What the neighbour and a health check saw."""

    turn_s: list[float]
    health_s: list[float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    folder = tmp_path_factory.mktemp("hostile")
    keys = folder / "tenants.toml"
    keys.write_text("".join(map(key_row, KEYS)))
    keys.chmod(0o600)
    options = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
    with child_server([*options, "--tenants-file", str(keys)], log=folder / "log") as serving:
        yield serving


def neighbour(server: ChildServer, until: float) -> Seen:
    """Turns and health checks, one after the other, until the time is over; each on a socket of
    its own, since one that is kept and silent may be cut like any other."""
    seen = Seen([], [])
    root = server.url.removesuffix("/v1")
    own = {"Authorization": f"Bearer {VICTIM}"}
    while not seen.turn_s or time.monotonic() < until:
        begun = time.monotonic()
        assert httpx.get(root + "/healthz", timeout=30).status_code == 200
        seen.health_s.append(time.monotonic() - begun)
        begun = time.monotonic()
        body = {"input": "hello", "max_output_tokens": 4}
        answer = httpx.post(server.url + "/responses", json=body, headers=own, timeout=30)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] in ("completed", "incomplete")
        seen.turn_s.append(time.monotonic() - begun)
    return seen


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_a_neighbour_goes_on_beside(attack: str, server: ChildServer) -> None:
    process = psutil.Process(server.process.pid)
    resident = process.memory_info().rss
    command = [sys.executable, "-m", "benchmarks.attacks", attack, "--url", server.url]
    command += ["--key", HOSTILE, "--seconds", str(SECONDS + 1), "--connections", "32"]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        seen = neighbour(server, time.monotonic() + SECONDS)
        out, _ = attacker.communicate(timeout=SECONDS + 60)
    finally:
        attacker.kill()
        attacker.wait()
    told = json.loads(out.splitlines()[-1])
    assert told["done"], "the attack did nothing"
    assert server.process.poll() is None
    assert statistics.median(seen.turn_s) < 5, (attack, seen.turn_s, told)
    assert max(seen.health_s) < 5, (attack, seen.health_s, told)
    grown = process.memory_info().rss - resident
    assert grown < DEFAULT_LIMITS.max_held_per_tenant + 256 * MIB, (attack, told)


def test_afterwards_the_server_is_ready(server: ChildServer) -> None:
    root = server.url.removesuffix("/v1")
    assert httpx.get(root + "/readyz", timeout=30).status_code == 200
    neighbour(server, 0.0)
    assert Path(f"/proc/{server.process.pid}").exists()
