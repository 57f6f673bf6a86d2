"""The last words of an engine's process, said once whichever of its threads ends it."""

import logging
import threading

log = logging.getLogger(__name__)


class LastWords:
    """Says why a process ends: where two threads find it out at once, one of them."""

    def __init__(self) -> None:
        self._said = threading.Lock()

    def say(self, reason: object) -> None:
        """Log the reason, unless one was logged before."""
        if self._said.acquire(blocking=False):
            log.error("engine ends, to be replaced: %s", reason)


LAST_WORDS = LastWords()
"""This process's."""
