"""State of the dashboard: totals, turns, curves, the engine's last state.

Keeps what no session remembers and shows it beside the store's sessions, to the live views
(``sessions.pages.views``) and to ``/sessions.json``, which scripts and terminals poll. A tenant
sees its own rows only; what concerns the whole machine is for operators. Money leaves here in
dollars.
"""

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

from runtime.messages import EngineInfo, StepStats
from sessions.durable.ledger import TurnReport, TurnUsage, Unsettled, dollars
from sessions.durable.miss_reasons import MissReason
from sessions.durable.store import Store
from sessions.ground import Ground
from sessions.http.message import HttpResponse
from sessions.journal.samples import Sample
from sessions.pages.cache_picture import CachePictures
from sessions.pages.history import History
from sessions.pages.metrics import kv_usage
from sessions.pages.rows import miss_rows, session_row, tokens, turn_row
from sessions.pages.turn_log import TurnHistory
from sessions.pages.watcher import Watcher
from sessions.tenants import Principal

MAX_SESSIONS_SHOWN = 200
MAX_TURNS_SHOWN = 30


@dataclass(slots=True)
class Totals:
    """Totals of all turns of one tenant since the server started."""

    streamed_tokens: int = 0
    """Emitted so far; ``usage`` counts a turn when it ends."""
    turns: int = 0
    failed: int = 0
    usage: TurnUsage = field(default_factory=TurnUsage)
    cost: int = 0
    saved: int = 0
    missed: Counter[MissReason] = field(default_factory=Counter)
    budget_ends: Counter[str] = field(default_factory=Counter)
    """Turns that a budget ``refused`` or ``cut``."""
    errors: Counter[str] = field(default_factory=Counter)
    """Number of error events, by code."""

    def add(self, report: TurnReport) -> None:
        """Count a turn that has ended."""
        self.turns += report.is_turn
        self.failed += report.status == "failed"
        self.usage = self.usage + report.usage
        self.cost += report.cost
        self.saved += report.saved
        if report.out_of_budget is not None:
            self.budget_ends[report.out_of_budget] += 1
        for miss in report.misses:
            self.missed[miss.reason] += miss.tokens

    def settle(self, unsettled: Unsettled) -> None:
        """Count what KV was charged after its session's last turn."""
        self.usage = self.usage + TurnUsage(residency=unsettled.block_us)
        self.cost += unsettled.cost

    def merge(self, other: "Totals") -> None:
        """Count what ``other`` has counted."""
        for name in ("streamed_tokens", "turns", "failed", "cost", "saved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.usage = self.usage + other.usage
        self.missed += other.missed
        self.budget_ends += other.budget_ends
        self.errors += other.errors

    @property
    def out_of_budget(self) -> int:
        """Turns that a budget refused or cut."""
        return self.budget_ends.total()

    def numbers(self) -> dict[str, Any]:
        """The totals as a page shows them."""
        return {
            "streamed_tokens": self.streamed_tokens,
            "turns": self.turns,
            "failed": self.failed,
            **tokens(self.usage),
            "cost": dollars(self.cost),
            "saved": dollars(self.saved),
        }


class Dashboard(Watcher):
    """Only the event loop touches it."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Callable[[], float],
        version: str,
        text_of: Callable[[Sequence[int]], str],
    ) -> None:
        """``text_of``: what tokens say, for the picture of the cache."""
        self.store = store
        self.log = TurnHistory()
        self.history = History()
        self.pictures = CachePictures(session_of_branch=self.log.session_of_branch, text_of=text_of)
        self.restarts = 0
        self.ground = Ground()
        """The ground under the server."""
        self._clock = clock
        self._version = version
        self._started = clock()
        self._engine: EngineInfo | None = None
        self._engine_up = False
        self._stats = StepStats()
        self._totals: defaultdict[str, Totals] = defaultdict(Totals)
        self._turns: defaultdict[str, deque[tuple[int, float, TurnReport]]] = defaultdict(
            lambda: deque(maxlen=MAX_TURNS_SHOWN)
        )
        self._numbers = itertools.count()

    @property
    def now(self) -> float:
        """Monotonic seconds, as all times that are handed out."""
        return self._clock()

    # What happens

    def engine_ready(self, info: EngineInfo) -> None:
        """The engine has started, with these properties."""
        self._engine = info
        self._engine_up = True

    def engine_died(self) -> None:
        """The engine is gone, and what it did with it."""
        self._engine_up = False
        self._stats = StepStats()
        self.pictures.forget()

    def engine_restarted(self) -> None:
        """Another engine has taken its place."""
        self.restarts += 1
        self.history.engine_restarted(self._clock())

    def step_finished(self, stats: StepStats) -> None:
        """Take the engine's state after a step."""
        self._stats = stats
        if stats.steps_cost_ratio:
            self.history.steps_finished(stats, self._clock())

    def tokens_arrived(self, tenant: str, count: int, gap_s: float | None) -> None:
        self._totals[tenant].streamed_tokens += count

    def turn_finished(self, report: TurnReport) -> None:
        """Take a turn into totals, curves and its session's log."""
        now = self._clock()
        self._totals[report.tenant].add(report)
        self._turns[report.tenant].append((next(self._numbers), now, report))
        self.log.add(report, now)
        self.history.turn_finished(report, now)

    def residency_settled(self, tenant: str, unsettled: Unsettled) -> None:
        """Take what KV was charged into totals and curves."""
        self._totals[tenant].settle(unsettled)
        self.history.cost_settled(tenant, unsettled.cost, self._clock())

    def error_sent(self, tenant: str, code: str | None) -> None:
        """An ``error`` event went to a client of the tenant; ``code`` is one of ours."""
        self._totals[tenant].errors[code or "none"] += 1

    def tick(self) -> None:
        """Let time pass; once a second."""
        self.history.sample(self._stats, self._clock())

    def samples(self, *, end: bool) -> Sequence[Sample]:
        """The curves' samples that the journal is to keep now; ``end``: also of a minute that has
        not ended. Empty where nothing is kept."""
        recorder = self.history.recorder
        if recorder is None:
            return ()
        return recorder.so_far() if end else recorder.ended()

    # What is shown

    @property
    def known_tenants(self) -> set[str]:
        """Tenants of whom something was heard."""
        return set(self._totals)

    def visible_tenants(self, principal: Principal) -> set[str]:
        """Tenants of whom ``principal`` may see rows, as far as they have any."""
        return set(self._totals) if principal.operator else {principal.tenant}

    def totals(self, tenants: set[str]) -> Totals:
        """Totals of these tenants together."""
        together = Totals()
        for name in tenants & self._totals.keys():
            together.merge(self._totals[name])
        return together

    def sessions(self, principal: Principal, *, num_connections: int) -> HttpResponse:
        """``/sessions.json``: the same for programs."""
        tenants = self.visible_tenants(principal)
        owner = None if principal.operator else principal.tenant
        num_sessions, views = self.store.sessions(owner, MAX_SESSIONS_SHOWN)
        now = self._clock()
        totals = self.totals(tenants)
        server = self.server_facts(principal) | {"uptime_s": now - self._started}
        if principal.operator:
            server["connections"] = num_connections
        body = {
            "server": server,
            "engine": self.engine_state() if principal.operator else None,
            "totals": totals.numbers(),
            "misses": miss_rows(totals.missed),
            "num_sessions": num_sessions,
            "sessions": [session_row(view) for view in views],
            "turns": self._last_turns(tenants, now),
        }
        return HttpResponse(
            status=HTTPStatus.OK, content_type="application/json", body=orjson.dumps(body)
        )

    def server_facts(self, principal: Principal) -> dict[str, Any]:
        """Facts that change only when the engine does, or when the ground gives way."""
        facts: dict[str, Any] = {
            "version": self._version,
            "engine_up": self._engine_up,
            "not_ready": dict(self.ground.reasons) if principal.operator else {},
            "operator": principal.operator,
        }
        if self._engine is not None:
            facts |= {
                "model": self._engine.model_name,
                "device": self._engine.device,
                "dtype": self._engine.dtype,
                "parameters": self._engine.num_parameters,
                "max_context_tokens": self._engine.max_context_tokens,
                "kv_block_tokens": self._engine.block_size,
                "kv_capacity_tokens": self._engine.kv_capacity_tokens,
            }
        return facts

    def prompts(self) -> tuple[int, int]:
        """Tokens of all prompts since the server started, and those that came from the cache."""
        usages = [each.usage for each in self._totals.values()]
        asked = sum(each.input_tokens for each in usages)
        return asked, sum(each.cached_tokens for each in usages)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV the engine holds; 0 before it has started."""
        return 0 if self._engine is None else self._engine.kv_capacity_tokens

    @property
    def started_s(self) -> float:
        """When the server started, on its monotonic clock."""
        return self._started

    def engine_state(self) -> dict[str, Any]:
        """The engine's numbers, as they were after its last step."""
        stats = self._stats
        return {
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_usage": kv_usage(stats),
            "kv_blocks": {
                "protected": stats.blocks_protected,
                "reserved": stats.blocks_reserved,
                "evictable": stats.blocks_evictable,
                "free": stats.blocks_free,
            },
        }

    def _last_turns(self, tenants: set[str], now: float) -> list[dict[str, Any]]:
        found = [entry for name in tenants for entry in self._turns.get(name, ())]
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [turn_row(report, now - at) for _, at, report in found[:MAX_TURNS_SHOWN]]
