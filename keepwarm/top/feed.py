"""A server's account of itself, fetched over HTTP and read into typed values.

Knows the form of ``/sessions.json`` and a few names of ``/metrics``, no terminal and no clock.
Whatever the server sends, the outcome is a ``Snapshot`` or a ``FeedError`` with one line for
people.
"""

import http.client
import math
import re
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

TIMEOUT_S = 5.0
MAX_BYTES = 16 * 1024 * 1024

_FIRST_TOKEN = "keepwarm_turn_time_to_first_token_seconds_bucket"
_BUCKET = re.compile(rf'^{_FIRST_TOKEN}{{le="([^"]+)"}} (\S+)$', re.MULTILINE)
_STATES = {"waiting_for_tools": "tools"}
"""Shorter words, for narrow columns."""
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


class FeedError(Exception):
    """The server did not say anything that can be shown; the message is one line."""


class KeyRefused(FeedError):
    """The server is there and wants another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """A budget that holds for a session."""

    scope: str
    """``session``, ``tree``, ``tenant`` or ``key``."""
    owner: str
    """The session whose it is, or whose tree's; the tenant, the key."""
    left: tuple[tuple[str, float], ...]
    spent: tuple[tuple[str, float], ...] = ()
    held: tuple[tuple[str, float], ...] = ()
    """The amount that running turns hold."""
    every: str = ""
    """``day`` or ``month``; empty: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One session as the screen shows it."""

    session: str
    tenant: str
    state: str
    turns: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float
    saved: float
    budget_left: tuple[tuple[str, float], ...]
    idle_s: float
    budgets: tuple[BudgetRow, ...] = ()
    """Each that holds for the session; a server of before they were told has none."""

    @property
    def least_left(self) -> Mapping[str, float]:
        """The amount that may still be spent of each kind that is bounded, whosever budget it
        is."""
        least = dict(self.budget_left)
        for budget in self.budgets:
            for kind, left in budget.left:
                least[kind] = min(left, least.get(kind, left))
        return least

    @property
    def hit_ratio(self) -> float | None:
        """Cached part of its prompt tokens; None before the first."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A server's numbers at one moment."""

    server: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] | None = None
    """The engine's numbers, for operators."""
    num_sessions: int = 0
    """The number of all sessions, also of those that are not among the rows."""
    rows: tuple[SessionRow, ...] = ()
    first_tokens: tuple[tuple[float, float], ...] = ()
    """How many turns had their first token within so many seconds, by seconds; for operators."""

    @property
    def not_ready(self) -> tuple[tuple[str, str], ...]:
        """The parts of what the server stands on that do not hold, and why; for operators."""
        told = _mapping(self.server.get("not_ready"))
        return tuple((printable(str(part)), printable(str(why))) for part, why in told.items())

    def total(self, name: str) -> float:
        """A number of ``totals``, 0 where there is none."""
        return _number(self.totals.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """One server of a cluster."""

    address: str
    state: str
    slot: int
    """The server's slot; 0: it has none."""
    sockets: int
    sessions: int
    kv: float
    """The part of its KV cache that requests hold, 0 to 1."""
    hit_ratio: float | None
    running: int
    waiting: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """A cluster at one moment."""

    cluster: str
    """The cluster's name; "" where the server that was asked stands in none."""
    servers: tuple[ServerRow, ...]


class Feed:
    """One server, asked as often as ``read`` is called; behind the balancer of a cluster one of
    its servers, as long as that lives."""

    def __init__(self, url: str, key: str | None) -> None:
        """
        Args:
            url: of the server, ``http://host:port``; a path such as ``/v1`` is left off.

        Raises:
            ValueError: it is no such URL.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not of the form http://host:port")
        self.address = f"{parts.scheme}://{parts.netloc}"
        # A balancer of ours has all looks go to one server, whose totals and curves they are.
        self.headers = {"X-Session-Id": f"keepwarm-top-{secrets.token_hex(8)}"}
        if key is not None:
            self.headers["Authorization"] = f"Bearer {key}"

    def read(self) -> Snapshot:
        """Ask the server. Waits for some seconds at most.

        Raises:
            FeedError: there is no answer, or none that can be read.
        """
        snapshot = read_sessions(self._get("/sessions.json"))
        if snapshot.engine is None:
            return snapshot
        metrics = self._get("/metrics").decode(errors="replace")
        return replace(snapshot, first_tokens=first_token_buckets(metrics))

    def read_cluster(self) -> ClusterSnapshot:
        """Ask the server for those of its cluster; as ``read``."""
        return read_cluster(self._get("/cluster.json"))

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.address + path, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body: bytes = answer.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise KeyRefused(f"the key is refused (status {error.code})") from error
                raise FeedError(
                    f"{path} answers with status {error.code}: is this a keepwarm server?"
                ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise FeedError(str(said)) from error
        if len(body) > MAX_BYTES:
            raise FeedError(f"{path} answers with more than {MAX_BYTES >> 20} MiB")
        return body


def read_sessions(body: bytes) -> Snapshot:
    """Read ``/sessions.json``.

    Raises:
        FeedError: it is something else.
    """
    told = _object(body)
    engine = told.get("engine")
    return Snapshot(
        server=_mapping(told.get("server")),
        totals=_mapping(told.get("totals")),
        engine=_mapping(engine) if engine is not None else None,
        num_sessions=int(_number(told.get("num_sessions"))),
        rows=tuple(_row(_mapping(row)) for row in _list(told.get("sessions"))),
    )


def read_cluster(body: bytes) -> ClusterSnapshot:
    """Read ``/cluster.json``.

    Raises:
        FeedError: it is something else.
    """
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FeedError("/cluster.json is not JSON: is this a keepwarm server?") from error
    if not isinstance(told, dict) or not isinstance(told.get("servers"), list):
        raise FeedError("/cluster.json has no servers: is this a keepwarm server?")
    return ClusterSnapshot(
        cluster=printable(str(told.get("cluster") or "")),
        servers=tuple(_server(_mapping(row)) for row in told["servers"]),
    )


def first_token_buckets(metrics: str) -> tuple[tuple[float, float], ...]:
    """The histogram of times to the first token: seconds, and how many turns took at most that."""
    try:
        return tuple((float(bound), float(count)) for bound, count in _BUCKET.findall(metrics))
    except ValueError as error:
        raise FeedError("/metrics cannot be read") from error


def printable(text: str) -> str:
    """``text`` without what a terminal could take for an order."""
    return "".join(letter if letter.isprintable() else _UNPRINTABLE for letter in text)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FeedError("/sessions.json is not JSON: is this a keepwarm server?") from error
    if not isinstance(told, dict) or not isinstance(told.get("sessions"), list):
        raise FeedError("/sessions.json has no sessions: is this a keepwarm server?")
    return told


def _row(raw: Mapping[str, Any]) -> SessionRow:
    return SessionRow(
        session=printable(str(raw.get("session", ""))),
        tenant=printable(str(raw.get("tenant", ""))),
        state=printable(_STATES.get(str(raw.get("state")), str(raw.get("state", "")))),
        turns=int(_number(raw.get("turns"))),
        input_tokens=int(_number(raw.get("input_tokens"))),
        cached_tokens=int(_number(raw.get("cached_tokens"))),
        output_tokens=int(_number(raw.get("output_tokens"))),
        cost=_number(raw.get("cost")),
        saved=_number(raw.get("saved")),
        budget_left=_amounts(raw.get("budget_left")),
        idle_s=_number(raw.get("idle_s")),
        budgets=tuple(_budget(_mapping(each)) for each in _list(raw.get("budgets"))),
    )


def _server(raw: Mapping[str, Any]) -> ServerRow:
    ratio = raw.get("hit_ratio")
    return ServerRow(
        address=printable(str(raw.get("address", ""))),
        state=printable(str(raw.get("state", ""))),
        slot=int(_number(raw.get("slot"))),
        sockets=int(_number(raw.get("sockets"))),
        sessions=int(_number(raw.get("sessions"))),
        kv=_number(raw.get("kv")),
        hit_ratio=None if ratio is None else _number(ratio),
        running=int(_number(raw.get("running"))),
        waiting=int(_number(raw.get("waiting"))),
        version=printable(str(raw.get("version", ""))),
    )


def _budget(raw: Mapping[str, Any]) -> BudgetRow:
    return BudgetRow(
        scope=printable(str(raw.get("scope", ""))),
        owner=printable(str(raw.get("owner", ""))),
        left=_amounts(raw.get("left")),
        spent=_amounts(raw.get("spent")),
        held=_amounts(raw.get("held")),
        every=printable(str(raw.get("every") or "")),
    )


def _amounts(raw: object) -> tuple[tuple[str, float], ...]:
    return tuple((printable(kind), _number(value)) for kind, value in _mapping(raw).items())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return value
