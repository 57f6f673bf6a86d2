"""The command ``keepwarm`` for tests of servers that are stopped, or whose journal is.

Where there is a file ``$STOP_FOLDER/PID`` the server of that process stops itself (``SIGSTOP``)
inside its next transaction that writes a turn, with all of its locks held. ``PATIENCE_S`` is how
long it waits for a journal that is out of reach, and for another server's session; for the end of
a turn that runs there it does not wait.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sessions.journal.batch import Batch


def main() -> int:
    """Serve as ``keepwarm`` does."""
    from keepwarm.__main__ import main as keepwarm
    from sessions.journal import file_connections, postgres, writer
    from sessions.wire import journal_desk

    patience_s = float(os.environ["PATIENCE_S"])
    writer.GIVE_UP_S = journal_desk.GIVE_UP_S = journal_desk.CLAIM_WAIT_S = patience_s
    journal_desk.ELSEWHERE_S = 0.0
    file_connections.BUSY_S = min(file_connections.BUSY_S, patience_s / 4)
    postgres.IDLE_IN_TRANSACTION_MS = 1000
    flag = Path(os.environ["STOP_FOLDER"]) / str(os.getpid())
    insert = Batch.insert

    def stopping(batch: Batch, *arguments: Any, **options: Any) -> None:
        insert(batch, *arguments, **options)
        if flag.exists():
            flag.unlink()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # before it goes on

    Batch.insert = stopping  # type: ignore[method-assign]
    return keepwarm(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
