"""Cost of the places where states of recurrent layers are kept: recorded coding-agent runs through
the prefix cache, beside two other engines' rules.

Replay rule as in ``benchmarks.hit_ratio``: 32 runs at a time, one id stands for 64 tokens. Keys
and values are unbounded; only the slots for snapshots are, those of running requests apart. Each
figure is prompt tokens computed over the prompt tokens that a cache of keys and values alone would
compute. With a host tier it has eight times the slots.

Ours: each request names the end of its instructions and tools; a run's main agent and each of its
sub-agents is a branch; the branch of a sub-agent is released behind its last request.

Others, written anew from what they are said to do: ``last_block`` keeps the state at the last block
boundary of each prompt and where a second request shows that transcripts part; ``interval`` keeps
that of every 256 tokens that a request came to last, in its prompt and in its output, and where
transcripts part. Both forget the least recently used.
"""

import functools
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.hit_ratio import SESSIONS_FILE, TOKENS_PER_BLOCK, Request, replay, session_requests
from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from radix_cache.snapshots import SnapshotKind
from radix_cache.transfers import BlockMove
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.queues import INTERVAL_TOKENS

AT_A_TIME = 32
SLOTS = {"2_slots": 64, "4_slots": 128}
_WITH_HOST = "computed_over_ideal_2_slots_host"
HOST_TIMES = 8
"""Slots in host memory over those on the device."""
LAST_BLOCKS = (528, 1600)
INTERVAL = 256
_POOL_BLOCKS = 1 << 24


@dataclass(frozen=True, slots=True)
class Placed(Request):
    """A request, and where it stands in its run."""

    run: int
    agent: int
    parent_agent: int | None
    shared: int
    """Leading ids that are its parent's."""
    header: int
    """Ids of instructions and tools."""
    is_last: bool
    """Whether it is the last turn of its agent."""


def load_runs(path: Path) -> list[tuple[list[Request], float]]:
    """(requests, seconds) of each run."""
    runs, next_id = [], 0
    with path.open() as lines:
        for number, line in enumerate(lines):
            row = json.loads(line)
            requests = list(_placed(row, number, session_requests(row, next_id)))
            next_id = 1 + max(int(request.blocks.max()) for request in requests)
            runs.append((requests, max(r[0] + (r[7] or 0.0) for r in row["req"])))
    return runs


def _placed(
    row: dict[str, list[list[float]]], run: int, requests: list[Request]
) -> Iterator[Request]:
    last = {int(entry[1]): index for index, entry in enumerate(row["req"])}
    headers = {0: row["tools_tok"] + row["sys_tok"]}  # type: ignore[operator]
    for number, (_, _, tools, instructions) in enumerate(row["subs"], start=1):
        headers[number] = tools + instructions  # type: ignore[assignment]
    for index, (entry, request) in enumerate(zip(row["req"], requests, strict=True)):
        agent, parent = int(entry[1]), int(entry[2])
        shared = _common(request.blocks, requests[parent].blocks) if parent >= 0 else 0
        yield Placed(
            request.time_s,
            request.blocks,
            request.prompt_tokens,
            request.total_tokens,
            run=run,
            agent=agent,
            parent_agent=int(row["req"][parent][1]) if parent >= 0 else None,
            shared=shared,
            header=int(headers.get(agent, 0)) // TOKENS_PER_BLOCK,  # type: ignore[call-overload]
            is_last=last[agent] == index,
        )


def _common(left: np.ndarray, right: np.ndarray) -> int:
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length


