"""The arithmetic of timing short calls, with a stream whose clock is a number."""

from collections.abc import Sequence

import pytest

from benchmarks.gpu_timing import LEAST_S, Call, copies_to_rotate, seconds


class FakeStream:
    """A device that takes ``call_s`` a call and ``graph_s`` to begin a graph, and a host that
    takes ``host_s`` to give it anything."""

    def __init__(self, call_s: float, *, graph_s: float = 0.0, host_s: float = 0.0) -> None:
        self.call_s, self.graph_s, self.host_s = call_s, graph_s, host_s
        self.host, self.device = 0.0, 0.0
        self.captured: list[int] = []
        self.waits = 0

    def _give(self, takes_s: float) -> None:
        self.host += self.host_s
        self.device = max(self.device, self.host) + takes_s

    def capture(self, calls: Sequence[Call]) -> Call:
        self.captured.append(len(calls))
        takes = self.graph_s + len(calls) * self.call_s
        return lambda: self._give(takes)

    def busy(self) -> None:
        self._give(100 * self.host_s)

    def event(self) -> float:
        self._give(0.0)
        return self.device

    def between_s(self, first: float, last: float) -> float:
        return last - first

    def wait(self) -> None:
        self.waits += 1
        self.host = max(self.host, self.device)


def nothing() -> None:
    """A call of the fake stream."""


@pytest.mark.parametrize("call_s", [1e-6, 7e-6, 3e-4, 0.01])
@pytest.mark.parametrize("count", [1, 5])
def test_a_call_is_timed_in_a_graph_that_lasts_and_without_the_hosts_time(
    call_s: float, count: int
) -> None:
    stream = FakeStream(call_s, host_s=2e-5)
    found = seconds([nothing] * count, stream)
    assert found == pytest.approx(call_s, rel=1e-6)
    assert stream.captured[-1] * call_s >= LEAST_S * (1 - 1e-9)
    assert stream.captured[-1] % count == 0
    assert stream.waits == 2


def test_what_a_graph_takes_to_begin_is_a_small_part_of_what_is_timed() -> None:
    stream = FakeStream(2e-6, graph_s=1e-5, host_s=1e-6)
    assert seconds([nothing], stream) == pytest.approx(2e-6, rel=0.05)


def test_long_calls_are_not_repeated() -> None:
    stream = FakeStream(0.5)
    assert seconds([nothing], stream) == pytest.approx(0.5)
    assert stream.captured == [1]


def test_small_things_are_copied_until_no_cache_holds_them_all() -> None:
    assert copies_to_rotate(1_000_000, 120_000_000) == 120
    assert copies_to_rotate(50_000_000, 120_000_000) == 3
    assert copies_to_rotate(1 << 40, 120_000_000) == 1
