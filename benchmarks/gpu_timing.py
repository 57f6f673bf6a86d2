"""Times of short calls on a GPU, which the host's own time would drown.

Calls are captured in a graph, as often as makes it last ``LEAST_S``; the stream is kept busy while
the host gives it events and graph, so that none of the host's time lies between the events; the
host waits once, at the end. What calls read goes round more memory than the second-level cache
holds (``copies_to_rotate``).

Knows a stream by what it can do (``Stream``), so its arithmetic is tested with a clock.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

LEAST_S = 0.002
"""A measurement lasts at least this long."""
REPEATS = 20
_FIRST_REPEATS = 3
_MOST_TIMES = 2000

Call = Callable[[], object]


class Stream(Protocol):
    """The order of a GPU's work, one after the other."""

    def capture(self, calls: Sequence[Call]) -> Call:
        """One call that does all of ``calls``, given to the stream in one go."""
        ...

    def busy(self) -> None:
        """Give the stream something that takes longer than the host needs to give it more."""
        ...

    def event(self) -> Any:
        """A point in what the stream was given."""
        ...

    def between_s(self, first: Any, last: Any) -> float:
        """Seconds between two points that have been passed."""
        ...

    def wait(self) -> None:
        """Return when all that was given is done."""
        ...


class CudaStream:
    """The current stream of a GPU."""

    _BUSY_CYCLES = 400_000
    """About 0.2 ms."""

    def __init__(self) -> None:
        self._cuda: Any = torch.cuda  # its streams, events and graphs have no types

    def capture(self, calls: Sequence[Call]) -> Call:
        """See ``Stream.capture``."""
        aside = self._cuda.Stream()
        aside.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(aside):  # compiles kernels and sets up libraries
            for call in dict.fromkeys(calls):
                call()
        self._cuda.current_stream().wait_stream(aside)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            for call in calls:
                call()
        replay: Call = graph.replay
        return replay

    def busy(self) -> None:
        """See ``Stream.busy``."""
        self._cuda._sleep(self._BUSY_CYCLES)

    def event(self) -> Any:
        """See ``Stream.event``."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, first: Any, last: Any) -> float:
        """See ``Stream.between_s``."""
        return float(first.elapsed_time(last)) / 1000

    def wait(self) -> None:
        """See ``Stream.wait``."""
        self._cuda.synchronize()


def seconds(calls: Sequence[Call], stream: Stream, repeats: int = REPEATS) -> float:
    """Median seconds of one of ``calls``, which run one after another on ``stream``."""
    once = stream.capture(calls)
    together_s = _median_s(once, stream, _FIRST_REPEATS)
    times = min(_MOST_TIMES, max(1, math.ceil(LEAST_S / max(together_s, 1e-9))))
    if times > 1:
        once = stream.capture(list(calls) * times)
    return _median_s(once, stream, repeats) / (times * len(calls))


def _median_s(call: Call, stream: Stream, repeats: int) -> float:
    """The first is thrown away: it may find caches and clocks cold."""
    points = []
    for _ in range(repeats + 1):
        stream.busy()
        first = stream.event()
        call()
        points.append((first, stream.event()))
    stream.wait()
    return statistics.median(stream.between_s(first, last) for first, last in points[1:])


def copies_to_rotate(num_bytes: int, rotated_bytes: int) -> int:
    """How many copies of something calls must go round to have read so much before they meet the
    same one again; no cache serves what is larger than it."""
    return max(1, math.ceil(rotated_bytes / max(num_bytes, 1)))
