"""``keepwarm cluster balance``: HAProxy before the servers of a cluster, until told to stop.

Told to stop it ends HAProxy as well; killed it leaves HAProxy to the next one, which cuts nobody.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.balancing import Balancer
from cluster.haproxy import Haproxy, HaproxyError, find_program
from cluster.haproxy_socket import HaproxyGone
from cluster.rows import MemberRows
from cluster.targets import TargetsFile
from cluster.watch import Watch
from runtime.log_lines import LogFormat
from runtime.logs import log_to_stderr
from sessions.journal.ownership import DEAD_MS

log = logging.getLogger(__name__)

EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """A balance, completely described."""

    journal: str
    """The journal's address, ``postgresql://...``."""
    cluster: str
    bind: str
    certificate: Path | None
    haproxy: str | None
    """The program; None: the one that is found."""
    targets: Path | None
    """The file of members for Prometheus; None: there is none."""
    folder: Path
    """The user's folder for what outlives a program; the cluster's own lies in it."""
    log_level: str
    log_format: LogFormat


def run(options: BalanceOptions, say: Callable[[str], None]) -> int:
    """Balance until told to stop; returns the exit status.

    Args:
        say: gets a line when HAProxy carries, or another balance does.

    Raises:
        HaproxyError: HAProxy is not there, too old, or does not start.
        JournalError: the database cannot be opened for a reason that waiting does not change.
    """
    log_to_stderr(options.log_level, options.log_format)
    program = find_program(options.haproxy)
    stopping, look = threading.Event(), threading.Event()

    def stop(number: int, frame: object) -> None:
        stopping.set()
        look.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    folder = options.folder / "cluster" / options.cluster
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    carrier = Haproxy(program, folder, bind=options.bind, certificate=options.certificate)
    rows = MemberRows(options.journal, options.cluster, look.set)
    balancer = Balancer(
        rows=rows,
        carrier=carrier,
        watch=Watch(DEAD_MS / 1000),
        homes_file=folder / "homes",
        clock=time.monotonic,
        targets=None if options.targets is None else TargetsFile(options.targets, options.cluster),
    )
    try:
        _rounds(options, balancer, say, stopping, look)
        if balancer.carries:
            _save(balancer)
            carrier.end()
    finally:
        rows.close()
    return 0


def _rounds(
    options: BalanceOptions,
    balancer: Balancer,
    say: Callable[[str], None],
    stopping: threading.Event,
    look: threading.Event,
) -> None:
    said: str | None = None
    while not stopping.is_set():
        try:
            balancer.round()
        except HaproxyError as error:
            if said is None:
                raise
            log.error("%s", error)  # it ran before: what took its place may go
        line = said
        if balancer.waits:
            line = f"keepwarm cluster {options.cluster}: another balance is at work, waiting"
        elif balancer.carries:
            scheme = "http" if options.certificate is None else "https"
            line = f"keepwarm cluster {options.cluster} ready at {scheme}://{options.bind}/v1"
        if line is not None and line != said:
            say(line)
        said = line
        look.wait(EVERY_S)
        look.clear()


def _save(balancer: Balancer) -> None:
    try:
        balancer.save_homes()
    except HaproxyGone as error:
        log.warning("the homes of sessions are not saved reason=%s", error)
