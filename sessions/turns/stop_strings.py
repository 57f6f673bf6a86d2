"""Text up to the stop string that ended it, though it arrives in pieces.

Where stop strings count, and which token completes one, the engine says (``StopSearch``): a call or
a strict schema's output may contain them. What stands before it in the same text is the client's,
the stop string itself is not. Because one may begin in a piece and end in a later one, the longest
suffix that could still become one is held back.
"""

from collections.abc import Sequence


class StopStrings:
    """One turn's text, trimmed. Pass-through without stop strings.

    Always true: what was let out and what is held back are the text pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None
        """The stop string that ended the text."""

    @property
    def any(self) -> bool:
        """There are stop strings; without any, text passes as it is."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """Return what can be let out."""
        if not self._stops:
            return text
        text = self._held + text
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self, text: str) -> str:
        """Return what stands before the stop string that ``text`` completes."""
        text, self._held = self._held + text, ""
        hits = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not hits:
            return text
        # The one that is complete first, as the engine sees them come.
        _, start, self.stop = min(hits)
        return text[:start]

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
