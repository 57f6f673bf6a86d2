"""How long a client has taken nothing of what was written to it."""


class WriteStall:
    """The stall of one connection; it begins when the transport is full."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._unsent_then = 0
        """Bytes that were unsent when it was last looked at."""

    @property
    def stalled(self) -> bool:
        """The transport is full: the client does not take what is sent."""
        return self._since is not None

    def begin(self, now: float, unsent_bytes: int) -> None:
        """The transport is full."""
        self._since, self._unsent_then = now, unsent_bytes

    def end(self) -> None:
        """The transport has room again."""
        self._since = None

    def seconds(self, now: float, unsent_bytes: int) -> float:
        """How long the client has taken nothing; 0 where it has since the last look."""
        if self._since is None:
            return 0.0
        if unsent_bytes < self._unsent_then:
            self._since = now
        self._unsent_then = unsent_bytes
        return now - self._since
