"""Whether this process still has file descriptors, and the one log line when it has not.

Without one no client is accepted, no child is started and nothing is read from disk, and the
event loop says nothing of it by itself. So it is tried, once a second.
"""

import errno
import logging
import os
from collections.abc import Callable

log = logging.getLogger(__name__)

SAY_EVERY_S = 60.0


class DescriptorWatch:
    """Says it when descriptors have run out, and again every ``SAY_EVERY_S`` while they have."""

    def __init__(
        self, clock: Callable[[], float], take: Callable[[], int] = lambda: os.dup(2)
    ) -> None:
        """``take`` opens a descriptor that means nothing."""
        self._clock = clock
        self._take = take
        self._said_at: float | None = None

    @property
    def trouble(self) -> str | None:
        """There is none left; None: there was when it was looked for last."""
        return None if self._said_at is None else "file descriptors have run out"

    def tick(self) -> None:
        """Look whether there is one left."""
        try:
            os.close(self._take())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            now = self._clock()
            if self._said_at is None or now - self._said_at >= SAY_EVERY_S:
                self._said_at = now
                log.error(
                    "file descriptors have run out, nobody is accepted; raise the limit "
                    "(ulimit -n) reason=%r",
                    error.strerror,
                )
        else:
            self._said_at = None
