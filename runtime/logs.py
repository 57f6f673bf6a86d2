"""Log lines on their way out: who reads them slowly, or not at all, stops nobody.

Lines go into a bounded queue, and a thread of its own writes them to a descriptor. What does not
fit is counted, and said in a line as soon as there is room again.

Always true: logging never waits for the reader; lines come out in the order in which they went in.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable

from runtime.log_lines import JsonLines, LogFormat, TextLines

QUEUE_LINES = 4096
CLOSE_TIMEOUT_S = 1.0


class QueuedLines(logging.Handler):
    """A handler that hands formatted lines to a thread."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        capacity: int = QUEUE_LINES,
    ) -> None:
        """
        Args:
            write: takes all the bytes of a line, and may take as long as it likes.
            capacity: lines that may wait.
        """
        super().__init__()
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(capacity)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        self._thread.start()

    @property
    def num_queued(self) -> int:
        """Lines that wait to be written."""
        return self._lines.qsize()

    @property
    def num_dropped(self) -> int:
        """Lines lost since the last one that told of lost ones."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it as lost."""
        try:
            line = self.format(record)
            if self._dropped:
                self._lines.put_nowait(self.format(_lost(self._dropped)))
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write what is queued, for a second at most."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
            self._thread.join(CLOSE_TIMEOUT_S)
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError):  # the reader is gone
                self._write((line + "\n").encode(errors="backslashreplace"))


def log_to_stderr(level: str, format: LogFormat, *, process: str = "server") -> None:
    """Send what is logged to standard error, by way of a queue. ``logging.shutdown``, which runs at
    the end of a program, writes what is left in it.

    Args:
        process: which one of ours this is; lines of others than the server say so.
    """
    handler = QueuedLines(_write_to(2))
    which = "" if process == "server" else f" {process}"
    text = TextLines(f"%(asctime)s{which} %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines(process) if format == "json" else text)
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _lost(lines: int) -> logging.LogRecord:
    text = "%d log lines were lost: nobody read them in time"
    record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (lines,), None)
    record.fields = {"lost": lines}
    return record


def _write_to(descriptor: int) -> Callable[[bytes], object]:
    """Past ``sys.stderr``, whose lock a writer that waits would hold at the program's end."""

    def write(line: bytes) -> None:
        while line:
            line = line[os.write(descriptor, line) :]

    return write
