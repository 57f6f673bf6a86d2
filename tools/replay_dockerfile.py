"""The steps of a Dockerfile in plain folders, where no container tool or registry is at hand.

    debootstrap --variant=minbase bookworm BASE
    python -m tools.replay_dockerfile BASE WORK [--file Dockerfile.gpu] [--bind PATH] [--pass NAME]

BASE stands for the image that the file begins with: the same Debian, made by debootstrap, so not
the very bytes of ``debian:12-slim``. Each stage is a copy of it under WORK, each RUN a chroot. Then
the server is started as the image would start it (user, environment, command), its health check has
to pass, a turn has to work, and SIGTERM has to end it with status 0. Needs root, ``chroot`` and
``unshare``; changes nothing outside WORK. Layers, networks and limits of containers are not
replayed.

A file for GPUs is played with the torch of a CPU (``PIP_OPTIONS`` names its index), so that its
server runs on that. ``--bind`` shows a folder of this machine in the stages and ``--pass`` a
variable, both as often as needed: a package index that lies here. What the file says in other words
than those below is an error, not skipped.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "debian:12-slim"
"""The image that BASE stands for: the files' default."""
HEALTHY_S = 300.0
KEY = "a-key-for-the-replay"
_WITHOUT_EFFECT = {"EXPOSE", "STOPSIGNAL", "VOLUME"}
_BINDS = ("/dev", "/etc/resolv.conf")


@dataclass(slots=True, kw_only=True)
class Stage:
    """A root folder and how programs are started in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def chroot(self, command: Sequence[str]) -> list[str]:
        """``command`` as it would run in a container of this stage."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        user = f"--userspec={self.user}:{self.user}"
        return ["chroot", user, str(self.root), "/usr/bin/env", "-i", *variables, *command]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The words and the rest of every instruction of a Dockerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), " ".join(rest.split())


def copied(context: Path) -> list[str]:
    """The names at the top of the context that ``.dockerignore`` lets through."""
    lines = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    if rules[0] != "*" or any(not r.startswith("!") and r != "**/__pycache__" for r in rules[1:]):
        raise SystemExit(".dockerignore: only '*', then '!NAME' lines are understood here")
    return [rule[1:] for rule in rules if rule.startswith("!")]


class Replay:
    """Carries out a file's instructions; ``stage`` is the last one's."""

    def __init__(
        self, base: Path, work: Path, *, binds: Sequence[str], passed: Mapping[str, str]
    ) -> None:
        self._base = base
        self._work = work
        self._binds = [*_BINDS, *binds]
        self._passed = passed
        self._named: dict[str, Stage] = {}
        self._arguments: dict[str, str] = {}
        """Those above the first stage."""
        self.stage = Stage(root=base)

    def carry_out(self, word: str, rest: str) -> None:
        """Do what an instruction says, aloud.

        Raises:
            SystemExit: it is not understood, or its command failed.
        """
        print(f"{word} {rest}", flush=True)
        if word in _WITHOUT_EFFECT:
            return
        step = getattr(self, f"_{word.lower()}", None)
        if step is None:
            raise SystemExit(f"{word} is not understood here")
        step(rest)

    def _from(self, rest: str) -> None:
        image, _, name = rest.partition(" AS ")
        for argument, value in self._arguments.items():
            image = image.replace(f"${{{argument}}}", value)
        if image != IMAGE:
            raise SystemExit(f"{image} is not the image that BASE stands for")
        root = self._work / (name or "final")
        subprocess.run(["cp", "-a", "--reflink=auto", self._base, root], check=True)
        self.stage = Stage(root=root, environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        self._named[name or "final"] = self.stage
        subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
        for path in self._binds:
            self._show(Path(path), root / path.lstrip("/"))

    def _show(self, path: Path, inside: Path) -> None:
        inside.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            inside.mkdir(exist_ok=True)
        else:
            inside.touch()
        subprocess.run(["mount", "--rbind", path, inside], check=True)

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        if not self._named:
            self._arguments[name] = default.strip('"')
        else:
            self.stage.environment[name] = os.environ.get(name, default.strip('"'))

    def _env(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.stage.environment[name] = value

    def _user(self, rest: str) -> None:
        self.stage.user = rest

    def _run(self, rest: str) -> None:
        extra = [f"{name}={value}" for name, value in self._passed.items()]
        shell = ["/usr/bin/env", *extra, "/bin/sh", "-c", rest]
        done = subprocess.run(self.stage.chroot(shell), check=False)
        if done.returncode != 0:
            raise SystemExit(f"RUN ended with status {done.returncode}")

    def _copy(self, rest: str) -> None:
        *flags, source, target = rest.split()
        inside = self.stage.root / target.lstrip("/")
        if flags:
            stage = self._named[flags[0].removeprefix("--from=")]
            shutil.copytree(stage.root / source.lstrip("/"), inside, symlinks=True)
            return
        inside.mkdir(parents=True)
        for name in copied(ROOT):
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, inside / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, inside / name)

    def _healthcheck(self, rest: str) -> None:
        self.stage.health = json.loads(rest.partition("CMD ")[2])

    def _entrypoint(self, rest: str) -> None:
        self.stage.entrypoint = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self.stage.command = json.loads(rest)


def serve(stage: Stage) -> None:
    """Start the image's command, wait until it is healthy, play a turn, stop it.

    Raises:
        SystemExit: one of those did not go as it should.
    """
    unhealthy = subprocess.run(stage.chroot(stage.health), capture_output=True, check=False)
    if unhealthy.returncode == 0:
        raise SystemExit("the health check passes where no server is: is the port in use?")
    command = stage.chroot([*stage.entrypoint, *stage.command])
    keyless = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    print(f"without a key: status {keyless.returncode}, {keyless.stderr.strip().splitlines()[-1]}")
    stage.environment["KEEPWARM_API_KEY"] = KEY
    with subprocess.Popen(stage.chroot([*stage.entrypoint, *stage.command])) as server:
        try:
            _wait_for_health(stage, server)
            print(f"healthy; a turn says {_turn()!r}")
        finally:
            server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    print(f"ended with status {status}")
    if status != 0 or keyless.returncode == 0:
        raise SystemExit(1)


def _wait_for_health(stage: Stage, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + HEALTHY_S
    while subprocess.run(stage.chroot(stage.health), capture_output=True, check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the server did not become healthy")
        time.sleep(1)


def _turn() -> str:
    body = json.dumps({"model": "default", "input": "Hello", "max_output_tokens": 16}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request("http://127.0.0.1:8080/v1/responses", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        response = json.load(answer)
    return "".join(
        part["text"]
        for item in response["output"]
        for part in item.get("content", ())
        if part["type"] == "output_text"
    )


def main() -> None:
    """Entry point; begins anew in mounts of its own, which go when it ends."""
    parser = argparse.ArgumentParser(description="Replay the Dockerfile's steps in folders.")
    parser.add_argument("base", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--file", default="Dockerfile", help="in the folder of the source")
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--pass", action="append", default=[], dest="passed")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        again = [sys.executable, "-m", "tools.replay_dockerfile", *sys.argv[1:], "--inside"]
        print(shlex.join(again), flush=True)
        os.execvp("unshare", ["unshare", "--mount", *again])
    arguments.work.mkdir(parents=True)
    passed = {name: os.environ[name] for name in arguments.passed if name in os.environ}
    replay = Replay(arguments.base, arguments.work, binds=arguments.bind, passed=passed)
    for word, rest in instructions((ROOT / arguments.file).read_text(encoding="utf-8")):
        replay.carry_out(word, rest)
    serve(replay.stage)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
