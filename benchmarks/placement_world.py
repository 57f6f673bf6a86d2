"""Sessions, servers and time for ``benchmarks.placement``: a simulation without sockets or models.

What is steered is the balancer's own: ``cluster.balancing.Balancer`` reads rows of simulated
servers and gives commands to a HAProxy that is a table. Simulated are sessions (they arrive, talk,
think and go), what their turns find in caches, and where a socket goes that has no home.

Always true: what happens depends on the seed alone; of two events of one moment the one that was
told first comes first.
"""

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cluster.balancing import Balancer
from cluster.haproxy_socket import Entry
from cluster.watch import Watch
from sessions.journal.members import NO_SLOT, Member, MemberLoad, MemberState, Presence
from tests.support.fake_haproxy import FakeHaproxy

DEAD_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """How much of each there is; times are seconds."""

    servers: int
    sessions: int
    """That live at the same time, in the mean."""
    seconds: float
    life_s: float = 600.0
    think_s: float = 45.0
    turn_s: float = 4.0
    """Means, exponential; a turn's is lognormal."""
    first_tokens: float = 8000.0
    """Of a session's first prompt, the median; lognormal with sigma 1."""
    turn_tokens: float = 400.0
    """That each turn adds, the median; lognormal with sigma 1."""
    capacity_over_mean: float = 1.5
    """Tokens that all caches hold, over those of the contexts of sessions that live."""
    start_s: float = 20.0
    """Until a replacement serves."""
    losses: int = 1
    """Servers that die, one after the other in the third quarter."""
    per_host: int = 4
    """Servers of a host, which the rolling update replaces one after the other."""
    round_s: float = 1.0
    """Between two rounds of the balancer."""
    folders: bool = True
    """A replacement that was asked for finds the KV of who was there before."""

    @property
    def mean_context(self) -> float:
        """Tokens of a session's context, roughly: skewed, so more than the median."""
        skew = float(np.exp(0.5))
        turns = self.life_s / (self.think_s + self.turn_s)
        return skew * (self.first_tokens + self.turn_tokens * turns / 2)

    @property
    def capacity(self) -> int:
        """Tokens of one server's cache."""
        return int(self.capacity_over_mean * self.mean_context * self.sessions / self.servers)


@dataclass(slots=True, eq=False)
class Agent:
    """A session of the simulation."""

    key: str
    ends_at: float
    context: int
    at: int = NO_SLOT
    """The slot where its socket is."""
    turns: int = 0
    running: int = 0
    """Number of its turn that runs; 0: none does."""


@dataclass(slots=True, eq=False)
class Process:
    """A server that lives."""

    name: str
    slot: int
    state: MemberState
    cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Tokens by session, the one that was used last at the end."""
    used: int = 0
    held: int = 0
    """Tokens of contexts whose turns run."""
    agents: set[str] = field(default_factory=set)
    """Whose socket is here."""
    running: int = 0


@dataclass(slots=True)
class Sums:
    """Tokens of a stretch of time."""

    prompt: int = 0
    """Of turns behind a session's first."""
    cached: int = 0
    computed: int = 0
    """Of all turns."""
    moved: int = 0
    """Turns that did not find their session's server."""
    sockets: list[float] = field(default_factory=list)
    """The most at one server over the mean, now and then."""
    kv: list[float] = field(default_factory=list)
    """The same of contexts of the sessions that are there."""

    def figures(self) -> dict[str, float]:
        """By name."""
        return {
            "hit_ratio": self.cached / max(self.prompt, 1),
            "computed_tokens": self.computed,
            "moved_turns": self.moved,
            "sockets_max_over_mean": _mean(self.sockets),
            "kv_max_over_mean": _mean(self.kv),
        }


def _mean(found: Sequence[float]) -> float:
    return float(np.mean(found)) if found else 0.0


Place = Callable[["World", str], int]
"""The slot of a socket that has no home, of those that are open."""


