"""A PostgreSQL server of a test's own, where Debian's is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql)"


@contextmanager
def postgres() -> Iterator[str]:
    """Its address; reached through a socket in its folder alone. It refuses to run as root."""
    assert PROGRAMS is not None
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-pg-", dir="/tmp"))
    command = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if command:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    options = f"-k {folder} -c listen_addresses= -c shared_buffers=16MB"
    start = [*command, f"{PROGRAMS}/pg_ctl", "-D", str(data), "-w", "-o", options]
    try:
        made = [*command, f"{PROGRAMS}/initdb", "-D", str(data), "-A", "trust", "-U", "keepwarm"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder)
        begin = [*start, "-l", str(folder / "log"), "start"]
        subprocess.run(begin, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        yield f"postgresql:///postgres?host={folder}&user=keepwarm"
    finally:
        stop = [*command, f"{PROGRAMS}/pg_ctl", "-D", str(data), "-m", "immediate", "stop"]
        subprocess.run(stop, check=False, capture_output=True, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)