def prompt_ids(request: Request) -> int:
    return -(-request.prompt_tokens // TOKENS_PER_BLOCK)


def ideal(requests: Iterable[Placed]) -> int:
    """Prompt tokens that a cache of keys and values alone computes."""
    return sum(
        request.prompt_tokens - min(request.shared, prompt_ids(request) - 1) * TOKENS_PER_BLOCK
        for request in requests
    )


class _Nothing:
    """Moves no blocks."""

    def move(self, move: BlockMove) -> None:
        raise AssertionError("keys and values are unbounded")


class OurRule:
    """The prefix cache itself.

    Args:
        releases: sub-agents' branches are released when they are over.
        host_slots: for states in host memory; keys and values stay on the device.
        intervals: with them, states are kept there every so many tokens of a long prompt.
    """

    def __init__(
        self, slots: int, *, releases: bool = True, host_slots: int = 0, intervals: bool = True
    ) -> None:
        self._slots, self._releases, self._now = slots, releases, 0.0
        self._interval = INTERVAL_TOKENS // TOKENS_PER_BLOCK if intervals and host_slots else 0
        costs = StepCosts()
        self.cache = PrefixCache(
            CacheConfig(
                num_blocks=_POOL_BLOCKS,
                block_size=1,
                state_slots=slots + 1,
                running_slots=1,
                host_blocks=1 if host_slots else 0,
                host_states=host_slots,
            ),
            clock=lambda: self._now,
            mover=_Nothing() if host_slots else None,
            restore_cost=functools.cache(lambda ids: costs.restore_s(ids * TOKENS_PER_BLOCK)),
        )

    def computed(self, request: Placed) -> int:
        """Prompt tokens that the request has to compute."""
        self._now = max(self._now, request.time_s)
        ids, whole = request.blocks, request.total_tokens // TOKENS_PER_BLOCK
        branch, count = f"{request.run}/{request.agent}", prompt_ids(request)
        base = None
        if request.parent_agent is not None:
            base = f"{request.run}/{request.parent_agent}"
        sequence = self.cache.begin(
            branch_id=branch, tenant="runs", tokens=ids[:count], base_branch_id=base
        )
        self.cache.allocate(sequence, max(whole, count) - sequence.num_blocks)
        found = sequence.num_cached_tokens
        cuts = {request.header: SnapshotKind.HEADER}
        if sequence.junction is not None:
            cuts.setdefault(sequence.junction, SnapshotKind.JUNCTION)
        if self._interval and count - found > self._interval:
            for cut in range(self._interval, count, self._interval):
                cuts.setdefault(cut, SnapshotKind.INTERVAL)
        for cut in sorted(cuts):
            if found < cut < count:
                self.cache.commit(sequence, ids[:cut])
                self.cache.keep_state(sequence, ids[:cut], cuts[cut])
        self.cache.commit(sequence, ids[:whole])
        self.cache.finish(sequence, state_of=ids[:whole])
        self.cache.take_state_orders()
        if request.is_last and request.agent and self._releases:
            self.cache.release_branch(branch)
        self._make_room()
        return request.prompt_tokens - found * TOKENS_PER_BLOCK

    def _make_room(self) -> None:
        """No more snapshots than slots for them, while nothing runs."""
        if self.cache.stats().snapshots <= self._slots:
            return
        nobody = np.full(2, -1, dtype=np.int32)
        sequence = self.cache.begin(branch_id="nobody", tenant="runs", tokens=nobody)
        self.cache.allocate(sequence, 0)
        self.cache.finish(sequence)
        self.cache.take_state_orders()


class LeastRecent:
    """States by where they are: the id before a position names all of the prefix."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._kept: OrderedDict[tuple[int, int], None] = OrderedDict()

    def deepest(self, request: Placed, step: int) -> int:
        """The deepest kept position of the prompt, in tokens, of multiples of ``step``."""
        at = (request.prompt_tokens - 1) // step * step
        while at > 0:
            key = self._key(request, at)
            if key in self._kept:
                self._kept.move_to_end(key)
                return at
            at -= step
        return 0

    def keep(self, request: Placed, position: int) -> None:
        if position <= 0:
            return
        key = self._key(request, position)
        self._kept[key] = None
        self._kept.move_to_end(key)
        if len(self._kept) > self._slots:
            self._kept.popitem(last=False)

    @staticmethod
    def _key(request: Placed, position: int) -> tuple[int, int]:
        return int(request.blocks[(position - 1) // TOKENS_PER_BLOCK]), position


class LastBlockRule(LeastRecent):
    """At the last block boundary of each prompt, and where two transcripts part."""

    def __init__(self, slots: int, block: int) -> None:
        super().__init__(slots)
        self._block = block

    def computed(self, request: Placed) -> int:
        block = self._block
        found = self.deepest(request, block)
        junction = min(request.shared * TOKENS_PER_BLOCK, request.prompt_tokens - 1)
        if junction // block * block > found:
            self.keep(request, junction // block * block)
        self.keep(request, request.prompt_tokens // block * block)
        return request.prompt_tokens - found


class IntervalRule(LeastRecent):
    """At the last multiple of ``INTERVAL`` of prompt and of output, and where two transcripts
    part."""

    def computed(self, request: Placed) -> int:
        found = self.deepest(request, TOKENS_PER_BLOCK)
        junction = min(request.shared * TOKENS_PER_BLOCK, request.prompt_tokens - 1)
        junction = junction // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
        if junction > found:
            self.keep(request, junction)
        first = found // INTERVAL * INTERVAL + INTERVAL
        for position in _kept_in(first, request.prompt_tokens):
            self.keep(request, position)
        self.keep(request, request.total_tokens // INTERVAL * INTERVAL)
        return request.prompt_tokens - found


def _kept_in(first: int, end: int) -> Sequence[int]:
    last = end // INTERVAL * INTERVAL
    return (last,) if last >= first else ()


def measured(runs: list[tuple[list[Request], float]]) -> tuple[dict[str, object], list[Bar]]:
    """Figures and bars of the replayed runs."""
    requests = [request for request in replay(runs, AT_A_TIME) if isinstance(request, Placed)]
    least = ideal(requests)
    figures: dict[str, object] = {"runs": len(runs), "requests": len(requests)}
    bars = []
    limits = {"2_slots": 2.4, "4_slots": 1.9}
    for name, slots in SLOTS.items():
        rules = {
            "ours": OurRule(slots),
            **{f"last_block_{size}": LastBlockRule(slots, size) for size in LAST_BLOCKS},
            "interval": IntervalRule(slots),
        }
        if name == "2_slots":
            rules["ours_without_releases"] = OurRule(slots, releases=False)
            host = HOST_TIMES * slots
            rules["ours_with_host"] = OurRule(slots, host_slots=host)
            rules["ours_with_host_no_intervals"] = OurRule(slots, host_slots=host, intervals=False)
        over = {
            rule: sum(map(each.computed, requests)) / least  # type: ignore[attr-defined]
            for rule, each in rules.items()
        }
        figures |= {f"{rule}_{name}": round(value, 4) for rule, value in over.items()}
        ours = over["ours"]
        bars.append(Bar(name=f"computed_over_ideal_{name}", value=ours, op="<=", bar=limits[name]))
        if name == "2_slots":
            last = min(over[f"last_block_{size}"] for size in LAST_BLOCKS)
            bars += [
                Bar(name="over_last_block_2_slots", value=ours / last, op="<=", bar=0.68),
                Bar(name="over_interval_2_slots", value=ours / over["interval"], op="<=", bar=0.47),
                Bar(name=_WITH_HOST, value=over["ours_with_host"], op="<=", bar=1.5),
            ]
    return figures, bars


UNMEASURED = tuple(
    Bar(name=name, value=None, op="<=", bar=bar)
    for name, bar in (
        ("computed_over_ideal_2_slots", 2.4),
        ("over_last_block_2_slots", 0.68),
        ("over_interval_2_slots", 0.47),
        (_WITH_HOST, 1.5),
        ("computed_over_ideal_4_slots", 1.9),
    )
)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--sessions", default=SESSIONS_FILE, help="file of the data folder")
    arguments = options.parse_args()
    try:
        path = data_file(arguments.data, arguments.sessions)
    except DataMissing as error:
        return report_missing("snapshots", error, UNMEASURED, as_json=arguments.json)
    figures, bars = measured(load_runs(path))
    return report("snapshots", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
