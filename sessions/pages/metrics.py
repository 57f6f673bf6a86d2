"""Metrics for Prometheus: counters, gauges and histograms named ``keepwarm_*``.

Base units are in the names (seconds, dollars, tokens); no label takes a value that a client
chose. ``docs/metrics.md`` explains each one, and a test holds the two together. Every
``Metrics`` has a registry of its own, so that two servers in one process do not meet.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.messages import EngineInfo, StepStats
from sessions.durable.ledger import COMPACTION, TurnReport, TurnUsage, Unsettled, dollars
from sessions.durable.miss_reasons import MissReason
from sessions.ground import PARTS, Ground
from sessions.journal.records import SESSION_MOVED, TurnRecord
from sessions.pages.memory_metrics import MemoryMetrics
from sessions.pages.state_metrics import StateMetrics
from sessions.pages.tenant_metrics import TenantMetrics
from sessions.pages.watcher import Watcher
from sessions.pages.window_metrics import WindowMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1, 2.5)
_PER_FORWARD = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32)
_RATIO = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 8, 16)
_STEP_TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_BLOCK_STATES = ("free", "evictable", "protected", "reserved")
_STATUSES = ("completed", "incomplete", "failed", "cancelled")
_RECASTS = ("cleared", "summarised")
_BUDGET_OUTCOMES = ("refused", "cut")
_AHEAD_OUTCOMES = ("held", "second_pass", "dropped")
_FORWARDS = (
    ("decode", "replayed"),
    ("decode", "eager"),
    ("prefill", "replayed"),
    ("prefill", "eager"),
    ("any", "failed"),
)


def _add(series: Counter, count: float) -> None:
    """Most of what a step could count it does not, and each call takes a lock."""
    if count:
        series.inc(count)


class Metrics(Watcher):
    """All metrics of one server. Not thread-safe: only the event loop touches them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ground = Ground()
        """The ground under the server."""
        self.tenants = TenantMetrics(self.registry)
        self._turns()
        self._tokens()
        self._engine()
        self._front_end()
        self.memory = MemoryMetrics()
        """The memory of its processes."""
        self.registry.register(self.memory)

    def _turns(self) -> None:
        self._finished = self._counter("turns", "Turns that ended, by status.", "status")
        for status in _STATUSES:
            self._finished.labels(status)
        self._out_of_budget = self._counter(
            "budget_refusals", "Turns that a budget refused or cut, whosever it is.", "outcome"
        )
        for outcome in _BUDGET_OUTCOMES:
            self._out_of_budget.labels(outcome)
        self._warned = self._counter(
            "budget_warnings", "Budgets of which the part that is to be told is spent.", "scope"
        )
        for scope in ("tenant", "key"):
            self._warned.labels(scope)
        self._recasts = self._counter(
            "context_recasts", "Turns whose context was recast before them, by how.", "kind"
        )
        for kind in _RECASTS:
            self._recasts.labels(kind)
        self._first_token = self._histogram(
            "turn_time_to_first_token_seconds",
            "From a turn's arrival to its first token.",
            _SECONDS,
        )
        self._token_gap = self._histogram(
            "inter_token_seconds",
            "Between two steps that gave the same turn tokens.",
            _SHORT_SECONDS,
        )
        self._queue = self._histogram(
            "turn_queue_seconds", "From a turn's arrival to its admission by the engine.", _SECONDS
        )
        self._duration = self._histogram(
            "turn_duration_seconds", "From a turn's arrival to its end.", _SECONDS
        )
        self._hit_ratio = self._histogram(
            "turn_cache_hit_ratio", "Cached part of a turn's prompt, 0 to 1.", _RATIO
        )

    def _tokens(self) -> None:
        self._input = self._counter("input_tokens", "Prompt tokens, cached or computed.")
        self._cached = self._counter("cached_tokens", "Prompt tokens found in the prefix cache.")
        self._missed = self._counter(
            "missed_tokens", "Prompt tokens that had to be computed, by cause.", "cause"
        )
        for reason in MissReason:
            self._missed.labels(reason.value)
        self._output = self._counter("output_tokens", "Tokens emitted.")
        self._reasoning = self._counter("reasoning_tokens", "Emitted tokens that were thinking.")
        self._forced = self._counter("spec_forced_tokens", "Emitted tokens a grammar forced.")
        self._drafted = self._counter("spec_drafted_tokens", "Draft tokens that were verified.")
        self._accepted = self._counter("spec_accepted_tokens", "Draft tokens that were accepted.")
        self._forwards = self._counter("spec_forwards", "Forward passes that gave a turn tokens.")
        self._per_forward = self._histogram(
            "spec_tokens_per_forward", "Tokens of a turn by its forward passes.", _PER_FORWARD
        )
        self._cost = self._counter(
            "cost_dollars", "What finished turns cost by the price table, and KV kept after them."
        )
        self._cost_nano = self._counter("cost_nanodollars", "The same in whole nano-dollars.")
        self._saved = self._counter("saved_dollars", "What the prefix cache saved of that.")
        self._residency = self._counter(
            "kv_residency_block_microseconds",
            "KV blocks on the device times microseconds, as sessions were charged.",
        )
        self._dropped = self._counter(
            "kv_residency_drops", "Branches told to leave the device by a budget of residency."
        )

    def _engine(self) -> None:
        self._up = self._gauge("engine_up", "1 while the engine is ready, else 0.")
        self._restarts = self._counter(
            "engine_restarts", "Times a dead or hung engine was replaced."
        )
        self._info = self._gauge("engine_info", "Always 1.", "model", "device", "dtype")
        self._running = self._gauge("turns_running", "Turns being computed.")
        self._waiting = self._gauge("turns_waiting", "Turns waiting for admission.")
        self._sessions = self._gauge("engine_sessions", "Sessions whose tokens the engine holds.")
        self._capacity = self._gauge("kv_capacity_tokens", "Tokens the KV pool can hold.")
        self._ranks = self._gauge("engine_ranks", "Processes that compute the model together.")
        blocks = self._gauge("kv_blocks", "KV blocks, by state.", "state")
        self._blocks_series = [blocks.labels(state) for state in _BLOCK_STATES]
        self._usage = self._gauge(
            "kv_usage_ratio", "Part of the KV blocks that running turns need, 0 to 1."
        )
        self._step = self._histogram(
            "engine_step_seconds", "Duration of an engine step.", _SHORT_SECONDS
        )
        self._step_prefill = self._histogram(
            "engine_step_prefill_tokens",
            "Prompt tokens of the steps that compute some.",
            _STEP_TOKENS,
        )
        self._cost_ratio = self._histogram(
            "engine_step_cost_ratio", "Duration of a step over its prediction.", _RATIOS
        )
        self._gap_bound = self._gauge(
            "token_gap_bound_seconds",
            "Longest gap between tokens that prefill beside decodes may make.",
        )
        self._forward_passes()
        self._prefill = self._counter("prefill_tokens", "Prompt tokens computed.")
        self._decode = self._counter("decode_tokens", "Tokens computed while decoding.")
        self._preemptions = self._counter("preemptions", "Turns put back to free KV blocks.")
        self._block_waits = self._counter("kv_block_waits", "Looks at turns that lack KV blocks.")
        self._evicted = self._counter("evicted_blocks", "KV blocks forgotten to make room.")
        self._tiers()
        self._states = StateMetrics(self.registry)
        self._windows = WindowMetrics(self.registry)
        self._grammar_checks = self._histogram(
            "grammar_check_seconds", "From asking about a grammar to the verdict.", _SHORT_SECONDS
        )
        self._grammar_errors = self._counter(
            "grammar_errors", "Grammars that were refused or gave up, by stage.", "stage"
        )
        self._mask = self._counter("grammar_mask_seconds", "Time spent on filling grammar masks.")
        self._rank_wait = self._counter(
            "engine_rank_wait_seconds", "Time of steps in sums with other ranks, waits included."
        )

    def _forward_passes(self) -> None:
        self._ahead = self._counter(
            "engine_steps_ahead",
            "Steps begun before the last one's tokens were known, by outcome.",
            "outcome",
        )
        self._ahead_series = [self._ahead.labels(outcome) for outcome in _AHEAD_OUTCOMES]
        self._graphs = self._counter(
            "engine_forwards",
            "Forward passes on a GPU, by whether they ran as recorded.",
            "step",
            "outcome",
        )
        self._graphs_series = [self._graphs.labels(*labels) for labels in _FORWARDS]

    def _tiers(self) -> None:
        self._tier_blocks = self._gauge(
            "kv_tier_blocks", "KV blocks below the device, by tier and state.", "tier", "state"
        )
        self._tier_series = [
            (self._tier_blocks.labels(tier, "used"), self._tier_blocks.labels(tier, "free"))
            for tier in ("host", "disk")
        ]
        hits = self._counter("kv_hit_tokens", "Prompt tokens found in the cache, by tier.", "tier")
        self._hits_series = hits.labels("device"), hits.labels("host")
        self._moved = self._counter(
            "kv_transfer_bytes", "KV copied between tiers, by path.", "path"
        )
        self._moving = self._counter(
            "kv_transfer_seconds", "Time in which copies between tiers ran, by path.", "path"
        )
        self._damaged = self._counter(
            "kv_damaged_blocks", "Blocks the disk did not hold as they were written."
        )

    def _front_end(self) -> None:
        self._connections = self._gauge(
            "connections", "Open WebSocket connections, and turns asked for over HTTP."
        )
        self._closes = self._counter(
            "connection_closes", "WebSocket connections the server closed, by close code.", "code"
        )
        self._errors = self._counter("errors", "Error events sent, by code.", "code")
        self._responses = self._counter("http_responses", "HTTP answers, by status.", "status")
        self._journal_damaged = self._gauge(
            "journal_damaged", "1 once the journal was found damaged, else 0."
        )
        reasons = self._gauge(
            "not_ready", "1 while a part that the server stands on does not hold, else 0.", "part"
        )
        for part in PARTS:
            reasons.labels(part).set_function(partial(self._fails, part))

    def _fails(self, part: str) -> bool:
        return part in self.ground.reasons

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"keepwarm_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"keepwarm_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"keepwarm_{name}", text, buckets=buckets, registry=self.registry)

    def engine_ready(self, info: EngineInfo) -> None:
        self._up.set(1)
        self._capacity.set(info.kv_capacity_tokens)
        self._ranks.set(info.ranks)
        self._info.clear()
        self._info.labels(info.model_name, info.device, info.dtype).set(1)

    def engine_died(self) -> None:
        """The engine is gone, and its blocks and sessions with it."""
        self._up.set(0)
        for each in (self._running, self._waiting, self._sessions, self._usage):
            each.set(0)
        for series in self._blocks_series:
            series.set(0)
        self._states.engine_died()
        self._windows.engine_died()
        self.memory.engine_died()

    def engine_restarted(self) -> None:
        self._restarts.inc()

    def step_finished(self, stats: StepStats) -> None:
        """Take the engine's state after a step."""
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._sessions.set(stats.branches)
        counts = (
            stats.blocks_free,
            stats.blocks_evictable,
            stats.blocks_protected,
            stats.blocks_reserved,
        )
        for series, count in zip(self._blocks_series, counts, strict=True):
            series.set(count)
        self._usage.set(kv_usage(stats))
        for seconds in stats.steps_s:
            self._step.observe(seconds)
        for tokens in stats.steps_prefill_tokens:
            if tokens:
                self._step_prefill.observe(tokens)
        for ratio in stats.steps_cost_ratio:
            self._cost_ratio.observe(ratio)
        self._gap_bound.set(stats.token_gap_bound_s)
        ahead = (
            stats.ahead_held_delta,
            stats.ahead_second_passes_delta,
            stats.ahead_dropped_delta,
        )
        for counter, count in zip(self._ahead_series, ahead, strict=True):
            _add(counter, count)
        graphs = (
            stats.graph_replayed_delta,
            stats.graph_eager_delta,
            stats.graph_replayed_chunks_delta,
            stats.graph_eager_chunks_delta,
            stats.graph_failed_delta,
        )
        for counter, count in zip(self._graphs_series, graphs, strict=True):
            _add(counter, count)
        _add(self._prefill, stats.prefill_tokens_delta)
        _add(self._decode, stats.decode_tokens_delta)
        _add(self._preemptions, stats.preemptions_delta)
        _add(self._block_waits, stats.block_waits_delta)
        _add(self._evicted, stats.evicted_blocks_delta)
        _add(self._mask, stats.mask_s_delta)
        _add(self._rank_wait, stats.rank_wait_s_delta)
        self._tiers_changed(stats)
        self._states.step_finished(stats)
        if stats.window_blocks_total:
            self._windows.step_finished(stats)
        self.memory.engine_told(stats.memory_bytes)

    def _tiers_changed(self, stats: StepStats) -> None:
        tiers = (
            (stats.host_blocks_used, stats.host_blocks_total),
            (stats.disk_blocks_used, stats.disk_blocks_total),
        )
        for (used, free), (num_used, total) in zip(self._tier_series, tiers, strict=True):
            used.set(num_used)
            free.set(total - num_used)
        hits = stats.device_hit_tokens_delta, stats.host_hit_tokens_delta
        for counter, count in zip(self._hits_series, hits, strict=True):
            _add(counter, count)
        _add(self._damaged, stats.damaged_blocks_delta)
        for path, moved in stats.transfer_bytes_delta.items():
            self._moved.labels(path).inc(moved)
        for path, spent in stats.transfer_s_delta.items():
            self._moving.labels(path).inc(spent)

    def tokens_arrived(self, tenant: str, count: int, gap_s: float | None) -> None:
        if gap_s is not None:
            self._token_gap.observe(gap_s)

    def watch_journal(self, damaged: Callable[[], bool]) -> None:
        """Ask that whenever the numbers are."""
        self._journal_damaged.set_function(damaged)

    def turn_cut_short(self, record: TurnRecord) -> None:
        """A server died while this turn ran: what it held is spent."""
        self._finished.labels(record.status).inc()
        self.tenants.turn_ended(record.tenant)
        self._spent(record.tenant, record.usage, record.cost, record.saved)

    def _spent(self, tenant: str, usage: TurnUsage, cost: int, saved: int) -> None:
        self.tenants.spent(tenant, usage, cost)
        self._input.inc(usage.input_tokens)
        self._cached.inc(usage.cached_tokens)
        self._output.inc(usage.output_tokens)
        self._reasoning.inc(usage.reasoning_tokens)
        self._cost.inc(dollars(cost))
        self._cost_nano.inc(cost)
        self._saved.inc(dollars(saved))
        self._residency.inc(usage.residency)

    def turn_finished(self, report: TurnReport) -> None:
        """A turn has ended; what it spent counts at the server that has its session."""
        if report.reason == SESSION_MOVED:
            report = replace(report, usage=TurnUsage(), cost=0, saved=0, misses=())
        usage = report.usage
        if report.status == COMPACTION:
            self._missed_tokens(report)
            self._spent(report.tenant, usage, report.cost, report.saved)
            return
        self._finished.labels(report.status).inc()
        self.tenants.turn_ended(report.tenant)
        for scope in report.warned:
            self._warned.labels(scope).inc()
        if report.recast is not None:
            self._recasts.labels(report.recast).inc()
        if report.out_of_budget is not None:
            self._out_of_budget.labels(report.out_of_budget).inc()
        self._queue.observe(report.queue_s)
        self._duration.observe(report.total_s)
        if report.ttft_s is not None:
            self._first_token.observe(report.ttft_s)
        if usage.input_tokens:
            self._hit_ratio.observe(usage.cached_tokens / usage.input_tokens)
        self._missed_tokens(report)
        self._forced.inc(usage.forced_tokens)
        self._drafted.inc(usage.drafted_tokens)
        self._accepted.inc(usage.accepted_tokens)
        self._forwards.inc(usage.forwards)
        if usage.forwards:
            self._per_forward.observe(usage.output_tokens / usage.forwards)
        self._spent(report.tenant, usage, report.cost, report.saved)

    def _missed_tokens(self, report: TurnReport) -> None:
        for miss in report.misses:
            self._missed.labels(miss.reason.value).inc(miss.tokens)

    def residency_settled(self, tenant: str, unsettled: Unsettled) -> None:
        """The charge for a session's KV after its last turn was recorded."""
        self._spent(tenant, TurnUsage(residency=unsettled.block_us), unsettled.cost, 0)

    def kv_dropped(self, branches: int) -> None:
        """The engine was told to drop so many branches, whose budgets are used up."""
        self._dropped.inc(branches)

    def grammar_checked(self, seconds: float, *, refused: bool) -> None:
        """A turn's grammar was compiled on trial, or known."""
        self._grammar_checks.observe(seconds)
        if refused:
            self._grammar_errors.labels("compile").inc()

    def grammar_gave_up(self) -> None:
        """A turn ended because the grammar could not go on."""
        self._grammar_errors.labels("mask").inc()

    def error_sent(self, tenant: str, code: str | None) -> None:
        """``code`` is one of ours or None."""
        self._errors.labels(code or "none").inc()

    def connection_opened(self) -> None:
        self._connections.inc()

    def connection_gone(self) -> None:
        self._connections.dec()

    def connection_closed(self, code: int) -> None:
        """The server closed a WebSocket with ``code``."""
        self._closes.labels(str(code)).inc()

    def http_answered(self, status: int) -> None:
        self._responses.labels(str(status)).inc()

    def watch_spans(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Ask ``counts`` at every scrape what has become of turns' spans."""
        self.registry.register(_SpanCounts(counts))

    def text(self) -> bytes:
        """Everything in Prometheus' text format, content type ``CONTENT_TYPE``."""
        return generate_latest(_WithoutCreated(self.registry))


class _WithoutCreated(CollectorRegistry):
    """A registry's families without the ``*_created`` series, which nobody asks for here."""

    def __init__(self, registry: Collector) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class _SpanCounts(Collector):
    """Another thread counts them; here they are read."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        text = "Turns by what became of their spans."
        family = CounterMetricFamily("keepwarm_spans_turns", text, labels=["outcome"])
        for outcome, turns in self._counts().items():
            family.add_metric([outcome], turns)
        yield family


def kv_usage(stats: StepStats) -> float:
    """Part of the KV blocks that cannot be taken from whoever holds them, 0 to 1."""
    if not stats.blocks_total:
        return 0.0
    return (stats.blocks_protected + stats.blocks_reserved) / stats.blocks_total
