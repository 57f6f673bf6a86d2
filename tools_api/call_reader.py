"""Readers of the calls behind one opener, as they stream; each way of writing has its own.

A reader gets text and special tokens in the order of the output and tells what has become certain.
It says how much of a text it took: the rest is no call of its own.

Knows events. Always true: the events' texts, put together, do not depend on how text was cut.
"""

from abc import ABC, abstractmethod

from tools_api.parsed_events import CallArgumentsDelta, CallDone, CallEvent, ParsedCallStart

SPACE = " \t\r\n"


class CallReader(ABC):
    """Reads what stands between an opener and its closer; not reusable."""

    def __init__(self) -> None:
        self.over = False
        """Whether it has read its last call, or given up; what follows is not its own."""
        self.inside = False
        """A call is open that has been announced."""
        self._held = ""
        """Text that is not decided yet."""
        self._name = ""
        self._pieces: list[str] = []
        self._events: list[CallEvent] = []

    def text(self, text: str) -> str:
        """Read text; return what is not its own: nothing, unless it is ``over``."""
        self._held += text
        while self._held and not self.over and self._step():
            pass
        if not self.over:
            return ""
        rest, self._held = self._held, ""
        return rest

    @abstractmethod
    def _step(self) -> bool:
        """Take one more piece of what is held; False: more is needed, or it is over."""

    @abstractmethod
    def special(self, name: str) -> bool:
        """Read a special token; False: it cannot stand here, and the reader has to be stopped."""

    @property
    @abstractmethod
    def unannounced(self) -> str:
        """The text read of a call whose name is not known yet."""

    @abstractmethod
    def end_of_turn(self) -> None:
        """The model ended its turn; a call that nothing else closes is complete."""

    def take(self) -> list[CallEvent]:
        """The events that have become certain since the last call of this method."""
        events, self._events = self._events, []
        return events

    def stop(self) -> None:
        """The output ended, or something came that cannot stand here: what is open is not
        complete."""
        self.over = True
        if self.inside:
            self._done(complete=False)

    def _start(self, name: str, number: str = "") -> None:
        self.inside = True
        self._name, self._pieces = name, []
        self._events.append(ParsedCallStart(name, number))

    def _add(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._events.append(CallArgumentsDelta(text))

    def _done(self, *, complete: bool = True) -> None:
        self.inside = False
        self._events.append(CallDone(self._name, "".join(self._pieces), complete))
