"""Counters of a server that agents are played on, ours or a peer, as its ``/metrics`` has them."""

import re
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple, Self

from benchmarks.loop_workload import Played

OURS, PEER = "ours", "vllm"
COMPUTED = {
    OURS: ("keepwarm_prefill_tokens_total", None),
    PEER: ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
}
"""Prompt tokens that were computed: the first less the second."""
STEPS = {
    OURS: "keepwarm_engine_step_seconds_count",
    PEER: "vllm:iteration_tokens_total_count",
}
"""Steps of the engine."""


class Counters(NamedTuple):
    """Counts since a server started, or between two moments."""

    computed_tokens: float
    """Prompt tokens that were computed."""
    steps: float
    """Steps of the engine."""

    @classmethod
    def read(cls, server: str, said: str) -> Self:
        """The counters in the text of ``/metrics``."""
        more, less = COMPUTED[server]
        computed = _total(said, more) - (_total(said, less) if less else 0.0)
        return cls(computed, _total(said, STEPS[server]))

    def since(self, before: Self) -> Self:
        """What has come since ``before``."""
        return type(self)(self.computed_tokens - before.computed_tokens, self.steps - before.steps)


def counters(url: str, server: str) -> Counters:
    """The counters of a server at a URL that ends with ``/v1``. Raises OSError."""
    request = urllib.request.Request(
        url.removesuffix("/v1") + "/metrics", headers={"Authorization": "Bearer operator-key"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return Counters.read(server, answer.read().decode())


def _total(said: str, name: str) -> float:
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", said, re.MULTILINE)
    return sum(map(float, values))


def in_flight_s(played: Played) -> float:
    """Seconds in which at least one turn was being answered."""
    spans = sorted((turn.sent_s, turn.end_s) for session in played.sessions for turn in session)
    return _covered_s(spans)


def _covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of what ascending spans cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return covered


def host_ms_per_step(played: Played, steps: float, busy: float | None) -> float | None:
    """Milliseconds a step in which a turn waited and the card ran nothing: the host's time that no
    kernel hides, and the way from the client and back.

    Args:
        steps: of the engine, in the play.
        busy: the share of the play's time in which the card ran kernels; None: not known.
    """
    if busy is None or not steps:
        return None
    return 1000 * (in_flight_s(played) - busy * played.wall_s) / steps
