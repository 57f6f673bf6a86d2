"""A fleet of recorded sessions on the engine's own scheduler and prefix cache, in virtual time.

``Scheduler``, ``PrefixCache``, ``StepCosts`` and ``OutputLengths`` are those of the engine;
only the model is missing. A step costs what the device's table of costs says of the work in its
plan, prefill and decodes together, and the clock moves by that much. So that a run takes seconds,
one step of a simulation stands for ``stride`` steps of the device in a row with the same plan: each
decode yields up to ``stride`` tokens, and prefill has ``stride`` times the room.

The answer's length is not told to the scheduler: it sees the limit that clients send. The
memory account of the cache is checked as the run goes. Closed loop: a session's next turn
comes its recorded pause after the last one ended; a session that ends is released, and the
next one begins.
"""

import heapq
import json
from collections import deque
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.host_link import HostLink
from benchmarks.trace_sessions import Session, Turn
from radix_cache.cache import CachedSequence, PrefixCache
from radix_cache.config import CacheConfig
from runtime.config import EngineConfig, PolicyName
from runtime.messages import FinishReason, GenerationRequest, SamplingParams, TokenArray
from runtime.scheduling.costs import CostProfile, CostTable, OutputLengths, StepCosts
from runtime.scheduling.policy import Policy, SequenceFacts
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.sequence import Sequence, SequenceState, TokenBuffer
from runtime.scheduling.shared_context import without_shared
from runtime.scheduling.step_plan import Chunk, step_work

OUTPUT_LIMIT = 32_768
_LOOK_S = 0.01
"""So often the engine looks while turns wait and none runs, about."""
_CHECK_EVERY = 997
_MAX_IDLE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A device with a model, as the simulator sees it."""

    costs: CostProfile | CostTable
    kv_tokens: int
    reload_token_s: float
    """Seconds per token that comes back from host memory."""
    host_kv_tokens: int = 0
    """Tokens that host memory holds, where a setting uses it."""
    lengths_by: int = 1
    """The divisor of recorded lengths, so that they suit the device."""
    pauses_by: float = 1.0

    @classmethod
    def load(cls, path: Path) -> "DeviceProfile":
        row = json.loads(path.read_text())
        names = [field.name for field in fields(CostProfile)]
        return cls(
            costs=CostProfile(**{name: row[name] for name in names if name in row}),
            kv_tokens=row["kv_tokens"],
            reload_token_s=row["reload_token_s"],
            host_kv_tokens=row.get("host_kv_tokens", 0),
            lengths_by=row.get("lengths_by", 1),
            pauses_by=row.get("pauses_by", 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How turns are served: what is compared."""

    name: str
    policy: PolicyName = "short_turn_first"
    lease: bool = True
    order: Policy | None = None
    """Instead of ``policy``."""
    lease_s: float | None = None
    """After every answer, human pauses included; None: the cache's estimate after tool calls."""
    queue_protects: bool = True
    """Whether a session whose turn waits keeps its blocks."""
    chunk_tokens: int = 2048
    """Prefill tokens of a step at most."""
    beside_tokens: int | None = None
    """The same of a step that decodes; None: as many."""
    kappa: float = 20.0
    """Seconds of lease per second that restoring the session would take."""


def program_order(facts: SequenceFacts) -> tuple[float, ...]:
    """First come, first served by session."""
    return (facts.branch_start_s, facts.arrival_s)


