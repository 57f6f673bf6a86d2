"""Sessions of a scripted server: responses by their ids, heads by their names, and accounts.

Refuses what a real server refuses, in its words, and counts tokens in its way: a word is a token,
and all that a chain said before is cached. Knows no frames.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keepwarm.scripted.played import Counts
from sessions.durable.call_states import CallState
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.exact_json import dumps
from tools_api.item_identity import normalised
from tools_api.items import Call, CallOutput, Item
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import CreateRequest
from tools_api.tools import wire_tools

KINDS = ("input_uncached", "input_cached", "output", "reasoning", "cost")
_MOST = 1 << 30


@dataclass(slots=True, kw_only=True)
class ScriptedSession:
    """A session of a scripted server."""

    name: str
    head: str | None = None
    turns: int = 0
    parent: "ScriptedSession | None" = None
    bounds: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """By the scope of a budget."""
    spent: dict[str, float] = field(default_factory=dict)

    def parents(self) -> "Iterator[ScriptedSession]":
        """The sessions above it, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    def tree_spent(self, kind: str, among: "Mapping[str, ScriptedSession]") -> float:
        """The amount that it and all sessions below it have spent."""
        own = self.spent.get(kind, 0)
        return own + sum(
            each.tree_spent(kind, among) for each in among.values() if each.parent is self
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A finished response that can be continued."""

    id: str
    session: ScriptedSession
    items: tuple[Item, ...]
    """All that was said up to its end."""
    inputs: int
    """The number of those that stood before its output."""
    wire: dict[str, Any]
    header: bytes
    tokens: int
    calls: dict[str, CallState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A turn that may begin, with what it continues."""

    request: CreateRequest
    session: ScriptedSession
    parent: KeptResponse | None
    header: bytes
    items: tuple[Item, ...]
    """All that the model reads."""
    number: int
    counts: Counts
    """Tokens of the turn's prompt."""


class _Account(NamedTuple):
    scope: str
    bounds: Mapping[str, float]
    spent: Mapping[str, float]


class ScriptedSessions:
    """All that a scripted server keeps."""

    def __init__(self, prices: Mapping[str, float]) -> None:
        """``prices``: of a million tokens, by the kinds of a budget."""
        self.responses: dict[str, KeptResponse] = {}
        self.sessions: dict[str, ScriptedSession] = {}
        self._prices = prices
        self._unnamed = 0

    def begin(self, request: CreateRequest) -> Begun:
        """Find what a request continues.

        Raises:
            ApiError: as a real server's: there is no such response, or calls and outputs do not
                fit each other.
        """
        name = request.keepwarm.session
        parent, new = self._parent(request)
        before = () if parent is None else parent.items
        _check_outputs((*before, *new), request)
        session = self._session(name, parent, request.keepwarm.parent_session)
        for budget in request.keepwarm.budget:
            told = budget.model_dump(include=set(KINDS), exclude_none=True)
            session.bounds[budget.scope] = told
        header = dumps([request.instructions, wire_tools(request.tools)])
        session.turns += 1
        return Begun(
            request=request,
            session=session,
            parent=parent,
            header=header,
            items=(*before, *new),
            number=session.turns,
            counts=self._prompt(parent, header, new),
        )

    def _parent(self, request: CreateRequest) -> tuple[KeptResponse | None, tuple[Item, ...]]:
        """The response that the request continues, and those of its items that are not history."""
        asked, name = request.previous_response_id, request.keepwarm.session
        if asked is not None:
            if asked not in self.responses:
                raise errors.previous_response_not_found(asked)
            return self.responses[asked], request.input
        for kept in reversed(self.responses.values()):
            said = _said(kept.items)
            for length in range(len(request.input), 0, -1):
                if said and said == _said(request.input[:length]):
                    return kept, request.input[length:]
        head = self.sessions[name].head if name in self.sessions else None
        return self.responses.get(head or ""), request.input

    def _session(
        self, name: str | None, parent: KeptResponse | None, above: str | None
    ) -> ScriptedSession:
        if name is None and parent is not None:
            return parent.session
        if name is None:
            self._unnamed += 1
            name = f"sess_{self._unnamed:032x}"
        session = self.sessions.setdefault(name, ScriptedSession(name=name))
        if above is not None:
            self._link(session, self._session(above, None, None))
        return session

    def _link(self, session: ScriptedSession, parent: ScriptedSession) -> None:
        """Put a session below another one, if it may be there."""
        line, gone = [parent, *parent.parents()], session.parent
        most = DEFAULT_LIMITS.max_session_depth
        if any(each is session for each in line):
            why = "the session would be a part of itself"
        elif gone is not None and gone is not parent:
            why = f"the session is a part of {errors.quoted(gone.name)} already"
        elif gone is None and session.turns:
            why = "the session has had turns without it"
        elif len(line) > most:
            why = f"more than {most} sessions above each other"
        else:
            session.parent = parent
            return
        raise errors.invalid_value("keepwarm.parent_session", why)

    def _prompt(
        self, parent: KeptResponse | None, header: bytes, items: tuple[Item, ...]
    ) -> Counts:
        new = sum(map(_words, items))
        if parent is None:
            return Counts(input=new + _header_words(header))
        same = parent.header == header
        before = parent.tokens if same else parent.tokens + _header_words(header)
        return Counts(input=before + new, cached=parent.tokens if same else 0)

    # Budgets

    def room(self, begun: Begun) -> int:
        """Output tokens that the turn may write.

        Raises:
            ApiError: of a budget nothing is left; what fails then is the turn.
        """
        most = begun.request.max_output_tokens or _MOST
        for scope, bounds, spent in self._accounts(begun.session):
            whose = f"the {scope}'s budget"
            uncached = begun.counts.input - begun.counts.cached
            for kind, needed in (("input_uncached", uncached), ("output", 1)):
                if kind not in bounds:
                    continue
                left = int(bounds[kind] - spent.get(kind, 0))
                if needed > left and kind == "output":
                    raise _spent(f"{whose} has no output token left")
                if needed > left:
                    raise _spent(
                        f"the prompt has {needed} uncached tokens, {whose} has {max(left, 0)} left"
                    )
                most = min(most, left) if kind == "output" else most
        return most

    def limited(self, begun: Begun, written: int) -> str:
        """Why a turn of so many tokens ended there."""
        if begun.request.max_output_tokens == written:
            return "max_output_tokens"
        return "budget_exhausted"

    def _accounts(self, session: ScriptedSession) -> list[_Account]:
        found: list[_Account] = []
        for scope in ("turn", "session"):
            if scope in session.bounds:
                spent = session.spent if scope == "session" else {}
                found.append(_Account(scope, session.bounds[scope], spent))
        for above in (session, *session.parents()):
            if "tree" in above.bounds:
                all_spent = {kind: above.tree_spent(kind, self.sessions) for kind in KINDS}
                found.append(_Account("tree", above.bounds["tree"], all_spent))
        return found

    # Ends

    def keep(self, begun: Begun, wire: dict[str, Any], output: list[Item], written: int) -> None:
        """A turn has ended with that output."""
        begun.session.head = wire["id"]
        self.responses[wire["id"]] = KeptResponse(
            id=wire["id"],
            session=begun.session,
            items=(*begun.items, *output),
            inputs=len(begun.items),
            wire=wire,
            header=begun.header,
            tokens=begun.counts.input + written,
        )

    def stats(self, begun: Begun, counts: Counts, reason: str | None) -> dict[str, Any]:
        """``response.keepwarm`` of a turn's end, whose cost is added up here."""
        session, uncached = begun.session, counts.input - counts.cached
        amounts = {
            "input_uncached": uncached,
            "input_cached": counts.cached,
            "output": counts.output,
            "reasoning": counts.reasoning,
        }
        cost = sum(self._prices.get(kind, 0) * many for kind, many in amounts.items()) / 1e6
        for kind, many in {**amounts, "cost": cost}.items():
            session.spent[kind] = session.spent.get(kind, 0) + many
        told = {
            **brief(begun),
            "kv": {
                "cached": counts.cached,
                "written": uncached,
                "miss": {"first_sight": uncached} if uncached else {},
                "block_seconds": 0.0,
            },
            "timing": {"queue_ms": 0.0, "ttft_ms": 0.0, "total_ms": 0.0, "tokens_per_s": None},
            "tokens": {
                "input": counts.input,
                "cached": counts.cached,
                "output": counts.output,
                "reasoning": counts.reasoning,
                "forced": 0,
            },
            "spec": {"drafted": 0, "accepted": 0, "forwards": counts.output},
            "cost": {"turn": cost, "session": session.spent["cost"], "saved": 0.0},
            "budget": self._left(session, counts),
            "warnings": list(begun.request.warnings),
        }
        return told if reason is None else told | {"reason": reason}

    def _left(self, session: ScriptedSession, counts: Counts) -> dict[str, Any]:
        told: dict[str, Any] = {"left": {}, "exhausted": False}
        for scope, bounds, spent in self._accounts(session):
            used = {"output": counts.output} if scope == "turn" else {}
            left = {
                kind: max(bounds[kind] - spent.get(kind, 0) - used.get(kind, 0), 0)
                for kind in bounds
            }
            at = told["left"] if scope == "session" else told.setdefault(scope, {})
            for kind, rest in left.items():
                at[kind] = min(rest, at.get(kind, rest))
            told["exhausted"] |= left.get("output", 1) <= 0
        return told


def brief(begun: Begun) -> dict[str, Any]:
    """``response.keepwarm`` before a turn's end."""
    told: dict[str, Any] = {"session": begun.session.name, "turn": begun.number}
    warnings = begun.request.warnings
    return told | {"warnings": list(warnings)} if warnings else told


def _spent(message: str) -> ApiError:
    return errors.ApiError(message, code="rate_limit_exceeded")


def _said(items: tuple[Item, ...]) -> list[object]:
    """The parts that have to be equal in two histories."""
    return [told for told in map(normalised, items) if told is not None]


def _check_outputs(items: tuple[Item, ...], request: CreateRequest) -> None:
    """As a real server does: each output answers a call, each call has one before the model
    speaks."""
    calls = [item.call_id for item in items if isinstance(item, Call)]
    answered = [item.call_id for item in items if isinstance(item, CallOutput)]
    for call_id in answered:
        if call_id not in calls:
            raise errors.unknown_call(call_id)
    for call_id in calls:
        if call_id not in answered and request.generate:
            raise errors.missing_call_output(call_id)


def _words(item: Item) -> int:
    return len(dumps(item.to_wire()).split()) + 3


def _header_words(header: bytes) -> int:
    return len(header.split())
