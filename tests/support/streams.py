"""A GPU's streams and events on a CPU: what is done is done at once, and written down.

``Timeline`` takes the place of the parts of ``torch.cuda`` that our code uses. Each operation
on tensors is noted with the stream that it was given to, so that a test can ask what comes
before what; ``before`` knows the order that streams, events and waits make, and no other.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

MAIN = "main"


class Timeline(TorchDispatchMode):
    """What streams were given, in the order of the calls: (stream, what, detail)."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[str, str, Any]] = []
        self.current = MAIN
        self._streams = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))

    def note(self, what: str, detail: Any = None, stream: str | None = None) -> None:
        self.entries.append((stream or self.current, what, detail))

    def places(self, what: str) -> list[int]:
        """Where ``what`` stands among the entries."""
        return [at for at, entry in enumerate(self.entries) if entry[1] == what]

    def stream_of(self, what: str) -> str:
        """The one stream that was given ``what``."""
        (stream,) = {self.entries[at][0] for at in self.places(what)}
        return stream

    def before(self, first: int, second: int) -> bool:
        """Whether a device must end the entry ``first`` before it begins ``second``."""
        reached = {first}
        for at in range(first + 1, second + 1):
            stream, what, detail = self.entries[at]
            earlier = [n for n in reached if self.entries[n][0] == stream]
            waited = what == "wait" and any(n in reached for n in detail)
            if earlier or waited:
                reached.add(at)
        return second in reached

    def new_stream(self, *_: object) -> "FakeStream":
        self._streams += 1
        return FakeStream(self, f"stream {self._streams}")

    def current_stream(self, *_: object) -> "FakeStream":
        return FakeStream(self, self.current)

    @contextlib.contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        outer, self.current = self.current, stream.name
        yield
        self.current = outer

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of torch.cuda's streams, events and pinned memory."""

        def event(**options: object) -> FakeEvent:
            return FakeEvent(self, options)

        def pinned(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "Event", event)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda tensor, stream: self.note("kept", stream.name)
        )


class FakeStream:
    def __init__(self, timeline: Timeline, name: str) -> None:
        self.name = name
        self._timeline = timeline

    def wait_stream(self, other: "FakeStream") -> None:
        entries = self._timeline.entries
        last = [at for at, entry in enumerate(entries) if entry[0] == other.name]
        self._timeline.note("wait", last, self.name)

    def wait_event(self, event: "FakeEvent") -> None:
        self._timeline.note("wait", [event.place], self.name)


class FakeEvent:
    def __init__(self, timeline: Timeline, options: dict[str, object]) -> None:
        self.options = options
        self.place = -1
        self._timeline = timeline

    def record(self) -> None:
        self.place = len(self._timeline.entries)
        self._timeline.note("record", self)

    def query(self) -> bool:
        return self.place >= 0

    def synchronize(self) -> None:
        self._timeline.note("host waits", self.place, "host")

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.options["enable_timing"]
        assert other.options["enable_timing"]
        return float(other.place - self.place)