class Table(dict[str, int]):
    """Homes by key, and keys by home."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[int, set[str]] = {}

    def __setitem__(self, key: str, at: int) -> None:
        self._keys.get(self.get(key, 0), set()).discard(key)
        self._keys.setdefault(at, set()).add(key)
        super().__setitem__(key, at)

    def forget(self, at: int) -> None:
        """Whose home is there has none."""
        for key in self._keys.pop(at, ()):
            del self[key]


class TableHaproxy(FakeHaproxy):
    """A HAProxy whose table is as quick as the program's."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.homes: Table = Table()

    def fill(self, backend: str, entries: Iterable[Entry]) -> None:
        """See ``HaproxySocket``."""
        for each in entries:
            self.homes[each.key] = each.server_id

    def do(self, command: str) -> None:
        """See ``HaproxySocket``."""
        if command.startswith("clear table"):
            self.homes.forget(int(command.rpartition(" ")[2]))
        else:
            super().do(command)
            self.done.clear()


class World:
    """All of it; ``play`` runs it."""

    def __init__(
        self,
        scene: Scene,
        place: Place,
        folder: Path,
        *,
        seed: int,
        sticky: bool = True,
        remembers: bool = True,
    ) -> None:
        """
        Args:
            folder: the balancer's.
            sticky: a socket is a session's, not a turn's.
            remembers: a session's home is remembered in the balancer's table; False: it is placed
                anew for each socket.
        """
        self.scene = scene
        self.random = random.Random(seed)
        self.choices = random.Random(seed)
        """For policies: what happens to sessions does not depend on what is chosen."""
        self.now = 0.0
        self.sums: dict[str, Sums] = {}
        self._place = place
        self._capacity = scene.capacity
        self._sticky = sticky
        self._remembers = remembers and sticky
        self._numbers = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._agents: dict[str, Agent] = {}
        self._by_slot: dict[int, Process] = {}
        self._rows: dict[str, Member] = {}
        self._folders: dict[int, tuple[OrderedDict[str, int], int]] = {}
        self.haproxy = TableHaproxy(scene.servers)
        self.sockets = np.zeros(scene.servers + 1)
        self.kv = np.zeros(scene.servers + 1)
        """Tokens of the contexts of sessions whose socket is there, by slot."""
        self.weights = np.zeros(scene.servers + 1)
        """0 where nobody new goes."""
        self._ids: dict[int, int] = {}
        self._id_of: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        """Those of its host that are to be replaced after the one in a slot."""
        self._balancer = Balancer(
            rows=self, carrier=self.haproxy, watch=Watch(DEAD_S),
            homes_file=folder / "homes", clock=lambda: self.now,
        )  # fmt: skip

    # Rows, as the balancer reads them

    def read(self) -> list[Member]:
        """See ``Rows``."""
        return list(self._rows.values())

    def write(self, slots: Mapping[str, int], told: Sequence[str]) -> None:
        """See ``Rows``."""
        for owner, number in slots.items():
            row = self._rows[owner]
            self._rows[owner] = _member(row.owner, row.presence, number, row.told_ms, self.now)
        for owner in told:
            row = self._rows[owner]
            self._rows[owner] = _member(row.owner, row.presence, row.slot, 1, self.now)
            self.at(self.now, lambda slot=row.slot: self._told(slot))

    def _beat(self) -> None:
        capacity = self._capacity
        for process in self._by_slot.values():
            said = Presence(
                cluster="c", address=address(process.name), identity="m", state=process.state,
                wanted_slot=process.slot,
                load=MemberLoad(kv_permille=1000 * process.held // capacity),
            )  # fmt: skip
            old = self._rows.get(process.name)
            slot, told = (process.slot, 0) if old is None else (old.slot, old.told_ms)
            self._rows[process.name] = _member(process.name, said, slot, told, self.now)

    # Time

    def at(self, moment: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (moment, next(self._numbers), what))

    def play(self) -> None:
        """From the beginning to the end: the first quarter is not counted, then comes a quiet one,
        one with losses and one with a rolling update."""
        scene = self.scene
        for slot in range(1, scene.servers + 1):
            self._start(slot)
        self.at(0.0, self._round)
        for _ in range(scene.sessions):
            self.at(self.random.uniform(0.0, scene.think_s), self._arrive)
        self.at(scene.think_s, self._arrivals)
        quarter = scene.seconds / 4
        for number in range(scene.losses):
            self.at(2 * quarter + number * quarter / (scene.losses + 1), self._lose)
        self.at(3 * quarter, self._update)
        while self._events and self._events[0][0] <= scene.seconds:
            self.now, _, what = heapq.heappop(self._events)
            what()

    @property
    def counted(self) -> Sums:
        """What happens now is counted there."""
        quarter = min(int(4 * self.now / self.scene.seconds), 3)
        name = ("begin", "quiet", "losses", "update")[quarter]
        return self.sums.setdefault(name, Sums())

    def _round(self) -> None:
        self._beat()
        answering = {address(name) for name in self._rows}
        self.haproxy.check(answering.__contains__)
        self._balancer.round()
        slots = self.haproxy.slots("replicas")
        self._ids = {slot.id: slot.number for slot in slots}
        self._id_of = {slot.number: slot.id for slot in slots}
        for slot in slots:
            is_open = slot.number in self._by_slot and not (slot.maintained or slot.drained)
            self.weights[slot.number] = slot.weight if is_open else 0
        if self.now >= self.scene.think_s and int(self.now) % 10 == 0:
            self._look()
        self.at(self.now + self.scene.round_s, self._round)

    def _look(self) -> None:
        there = [slot for slot in self._by_slot if self.weights[slot]]
        if there:
            self.counted.sockets.append(float(self.sockets[there].max() / self.sockets[1:].mean()))
            self.counted.kv.append(float(self.kv[there].max() / self.kv[1:].mean()))

    # Sessions

    def _arrivals(self) -> None:
        self._arrive()
        rate = self.scene.sessions / self.scene.life_s
        self.at(self.now + self.random.expovariate(rate), self._arrivals)

    def _arrive(self) -> None:
        key = f"{self.random.getrandbits(160):040x}"
        first = int(self.scene.first_tokens * self.random.lognormvariate(0, 1))
        life_s = self.random.expovariate(1 / self.scene.life_s)
        agent = self._agents[key] = Agent(key=key, ends_at=self.now + life_s, context=first)
        self._begin_turn(agent)

    def _begin_turn(self, agent: Agent) -> None:
        if self.now >= agent.ends_at and agent.turns:
            self._close(agent)
            del self._agents[agent.key]
            return
        if agent.at == NO_SLOT or not self._sticky:
            self._open(agent)
        if agent.at == NO_SLOT:  # nobody is there
            self.at(self.now + 1.0, lambda: self._begin_turn(agent))
            return
        agent.turns += 1
        agent.running = agent.turns
        process = self._by_slot[agent.at]
        self._prefill(process, agent)
        process.running += 1
        process.held += agent.context
        took_s = self.scene.turn_s * self.random.lognormvariate(0, 0.7)
        run = (agent.turns, process)
        self.at(self.now + took_s, lambda: self._end_turn(agent, *run))

    def _prefill(self, process: Process, agent: Agent) -> None:
        counted, known = self.counted, process.cache.pop(agent.key, 0)
        grown = int(self.scene.turn_tokens * self.random.lognormvariate(0, 1))
        agent.context += grown if agent.turns > 1 else 0
        self.kv[agent.at] += grown if agent.turns > 1 else 0
        cached = min(known, agent.context)
        counted.computed += agent.context - cached
        if agent.turns > 1:
            counted.prompt += agent.context
            counted.cached += cached
            counted.moved += not known
        process.cache[agent.key] = agent.context
        process.used += agent.context - known
        while process.used > self._capacity and len(process.cache) > 1:
            _, gone = process.cache.popitem(last=False)
            process.used -= gone

    def _end_turn(self, agent: Agent, turn: int, process: Process) -> None:
        if agent.running != turn:
            return  # its server died: it began again elsewhere
        agent.running = 0
        process.running -= 1
        process.held -= agent.context
        if process.state is MemberState.DRAINING:
            self._close(agent)
            self._end_if_idle(process)
        think_s = self.random.expovariate(1 / self.scene.think_s)
        self.at(self.now + think_s, lambda: self._begin_turn(agent))

    def _open(self, agent: Agent) -> None:
        """Where HAProxy sends a new socket: home, else where the policy says."""
        self._close(agent)
        home = self._ids.get(self.haproxy.homes.get(agent.key, 0), NO_SLOT)
        if not self._remembers or home not in self._by_slot or not self.weights[home]:
            home = self._place(self, agent.key) if self.weights.any() else NO_SLOT
            if home not in self._by_slot:
                return
        if self._remembers:
            self.haproxy.homes[agent.key] = self._id_of[home]
        agent.at = home
        self.sockets[home] += 1
        self.kv[home] += agent.context
        self._by_slot[home].agents.add(agent.key)

    def _close(self, agent: Agent) -> None:
        if agent.at == NO_SLOT:
            return
        self.sockets[agent.at] -= 1
        self.kv[agent.at] -= agent.context
        if agent.at in self._by_slot:
            self._by_slot[agent.at].agents.discard(agent.key)
        agent.at = NO_SLOT

    # Servers

    def _start(self, slot: int) -> None:
        made = Process(name=str(next(self._numbers)), slot=slot, state=MemberState.READY)
        if self.scene.folders and slot in self._folders:
            made.cache, made.used = self._folders.pop(slot)
        self._by_slot[slot] = made

    def _lose(self) -> None:
        """A server is killed: its sockets are cut, its turns begin again."""
        slot = self.random.choice(sorted(self._by_slot))
        process = self._by_slot.pop(slot)
        self._rows.pop(process.name, None)
        self.weights[slot] = 0
        for key in sorted(process.agents):
            agent = self._agents[key]
            self._close(agent)
            if agent.running:
                agent.running = 0
                agent.turns -= 1
                self._begin_turn(agent)
        self.at(self.now + self.scene.start_s, lambda: self._start(slot))

    def _update(self) -> None:
        slots = sorted(self._by_slot)
        hosts = [
            slots[n : n + self.scene.per_host] for n in range(0, len(slots), self.scene.per_host)
        ]
        for host in hosts:
            self._drain(host)

    def _drain(self, waiting: list[int]) -> None:
        """The first of these is replaced, and the others when that serves."""
        if waiting and waiting[0] in self._by_slot:
            process = self._by_slot[waiting[0]]
            process.state = MemberState.DRAINING
            self._waiting[waiting[0]] = waiting[1:]

    def _told(self, slot: int) -> None:
        """Nobody new comes: who is idle is sent away at once."""
        process = self._by_slot.get(slot)
        if process is None or process.state is not MemberState.DRAINING:
            return
        for key in sorted(process.agents):
            if not self._agents[key].running:
                self._close(self._agents[key])
        self._end_if_idle(process)

    def _end_if_idle(self, process: Process) -> None:
        row = self._rows.get(process.name)
        if process.running or row is None or not row.told_ms:
            return
        del self._by_slot[process.slot], self._rows[process.name]
        self._folders[process.slot] = (process.cache, process.used)
        rest = self._waiting.pop(process.slot, [])
        self.at(self.now + self.scene.start_s, lambda: self._replaced(process.slot, rest))

    def _replaced(self, slot: int, rest: list[int]) -> None:
        self._start(slot)
        self._drain(rest)


def _member(owner: str, said: Presence, slot: int, told_ms: int, now: float) -> Member:
    return Member(
        owner=owner, heartbeat_ms=int(now * 1000), presence=said, slot=slot, told_ms=told_ms
    )


def address(name: str) -> str:
    """The address of a simulated server."""
    number = int(name)
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:80"
