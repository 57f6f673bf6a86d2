"""``keepwarm serve`` as a child process on a free loopback port.

Always true: outside the ``with`` block the child is gone.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class ServerDidNotStart(Exception):
    """The child ended, or took too long, before it was ready. The message holds its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildServer:
    url: str
    """Base URL as clients take it, ``http://127.0.0.1:PORT/v1``."""
    ready_line: str
    """The one line that the server printed: address, model, device, KV capacity."""
    process: subprocess.Popen[str]


@contextmanager
def child_server(
    options: Sequence[str],
    *,
    log: Path,
    start_timeout_s: float = 120.0,
    checkout: Path | None = None,
    module: str | None = None,
) -> Iterator[ChildServer]:
    """Serve with ``options`` until the block ends.

    Args:
        options: of ``keepwarm serve``, without ``--port``.
        log: file that takes the child's log lines.
        checkout: folder whose code is served instead of this one's.
        module: takes the place of ``keepwarm``, with the same options and ready line.

    Raises:
        ServerDidNotStart: no ready line within ``start_timeout_s``.
    """
    command = [sys.executable, "-m", module or _entry(checkout), "serve", "--port", "0", *options]
    environment = _environment()
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout)
    with (
        log.open("w") as log_file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            cwd=checkout,
            env=environment,
        ) as process,
    ):
        try:
            line = _first_line(process, start_timeout_s)
            address = re.search(r"(?:ws|http)://([\w.\[\]:]+)", line)
            if address is None:
                raise ServerDidNotStart(f"{' '.join(command)}: {line!r}\n{log.read_text()}")
            yield ChildServer(url=f"http://{address[1]}/v1", ready_line=line, process=process)
        finally:
            _stop(process)


def _environment() -> dict[str, str]:
    """The environment of this process, without what would be options of the server: ``options`` are
    all."""
    kept = ("KEEPWARM_KERNELS", "KEEPWARM_NATIVE")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KEEPWARM_") or name in kept
    } | {"KEEPWARM_CONFIG": "", "KEEPWARM_JOURNAL": ":memory:"}


def _entry(checkout: Path | None) -> str:
    """The module that serves; before there was a package ``keepwarm`` it was another one."""
    older = checkout is not None and not (checkout / "keepwarm/__main__.py").is_file()
    return "sessions.cli" if older else "keepwarm"


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str:
    """The child's first line; empty if it ended before, or was ended for taking too long."""
    assert process.stdout is not None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()


def _stop(process: subprocess.Popen[str], patience_s: float = 15.0) -> None:
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
