"""Each attack of ``benchmarks.attacks`` beside a tenant that behaves: it notices little of it.

Bounded in time and count, loopback only. A turn of the neighbour ends, a health check is answered,
and the server holds no more than its configured bounds. What the neighbour waits for is told in CPU
time of the server, since that tells work that goes before its own from a machine that does not let
the server run; both bars are far above what is measured. By the clock each answer has
``ANSWERED_S``. ``KEEPWARM_ATTACK_SECONDS`` sets how long each attack lasts.

The server's event loop is watched (``tests.support.watched_server``): no callback takes longer
than ``HELD_S`` of CPU time. That is five times what other tests allow, since the machine is shared:
the attacker computes on the same cores, which costs CPU time too. With ``KEEPWARM_WATCH_LOOP=0``
nobody watches.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.attacks import ATTACKS
from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tests.support.stolen_time import watched_cores
from tests.support.watched_server import MOST_S, long_callbacks
from tools_api.limits import DEFAULT_LIMITS, MIB

SECONDS = float(os.environ.get("KEEPWARM_ATTACK_SECONDS", "1.5"))
ANSWERED_S = 60.0
HEALTH_CPU_S, TURN_CPU_S = 2.0, 5.0
HELD_S = 5 * MOST_S
WATCHED = os.environ.get("KEEPWARM_WATCH_LOOP", "1") != "0"
VICTIM, HOSTILE = "victim-" + "v" * 32, "hostile-" + "h" * 32
KEYS = [
    ApiKey.of(VICTIM, tenant="victim", name="victim"),
    ApiKey.of(HOSTILE, tenant="hostile", name="hostile"),
    ApiKey.of("boss-" + "b" * 32, tenant="ops", name="boss", role=Role.OPERATOR),
]


@dataclass
class Seen:
    """What the server worked while the neighbour waited."""

    turn_cpu_s: list[float]
    """For a turn, all processes."""
    health_cpu_s: list[float]
    """For a health check, the one that answers it."""


@pytest.fixture(scope="module")
def loop_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that the server writes its long callbacks to."""
    report = tmp_path_factory.mktemp("loop") / "long_callbacks.jsonl"
    report.touch()
    with watched_cores(report):
        yield report


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, loop_report: Path) -> Iterator[ChildServer]:
    folder = tmp_path_factory.mktemp("hostile")
    keys = folder / "tenants.toml"
    keys.write_text("".join(map(key_row, KEYS)))
    keys.chmod(0o600)
    options = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOP_WATCH_REPORT", str(loop_report))
        with child_server(
            [*options, "--tenants-file", str(keys)],
            log=folder / "log",
            module="tests.support.watched_server" if WATCHED else None,
        ) as serving:
            yield serving
    told = (folder / "log").read_text()
    assert "Traceback" not in told, f"something was answered with an internal error: {told[-4000:]}"


def cpu_s(process: psutil.Process) -> float:
    """What it has computed so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def tree_cpu_s(process: psutil.Process) -> float:
    """What it and its children have computed so far; those that ended count no more."""
    total = cpu_s(process)
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += cpu_s(child)
    return total


def neighbour(server: ChildServer, until: float) -> Seen:
    """Turns and health checks, one after the other, until the time is over; each on a socket of
    its own, since one that is kept and silent may be cut like any other."""
    seen = Seen([], [])
    process = psutil.Process(server.process.pid)
    root = server.url.removesuffix("/v1")
    own = {"Authorization": f"Bearer {VICTIM}"}
    while not seen.turn_cpu_s or time.monotonic() < until:
        before = cpu_s(process)
        assert httpx.get(root + "/healthz", timeout=ANSWERED_S).status_code == 200
        seen.health_cpu_s.append(cpu_s(process) - before)
        before = tree_cpu_s(process)
        body = {"input": "hello", "max_output_tokens": 4}
        answer = httpx.post(server.url + "/responses", json=body, headers=own, timeout=ANSWERED_S)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] in ("completed", "incomplete")
        seen.turn_cpu_s.append(tree_cpu_s(process) - before)
    return seen


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_a_neighbour_goes_on_beside(attack: str, server: ChildServer, loop_report: Path) -> None:
    process = psutil.Process(server.process.pid)
    resident, reported = process.memory_info().rss, loop_report.stat().st_size
    command = [sys.executable, "-m", "benchmarks.attacks", attack, "--url", server.url]
    command += ["--key", HOSTILE, "--seconds", str(SECONDS), "--connections", "32"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        try:
            assert attacker.stdout is not None
            assert json.loads(attacker.stdout.readline()) == {"begun": attack}
            seen = neighbour(server, time.monotonic() + SECONDS)
            told = json.loads(attacker.stdout.read())
        finally:
            attacker.kill()
    assert told["done"], "the attack did nothing"
    assert server.process.poll() is None
    assert statistics.median(seen.turn_cpu_s) < TURN_CPU_S, (attack, seen.turn_cpu_s, told)
    assert max(seen.health_cpu_s) < HEALTH_CPU_S, (attack, seen.health_cpu_s, told)
    grown = process.memory_info().rss - resident
    assert grown < DEFAULT_LIMITS.max_held_per_tenant + 256 * MIB, (attack, told)
    held = long_callbacks(loop_report, reported, HELD_S)
    assert not held


def test_afterwards_the_server_is_ready(server: ChildServer) -> None:
    root = server.url.removesuffix("/v1")
    assert httpx.get(root + "/readyz", timeout=30).status_code == 200
    neighbour(server, 0.0)
    assert Path(f"/proc/{server.process.pid}").exists()
