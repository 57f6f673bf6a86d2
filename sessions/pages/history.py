"""Curves over the last hour and day, in bounded memory.

Turns and the engine's state fall into buckets of ten seconds and of five minutes. Each tenant has
its own tokens, money and latencies; what concerns the machine is kept once. The clock is handed in
by the caller; knows no session. What is to be kept for longer goes to a recorder as well.

Always true: a level holds at most ``LEVELS``' number of buckets, and at most ``MAX_TENANTS``
tenants have any.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from runtime.messages import StepStats
from sessions.durable.ledger import TurnReport
from sessions.pages.buckets import MachineBucket, TurnBucket
from sessions.pages.recorder import Recorder

LEVELS = {"hour": (10.0, 360), "day": (300.0, 288)}
"""Seconds of a bucket, and how many there are."""
MAX_TENANTS = 64
"""Tenants with curves of their own; who was quiet for longest loses them first."""


Bucket = TypeVar("Bucket")


class Buckets(Generic[Bucket]):
    """The last buckets of one width, by their number since the clock's start."""

    def __init__(self, make: type[Bucket], width_s: float, most: int) -> None:
        self._make = make
        self._width_s = width_s
        self._most = most
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()

    def at(self, now: float) -> Bucket:
        """The bucket of this moment, made if there is none; those too old are dropped."""
        number = int(now // self._width_s)
        if number not in self._buckets:
            self._buckets[number] = self._make()
            self._drop(number)
        return self._buckets[number]

    def since(self, now: float) -> Iterator[tuple[int, Bucket]]:
        """The buckets that are not too old, by number."""
        self._drop(int(now // self._width_s))
        yield from self._buckets.items()

    def _drop(self, newest: int) -> None:
        while self._buckets and next(iter(self._buckets)) <= newest - self._most:
            self._buckets.popitem(last=False)


def _turn_levels() -> dict[str, Buckets[TurnBucket]]:
    return {name: Buckets(TurnBucket, *shape) for name, shape in LEVELS.items()}


class History:
    """All curves of a server, of the time that is in memory."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        """Takes in what is to be kept for longer, if anything is."""
        self._tenants: OrderedDict[str, dict[str, Buckets[TurnBucket]]] = OrderedDict()
        self._machine = {name: Buckets(MachineBucket, *shape) for name, shape in LEVELS.items()}

    def turn_finished(self, report: TurnReport, now: float) -> None:
        """Count a turn for its tenant."""
        for bucket in self._turns_now(report.tenant, now):
            bucket.add(report)

    def cost_settled(self, tenant: str, cost: int, now: float) -> None:
        """Count nano-dollars that a tenant was charged beside its turns."""
        for bucket in self._turns_now(tenant, now):
            bucket.cost += cost

    def steps_finished(self, stats: StepStats, now: float) -> None:
        """Take in how far the engine's predictions were off."""
        for bucket in self._machine_now(now):
            bucket.steps += len(stats.steps_cost_ratio)
            bucket.step_error += sum(abs(ratio - 1) for ratio in stats.steps_cost_ratio)

    def engine_restarted(self, now: float) -> None:
        """Count an engine that was replaced."""
        for bucket in self._machine_now(now):
            bucket.restarts += 1

    def sample(self, stats: StepStats, now: float) -> None:
        """Take the engine's state into the curves; to be called once a second."""
        values = {
            "running": float(stats.running),
            "waiting": float(stats.waiting),
            "kv_device": _share(stats.blocks_total - stats.blocks_free, stats.blocks_total),
            "kv_running": _share(
                stats.blocks_protected + stats.blocks_reserved, stats.blocks_total
            ),
            "kv_host": _share(stats.host_blocks_used, stats.host_blocks_total),
            "kv_disk": _share(stats.disk_blocks_used, stats.disk_blocks_total),
        }
        for bucket in self._machine_now(now):
            bucket.sample(values)

    def _turns_now(self, tenant: str, now: float) -> Iterator[TurnBucket]:
        """Where what a tenant's turns do now is counted."""
        levels = self._tenants.get(tenant)
        if levels is None:
            levels = self._tenants[tenant] = _turn_levels()
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        for buckets in levels.values():
            yield buckets.at(now)
        if self.recorder is not None:
            yield from self.recorder.turns_now(tenant)

    def _machine_now(self, now: float) -> Iterator[MachineBucket]:
        """Where what happens now is counted."""
        for buckets in self._machine.values():
            yield buckets.at(now)
        if self.recorder is not None:
            yield from self.recorder.machine_now()

    def turns(self, level: str, tenants: Iterable[str], now: float) -> dict[int, TurnBucket]:
        """The buckets of these tenants together, by number."""
        found: dict[int, TurnBucket] = {}
        for tenant in tenants:
            levels = self._tenants.get(tenant)
            for number, bucket in levels[level].since(now) if levels is not None else ():
                found.setdefault(number, TurnBucket()).merge(bucket)
        return found

    def machine(self, level: str, now: float) -> dict[int, MachineBucket]:
        """The engine's buckets, by number."""
        return dict(self._machine[level].since(now))

    def known_tenants(self) -> list[str]:
        """Tenants that have curves."""
        return list(self._tenants)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
