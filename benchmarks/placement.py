"""Where sessions go in a large cluster: hash, least sockets, least KV, random, in a simulation.

    python -m benchmarks.placement --json

The balancer's own code (``cluster.balancing``) steers a HAProxy that is a table; sessions with
skewed contexts arrive, talk and go; servers are lost and then all replaced, one of a host after
the other. Twice: 600 sessions on 12 servers, and 100,000 on 1,000. A policy says where a session
goes that has no home; ``hash`` has no homes but a ring of 100 points a server, and ``none`` sends
each turn anywhere. Figures by quarter: the most sockets, and the most KV, at one server over the
mean; parts of prompts behind first turns that came from caches; turns that did not find their
session's KV. No time is simulated but that of turns and starts: what a policy costs in seconds is
not said.
"""

import bisect
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.placement_world import Scene, World
from benchmarks.report import Bar, parser, report

SCENES = {
    "600_on_12": Scene(servers=12, sessions=600, seconds=2400.0, losses=3),
    "100000_on_1000": Scene(
        servers=1000, sessions=100_000, seconds=480.0, losses=100, per_host=4, round_s=2.0
    ),
}
SMALL = {"60_on_4": Scene(servers=4, sessions=60, seconds=400.0)}
POINTS = 100
MOST_S = 600.0


def least_sockets(world: World, key: str) -> int:
    """As ``balance leastconn``: over the weight."""
    with np.errstate(divide="ignore"):
        return int(
            np.argmin(np.where(world.weights > 0, (world.sockets + 1) / world.weights, np.inf))
        )


def least_kv(world: World, key: str) -> int:
    """The least tokens of contexts, over the weight."""
    with np.errstate(divide="ignore"):
        return int(np.argmin(np.where(world.weights > 0, (world.kv + 1) / world.weights, np.inf)))


def anywhere(world: World, key: str) -> int:
    """One of those that are open."""
    return int(world.choices.choice(np.flatnonzero(world.weights).tolist()))


class Ring:
    """A hash of the key, over points of all servers; the next open one where that is closed."""

    def __init__(self, servers: int) -> None:
        found = [
            (_hash(f"{slot}/{n}"), slot) for slot in range(1, servers + 1) for n in range(POINTS)
        ]
        self._points = sorted(found)

    def __call__(self, world: World, key: str) -> int:
        at = bisect.bisect(self._points, (_hash(key), 0))
        for step in range(len(self._points)):
            slot = self._points[(at + step) % len(self._points)][1]
            if world.weights[slot]:
                return slot
        return 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def play(scene: Scene, policy: str, seed: int) -> dict[str, Any]:
    """Figures of one policy."""
    place = {
        "least_sockets": least_sockets,
        "least_kv": least_kv,
        "random": anywhere,
        "hash": Ring(scene.servers),
        "none": anywhere,
    }[policy]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="keepwarm-place-") as folder:
        world = World(
            scene, place, Path(folder), seed=seed,
            sticky=policy != "none", remembers=policy != "hash",
        )  # fmt: skip
        world.play()
    figures = {name: sums.figures() for name, sums in world.sums.items()}
    return figures | {"took_s": time.perf_counter() - began}


POLICIES = ("least_sockets", "least_kv", "random", "hash", "none")


def measure(scenes: dict[str, Scene], seed: int) -> tuple[dict[str, Any], list[Bar]]:
    """All policies in all scenes."""
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    began = time.perf_counter()
    for name, scene in scenes.items():
        found = {policy: play(scene, policy, seed) for policy in POLICIES}
        figures[name] = found
        ours, hashed = found["least_sockets"]["quiet"], found["hash"]["quiet"]
        spread = ours["sockets_max_over_mean"]
        over_hash = spread / hashed["sockets_max_over_mean"]
        hits = ours["hit_ratio"] / hashed["hit_ratio"]
        bars += [
            Bar(name=f"{name}_sockets_max_over_mean", value=spread, op="<=", bar=1.15),
            Bar(name=f"{name}_sockets_over_hash", value=over_hash, op="<=", bar=0.95),
            Bar(name=f"{name}_hit_ratio_over_hash", value=hits, op=">=", bar=1.0),
        ]
    bars.append(Bar(name="seconds", value=time.perf_counter() - began, op="<=", bar=MOST_S))
    return figures, bars


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--small", action="store_true", help="only to see that it runs")
    given = options.parse_args(words)
    figures, bars = measure(SMALL if given.small else SCENES, given.seed)
    return report("placement", {"seed": given.seed} | figures, bars, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
