"""Text up to the first stop string, though it arrives in pieces.

The engine ends the turn at the token that completes a stop string; what stands before it
in the same text is the client's, the stop string itself is not. Because a stop string may
begin in one piece and end in a later one, the longest suffix that could still become one
is held back.
"""

from collections.abc import Sequence


class StopStrings:
    """One turn's text, trimmed. Pass-through without stop strings.

    Always true: what was let out never contains a stop string, and concatenated with what
    is held back it is the text pushed, until ``found``.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None
        """The stop string that appeared: all later text is dropped."""

    @property
    def any(self) -> bool:
        """There are stop strings; without any, text passes as it is."""
        return bool(self._stops)

    @property
    def found(self) -> bool:
        """One appeared."""
        return self.stop is not None

    def push(self, text: str) -> str:
        """Return what can be let out."""
        if not self._stops:
            return text
        if self.found:
            return ""
        text = self._held + text
        hits = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if hits:
            # The one that is complete first, as the engine sees them come.
            _, start, self.stop = min(hits)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Let out what is held back: no stop string can reach over this point."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``stop``."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
