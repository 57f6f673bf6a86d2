"""The page for people, and the numbers it polls.

Keeps what no session remembers (totals since the start, the last turns, the engine's last
state) and shows it beside the store's sessions. A tenant sees its own rows only; what
concerns the whole machine is for operators. Money leaves here in dollars.

The page is one document with its style and script inside and loads nothing else; its
content security policy allows exactly those two by their hashes. What clients named
themselves reaches the page as data only, never as markup.
"""

import base64
import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from runtime.messages import EngineInfo, StepStats
from sessions.durable.ledger import TurnReport, TurnUsage, dollars
from sessions.durable.store import SessionView
from sessions.http.message import HttpResponse
from sessions.pages.metrics import kv_usage
from sessions.tenants import Principal

MAX_SESSIONS_SHOWN = 200
MAX_TURNS_SHOWN = 30

_ASSETS = Path(__file__).parent / "dashboard_assets"


@dataclass(slots=True)
class _Totals:
    """Of all turns of one tenant since the server started."""

    streamed_tokens: int = 0
    """Emitted so far; ``usage`` counts a turn when it ends."""
    turns: int = 0
    failed: int = 0
    usage: TurnUsage = field(default_factory=TurnUsage)
    cost: int = 0
    saved: int = 0

    def add(self, report: TurnReport) -> None:
        self.turns += 1
        self.failed += report.status == "failed"
        self.usage = self.usage + report.usage
        self.cost += report.cost
        self.saved += report.saved


class Dashboard:
    """Only the event loop touches it."""

    def __init__(
        self,
        *,
        sessions: Callable[[str | None, int], tuple[int, list[SessionView]]],
        clock: Callable[[], float],
        version: str,
    ) -> None:
        """``sessions`` gives for a tenant (None: all) how many are live, and the most recently
        active, so many at most."""
        self._sessions = sessions
        self._clock = clock
        self._version = version
        self._started = clock()
        self._engine: EngineInfo | None = None
        self._engine_up = False
        self._stats = StepStats()
        self._totals: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._turns: defaultdict[str, deque[tuple[int, float, TurnReport]]] = defaultdict(
            lambda: deque(maxlen=MAX_TURNS_SHOWN)
        )
        self._numbers = itertools.count()
        self._page = _load_page()

    def engine_ready(self, info: EngineInfo) -> None:
        self._engine = info
        self._engine_up = True

    def engine_died(self) -> None:
        self._engine_up = False
        self._stats = StepStats()

    def step_finished(self, stats: StepStats) -> None:
        self._stats = stats

    def tokens_arrived(self, tenant: str, count: int) -> None:
        self._totals[tenant].streamed_tokens += count

    def turn_finished(self, report: TurnReport) -> None:
        self._totals[report.tenant].add(report)
        self._turns[report.tenant].append((next(self._numbers), self._clock(), report))

    def page(self) -> HttpResponse:
        """The document; it holds no data and is the same for everyone."""
        return self._page

    def sessions(self, principal: Principal, *, num_connections: int) -> HttpResponse:
        """``/sessions.json``: what the page shows, for ``principal``'s eyes."""
        tenants = set(self._totals) if principal.operator else {principal.tenant}
        owner = None if principal.operator else principal.tenant
        num_sessions, views = self._sessions(owner, MAX_SESSIONS_SHOWN)
        now = self._clock()
        body = {
            "server": self._server(principal, now, num_connections),
            "engine": self._engine_state() if principal.operator else None,
            "totals": self._sum(tenants),
            "num_sessions": num_sessions,
            "sessions": [_session(view) for view in views],
            "turns": self._last_turns(tenants, now),
        }
        return HttpResponse(
            status=HTTPStatus.OK, content_type="application/json", body=orjson.dumps(body)
        )

    def _server(self, principal: Principal, now: float, num_connections: int) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "version": self._version,
            "uptime_s": now - self._started,
            "engine_up": self._engine_up,
            "operator": principal.operator,
        }
        if self._engine is not None:
            facts |= {
                "model": self._engine.model_name,
                "device": self._engine.device,
                "dtype": self._engine.dtype,
                "parameters": self._engine.num_parameters,
                "max_context_tokens": self._engine.max_context_tokens,
                "kv_capacity_tokens": self._engine.kv_capacity_tokens,
            }
        if principal.operator:
            facts["connections"] = num_connections
        return facts

    def _engine_state(self) -> dict[str, Any]:
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

    def _sum(self, tenants: set[str]) -> dict[str, Any]:
        parts = [self._totals[name] for name in tenants if name in self._totals]
        usage = sum((part.usage for part in parts), TurnUsage())
        return {
            "streamed_tokens": sum(part.streamed_tokens for part in parts),
            "turns": sum(part.turns for part in parts),
            "failed": sum(part.failed for part in parts),
            **_tokens(usage),
            "cost": dollars(sum(part.cost for part in parts)),
            "saved": dollars(sum(part.saved for part in parts)),
        }

    def _last_turns(self, tenants: set[str], now: float) -> list[dict[str, Any]]:
        found = [entry for name in tenants for entry in self._turns.get(name, ())]
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [_turn(report, now - at) for _, at, report in found[:MAX_TURNS_SHOWN]]


def _tokens(usage: TurnUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "forced_tokens": usage.forced_tokens,
        "hit_ratio": _ratio(usage.cached_tokens, usage.input_tokens),
    }


def _session(view: SessionView) -> dict[str, Any]:
    left = dict(view.budget_left)
    return {
        "session": view.session,
        "tenant": view.tenant,
        "state": view.state,
        "turns": view.turns,
        "input_tokens": view.input_tokens,
        "cached_tokens": view.cached_tokens,
        "output_tokens": view.output_tokens,
        "forced_tokens": view.forced_tokens,
        "hit_ratio": _ratio(view.cached_tokens, view.input_tokens),
        "cost": dollars(view.cost),
        "saved": dollars(view.saved),
        "budget_left": left | {"cost": dollars(left["cost"])} if "cost" in left else left,
        "idle_s": view.idle_s,
    }


def _turn(report: TurnReport, ago_s: float) -> dict[str, Any]:
    usage = report.usage
    decode_s = report.total_s - (report.ttft_s or 0.0)
    return {
        "session": report.session,
        "tenant": report.tenant,
        "turn": report.turn,
        "status": report.status,
        "reason": report.reason,
        **_tokens(usage),
        "cost": dollars(report.cost),
        "ttft_s": report.ttft_s,
        "tokens_per_s": (usage.output_tokens - 1) / decode_s
        if usage.output_tokens > 1 and decode_s > 0
        else None,
        "ago_s": ago_s,
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _load_page() -> HttpResponse:
    style = (_ASSETS / "dashboard.css").read_text(encoding="utf-8")
    script = (_ASSETS / "dashboard.js").read_text(encoding="utf-8")
    page = (_ASSETS / "dashboard.html").read_text(encoding="utf-8")
    page = page.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HttpResponse(
        status=HTTPStatus.OK,
        content_type="text/html; charset=utf-8",
        body=page.encode(),
        headers=(("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer")),
    )


def _hash(source: str) -> str:
    """The source expression of an inline block (Content Security Policy 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