FCFS_LRU = Mode(name="fcfs + lru", policy="fcfs", lease=False)
CONTINUUM_LIKE = Mode(
    name="continuum-like",
    policy="fcfs",
    order=Policy(key=program_order, strict=True),
    lease_s=20.0,
    queue_protects=False,
    chunk_tokens=700,
)
"""Programs strictly first come, first served, 20 s pins after every answer that are dropped
under pressure, chunks of about 60 ms: our reading of arXiv:2511.02230, not its code."""
OURS = Mode(name="short_turn_first + leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The load and the machine."""

    sessions: int
    """That many run at a time."""
    profile: DeviceProfile
    unlimited_kv: bool = False
    host_tier: bool = False
    """KV that leaves the device stays in host memory."""
    max_running: int = 256
    max_gap_s: float = 300.0
    gap_scale: float = 1.0
    block_size: int = 64
    stride: int = 4
    token_gap_ms: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    latency_s: float
    first_token_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    calls_tool: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results."""

    turns: list[TurnRecord]
    session_s: list[float]
    steps: int
    preemptions: int
    end_s: float

    @property
    def mean_s(self) -> float:
        return sum(t.latency_s for t in self.turns) / len(self.turns)

    @property
    def session_mean_s(self) -> float:
        return sum(self.session_s) / len(self.session_s)

    @property
    def hit_ratio(self) -> float:
        return sum(t.cached_tokens for t in self.turns) / sum(t.prompt_tokens for t in self.turns)

    @property
    def first_token_mean_s(self) -> float:
        return sum(t.first_token_s for t in self.turns) / len(self.turns)

    def percentile_s(self, share: float) -> float:
        ordered = sorted(t.latency_s for t in self.turns)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class _PinsGiveWay(PrefixCache):
    """A cache that does not know which sessions wait, and whose pins any turn may break."""

    def set_queued(self, branch_id: str, queued: bool) -> None:
        pass

    def begin(
        self,
        *,
        branch_id: str,
        tenant: str | None,
        tokens: TokenArray,
        base_branch_id: str | None = None,
        base_offset: int | None = None,
        adapter: str = "",
    ) -> CachedSequence:
        sequence = super().begin(
            branch_id=branch_id,
            tenant=tenant,
            tokens=tokens,
            base_branch_id=base_branch_id,
            base_offset=base_offset,
            adapter=adapter,
        )
        sequence.warm = True
        return sequence


class _Client:
    """One session on its way."""

    __slots__ = (
        "arrived_s",
        "first_token_s",
        "index",
        "num_sub_agents",
        "parent",
        "session",
        "started_s",
    )

    def __init__(self, session: Session, started_s: float, parent: "_Client | None" = None) -> None:
        self.session = session
        self.started_s = started_s
        self.parent = parent
        """The request that waits for this one; None for a session of its own."""
        self.num_sub_agents = 0
        """How many this one waits for."""
        self.index = 0
        self.arrived_s = started_s
        """When the present turn was sent."""
        self.first_token_s: float | None = None

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.index]


class Simulation:
    """One run; ``run`` may be called once."""

    def __init__(self, sessions: list[Session], mode: Mode, setting: Setting) -> None:
        self._mode = mode
        self._setting = setting
        self._now = 0.0
        profile, stride = setting.profile, setting.stride
        self._truth = StepCosts(profile.costs)
        seen = StepCosts(_stretched(self._truth.table, stride))
        self._seen = seen
        kv_tokens = 1 << 28 if setting.unlimited_kv else profile.kv_tokens
        kind = PrefixCache if mode.queue_protects else _PinsGiveWay
        self._link = HostLink(
            kv_tokens // setting.block_size,
            block_s=profile.reload_token_s * setting.block_size,
            clock=lambda: self._now,
        )
        host_tokens = profile.host_kv_tokens if setting.host_tier else 0
        self._cache = kind(
            CacheConfig(
                num_blocks=kv_tokens // setting.block_size,
                block_size=setting.block_size,
                policy="lease" if mode.lease else "lru",
                kappa=mode.kappa,
                rescue_share=1.0 if mode.lease else 0.0,
                host_blocks=host_tokens // setting.block_size,
            ),
            clock=lambda: self._now,
            restore_cost=self._truth.restore_s,
            reload_cost=lambda tokens: tokens * profile.reload_token_s,
            mover=self._link if host_tokens else None,
        )
        config = EngineConfig(
            num_blocks=kv_tokens // setting.block_size,
            block_size=setting.block_size,
            max_batch_tokens=mode.chunk_tokens * stride,
            prefill_tokens_beside_decodes=(mode.beside_tokens or mode.chunk_tokens) * stride,
            token_gap_ms=setting.token_gap_ms * stride,
            max_running=setting.max_running,
            policy=mode.policy,
        )
        self._scheduler = Scheduler(
            self._cache,
            config,
            seen,
            policy=mode.order,
            arrived=self._link.arrived,
            tokens_per_step=stride,
        )
        self._lengths = OutputLengths()
        self._waiting_sessions = deque(sessions)
        self._arrivals: list[tuple[float, int, _Client]] = []
        self._count = 0
        self._clients: dict[Sequence, _Client] = {}
        self._turns: list[TurnRecord] = []
        self._session_s: list[float] = []
        self._preemptions = 0

    def run(self) -> Run:
        """Play all sessions to their end."""
        for _ in range(self._setting.sessions):
            self._next_session()
        steps = 0
        idle_s = 0.0
        while self._arrivals or self._scheduler.queues.has_work:
            self._take_arrivals()
            self._cache.tend()
            plan = self._scheduler.schedule(self._now)
            self._preemptions += plan.preempted
            if plan.exhausted or plan.too_large:
                raise RuntimeError("a turn of the trace does not fit the simulated device")
            chunks = plan.chunks
            if chunks:
                self._play(chunks)
                steps += 1
                idle_s = 0.0
                if steps % _CHECK_EVERY == 0:
                    self._check()
                continue
            # Nothing runs: the next arrival, or a look whether a lease may be broken by now.
            due = self._arrivals[0][0] if self._arrivals else self._now + 1.0
            due = min(due, self._now + _LOOK_S) if self._scheduler.queues.has_work else due
            due = min(due, self._link.free_s) if self._link.free_s > self._now else due
            idle_s += due - self._now if self._scheduler.queues.has_work else 0.0
            if idle_s > _MAX_IDLE_S:
                raise RuntimeError("turns wait and nothing runs: the scheduler is stuck")
            self._now = max(due, self._now)
        self._check()
        return Run(
            turns=self._turns,
            session_s=self._session_s,
            steps=steps,
            preemptions=self._preemptions,
            end_s=self._now,
        )

    def _check(self) -> None:
        stats = self._cache.stats()
        assert stats.free + stats.evictable + stats.protected + stats.reserved == stats.total

    def _next_session(self) -> None:
        if self._waiting_sessions:
            session = self._waiting_sessions.popleft()
            self._arrive(_Client(session, self._now), self._now)

    def _arrive(self, client: _Client, at_s: float) -> None:
        self._count += 1
        heapq.heappush(self._arrivals, (at_s, self._count, client))

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now:
            at_s, _, client = heapq.heappop(self._arrivals)
            turn, name = client.turn, client.session.name
            limit = turn.limit_tokens or OUTPUT_LIMIT
            request = GenerationRequest(
                request_id=name,
                branch_id=name,
                tenant="fleet",
                base_branch_id=name if client.index else None,
                base_offset=turn.kept_tokens if client.index else 0,
                new_tokens=turn.tokens[:0],
                max_new_tokens=limit,
                sampling=SamplingParams(),
            )
            buffer = TokenBuffer(turn.tokens[: turn.prompt_tokens])
            # The engine hears of what came during a step when the step has ended.
            vouched = turn.kept_tokens if client.index else 0
            sequence = Sequence(request, buffer, arrival_s=self._now, vouched=vouched)
            client.arrived_s = at_s
            sequence.expected_output = min(limit, int(self._lengths.expected(name)))
            client.first_token_s = None
            self._clients[sequence] = client
            self._scheduler.queues.add(sequence)

    def _play(self, chunks: list[Chunk]) -> None:
        """Cost the plan, then give each turn what it computed."""
        shared = self._scheduler.queues.decoders.shared_tokens
        work = step_work(chunks, shared=shared)
        sampling = [(c, *self._yield(c)) for c in chunks if c.samples]
        seconds = 0.0
        for step in range(self._setting.stride):
            alive = [c for c, count, known in sampling if known and count > step]
            contexts = sum(c.start + c.num_tokens + step for c in alive)
            read = without_shared(contexts, len(alive), shared)
            decodes = replace(work, decode_rows=len(alive), decode_context=read)
            if step:
                decodes = replace(decodes, prefill_tokens=0, prefill_pairs=0.0, prefill_chunks=0)
            seconds += self._truth.table.step_s(decodes)
        self._now += seconds
        whole = all(count == self._setting.stride for _, count, known in sampling if known)
        if whole or work.prefill_tokens:
            self._seen.observe(work, seconds=seconds)
        yields = {c.sequence: count for c, count, _ in sampling}
        for chunk in chunks:
            self._apply(chunk, yields.get(chunk.sequence, 0))

    def _yield(self, chunk: Chunk) -> tuple[int, bool]:
        """How many tokens a chunk yields, and whether it was a decode."""
        sequence = chunk.sequence
        decode = sequence.num_emitted > 0 and chunk.num_tokens <= self._setting.stride
        left = len(self._clients[sequence].turn.tokens) - len(sequence.buffer)
        return min(left, self._setting.stride if decode else 1), decode

    def _apply(self, chunk: Chunk, count: int) -> None:
        sequence = chunk.sequence
        client = self._clients[sequence]
        if sequence.state is SequenceState.FLUSHING:
            self._scheduler.advance(chunk)
            self._end(sequence)
            return
        if count:
            if client.first_token_s is None:
                client.first_token_s = self._now
            held = len(sequence.buffer)
            sequence.buffer.extend(client.turn.tokens[held : held + count])
        self._scheduler.advance(chunk)
        if count and len(sequence.buffer) == len(client.turn.tokens):
            self._finish(sequence, client)

    def _finish(self, sequence: Sequence, client: _Client) -> None:
        turn = client.turn
        cached = sequence.cached
        assert cached is not None
        assert client.first_token_s is not None
        self._turns.append(
            TurnRecord(
                latency_s=self._now - client.arrived_s,
                first_token_s=client.first_token_s - client.arrived_s,
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=min(cached.num_cached_tokens, turn.prompt_tokens),
                output_tokens=turn.output_tokens,
                calls_tool=turn.calls_tool,
            )
        )
        self._lengths.observe(client.session.name, output_tokens=turn.output_tokens)
        sequence.final_length = len(sequence.buffer)
        sequence.finish = FinishReason.STOP
        if self._scheduler.wants_flush(sequence):
            self._scheduler.queues.flush(sequence)
        else:
            self._end(sequence)
        self._follow(client)

    def _end(self, sequence: Sequence) -> None:
        client = self._clients.pop(sequence)
        answered = not _ended_in_call(sequence, client)
        self._scheduler.queues.release(sequence, lease_s=self._mode.lease_s, answered=answered)

    def _follow(self, client: _Client) -> None:
        sub_agents = client.turn.sub_agents
        client.index += 1
        for session in sub_agents:
            client.num_sub_agents += 1
            self._arrive(_Client(session, self._now, client), self._now)
        if not sub_agents:
            self._go_on(client)

    def _go_on(self, client: _Client) -> None:
        if client.index == len(client.session.turns):
            self._cache.release_branch(client.session.name)
            self._ended(client)
            return
        setting = self._setting
        gap_s = min(client.turn.gap_s, setting.max_gap_s) * setting.gap_scale
        gap_s /= setting.profile.pauses_by
        self._arrive(client, self._now + gap_s)

    def _ended(self, client: _Client) -> None:
        parent = client.parent
        if parent is None:
            self._session_s.append(self._now - client.started_s)
            self._next_session()
            return
        parent.num_sub_agents -= 1
        if not parent.num_sub_agents:
            self._go_on(parent)


def _stretched(table: CostTable, stride: int) -> CostTable:
    """The times of a step that stands for ``stride`` steps of the device, the prompt in the first
    of them."""
    decodes = table.cells[0]
    return CostTable(
        cells=[
            [cell + (stride - 1) * decode_s for cell, decode_s in zip(row, decodes, strict=True)]
            for row in table.cells
        ],
        pair_s=table.pair_s,
        context_s=table.context_s * stride,
        chunk_s=table.chunk_s,
        timed=[list(row) for row in table.timed],
    )


def _ended_in_call(sequence: Sequence, client: _Client) -> bool:
    """Whether the turn that ``sequence`` was ended in a call: the client may be one turn further by
    now."""
    index = client.index
    if index and len(client.session.turns[index - 1].tokens) == sequence.final_length:
        index -= 1
    return client.session.turns[min(index, len(client.session.turns) - 1)].calls_tool
