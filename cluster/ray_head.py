"""Ray for a cluster's replicas: starting a head of our own on one address, finding it, ending it.

Whoever reaches Ray's ports runs code: it listens on a private address, asks for a token that is in
a file of its user's, and has no dashboard. It goes on when whoever started it ends, and is found
again by its file.

Always true: a process is ended only where its command line says that it is ours.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

START_S = 60.0
STOP_S = 30.0
OBJECT_BYTES = 100_000_000
"""Ray's store of objects: nothing of ours is put into it."""
_FILE, _TOKEN, _LOG = "ray.json", "ray.token", "ray.log"


class RayHeadError(Exception):
    """Ray cannot be had. The message is one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    """A Ray head that runs."""

    address: str
    """The head's address, ``HOST:PORT``."""
    process: int
    temp: Path
    """Ray's own folder; its sockets lie there, so its path is short."""

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0].strip("[]")


def private_address(text: str) -> str:
    """The address, if it is one of a private network.

    Raises:
        RayHeadError: it is none.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise RayHeadError(f"{text!r} is no address") from error
    if address.is_unspecified or not (address.is_private or address.is_loopback):
        raise RayHeadError(
            f"{text} is not of a private network: whoever reaches Ray's ports runs code there"
        )
    return str(address)


def prepare(folder: Path, host: str) -> None:
    """Have Ray ask for the token of this folder, here and in children, and listen on loopback where
    ``host`` is; the token is made where there is none. Before ray is imported."""
    file = folder / _TOKEN
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as made:
            made.write(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    os.environ.pop("RAY_AUTH_TOKEN", None)
    if ipaddress.ip_address(host).is_loopback:
        # Else Ray takes another address of this machine in its place, and listens on all of them.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def find(folder: Path) -> RayHead | None:
    """The head that was started from this folder and runs still."""
    try:
        told = json.loads((folder / _FILE).read_text())
        head = RayHead(
            address=str(told["address"]), process=int(told["process"]), temp=Path(told["temp"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return head if _is_ours(head) else None


def start(folder: Path, host: str) -> RayHead:
    """Start a head, which outlives this process.

    Args:
        folder: takes its file, its token and its log; nobody else may read it.
        host: an address of this machine.

    Raises:
        RayHeadError: it did not start; the message is its last line.
    """
    prepare(folder, host)
    port, *other = _free_ports(host, 5)
    temp = Path(tempfile.mkdtemp(prefix="kw-ray-"))
    words = [
        *("--head", "--block", "--disable-usage-stats", "--include-dashboard=false"),
        *(f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={temp}"),
        f"--object-store-memory={OBJECT_BYTES}",
        *(f"--ray-client-server-port={other[0]}", f"--dashboard-agent-listen-port={other[1]}"),
        *(f"--dashboard-agent-grpc-port={other[2]}", f"--metrics-export-port={other[3]}"),
    ]
    log = folder / _LOG
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # a signal to this one's group is none to it
        )
    head = RayHead(address=f"{_in_url(host)}:{port}", process=process.pid, temp=temp)
    told = {"address": head.address, "process": head.process, "temp": str(temp)}
    (folder / _FILE).write_text(json.dumps(told))
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise RayHeadError(f"Ray did not start: {lines[-1].strip()} (see {log})")
        if _listens(host, port) and "Ray runtime started" in log.read_text(errors="replace"):
            return head
        time.sleep(0.1)
    process.terminate()
    raise RayHeadError(f"Ray did not start within {START_S:g} s (see {log})")


def end(head: RayHead, folder: Path) -> None:
    """End a head of ours, and whatever it runs."""
    if not _is_ours(head):
        return
    os.kill(head.process, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while _is_ours(head) and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(head.process, os.WNOHANG)  # where this one started it
        time.sleep(0.05)
    if _is_ours(head):
        os.kill(head.process, signal.SIGKILL)
    shutil.rmtree(head.temp, ignore_errors=True)
    (folder / _FILE).unlink(missing_ok=True)


def _is_ours(head: RayHead) -> bool:
    try:
        line = Path(f"/proc/{head.process}/cmdline").read_bytes()
        state = Path(f"/proc/{head.process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and f"--temp-dir={head.temp}".encode() in line.split(b"\0")


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _free_ports(host: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        bound = [
            stack.enter_context(socket.create_server((host, 0), family=family))
            for _ in range(count)
        ]
        return [int(each.getsockname()[1]) for each in bound]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
