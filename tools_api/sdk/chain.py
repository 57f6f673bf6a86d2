"""Where a session stands: its last response, its history, and what it still owes.

Knows no sockets and no tools. ``tools_api.sdk.turn`` moves it on.

Always true: ``history`` holds what stands before ``head`` and nothing else, so that a server
which has lost the chain can be sent the whole of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tools_api.sdk.answers import Response, SessionStats
from tools_api.sdk.late_tools import items_for, restricted, wire_tool
from tools_api.sdk.options import AnyTool, TurnOptions, wire_options

MOST_REPORTS = 64
"""Calls of which a turn tells how their tools ran."""


class Mark(NamedTuple):
    """The end of a turn, to come back to."""

    head: str | None
    length: int
    """Items of the history up to here."""
    cut_from: str | None
    """The newest cut up to here."""


@dataclass(slots=True, kw_only=True)
class Chain:
    """Where a session stands."""

    defaults: TurnOptions
    """Options of every turn; a turn's own take precedence."""
    head: str | None = None
    """Id of the last response, None before the first."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """All items up to ``head``, inputs and outputs, for a server that has lost the chain."""
    complete: bool = True
    """``history`` goes back to the beginning."""
    owed: list[dict[str, Any]] = field(default_factory=list)
    """Outputs of calls up to ``head`` that go in front of the next turn's input."""
    heard: list[dict[str, Any]] = field(default_factory=list)
    """What was said to the response at ``head`` while it ran: the server has it, and puts it before
    the next turn's input."""
    heard_on: object = None
    """The socket whose server it is."""
    ran: list[dict[str, Any]] = field(default_factory=list)
    """How the tools of these ran, for the server to show."""
    marks: list[Mark] = field(default_factory=list)
    """Where ``rewind`` may go back to, oldest first."""
    stats: SessionStats = field(default_factory=SessionStats)
    cut_from: str | None = None
    """The response before the newest cut, which has all that was said."""
    held: frozenset[str] = frozenset()
    """Ids of the calls of ``head`` that are begun and ended at the server (``held_turns``)."""
    late: dict[str, AnyTool] = field(default_factory=dict)
    """Tools that were added, by name: the history defines them, or the next turn does."""
    removed: frozenset[str] = frozenset()
    """Names of tools that are not to be called any more."""
    resumes: int = 0
    """Turns behind ``head`` that failed."""
    is_fork: bool = False
    """Another chain stands at ``head`` too."""
    server_name: str | None = None
    """The server's name for the session, once it has said so."""

    @property
    def name(self) -> str | None:
        """The name that the user gave the session, or None."""
        name = self.defaults.get("keepwarm", {}).get("session")
        return None if name is None else str(name)

    def shown(self, kind: str) -> str:
        """In a line, as a session of that kind."""
        who = "" if self.name is None else f" {self.name!r}"
        where = "before its first turn" if self.head is None else f"at {self.head}"
        stats = self.stats
        return f"<{kind}{who} {where}: {stats.turns} turns, {stats.usage.shown}>"

    def set_keepwarm(self, **keys: Any) -> None:
        """Change keys of the extension that go with every turn; None takes one out."""
        merged = {**self.defaults.get("keepwarm", {}), **keys}
        kept = {key: value for key, value in merged.items() if value is not None}
        self.defaults = {**self.defaults, "keepwarm": kept}
        if not kept:
            del self.defaults["keepwarm"]

    def request(self, items: list[dict[str, Any]], options: TurnOptions) -> dict[str, Any]:
        """The ``response.create`` of the next turn.

        Raises:
            TypeError: an option that ``TurnOptions`` does not have.
            ValueError: the choice names a tool that was removed.
        """
        wire = {"type": "response.create"} | wire_options(self.defaults, options)
        wire["input"] = items
        if self.head is not None:
            wire["previous_response_id"] = self.head
        if self.removed:
            tools = [*wire.get("tools", ()), *map(wire_tool, self.late.values())]
            wire["tool_choice"] = restricted(wire.get("tool_choice"), tools, self.removed)
        if self.is_fork:
            wire["keepwarm"] = {**wire.get("keepwarm", {}), "fork": True}
        return wire

    def input_with(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The input of the next turn: what goes in front of ``items``, and these. Of outputs of one
        call the newest goes: that among ``items`` if there is one, else what was owed last."""
        answered, kept = {_answers(item) for item in items}, []
        for item in reversed(self.owed):
            call_id = _answers(item)
            if call_id is None or call_id not in answered:
                kept.append(item)
                answered.add(call_id)
        return [*kept[::-1], *items_for(self.late, self.history), *items]

    def advance(
        self, items: list[dict[str, Any]], response: Response, told: Sequence[dict[str, Any]]
    ) -> None:
        """Move behind ``response``, which answered ``items``. ``told``: what of ``owed`` its
        request had; what came since then is for the next one."""
        if self.head is None and self.name is not None:
            # The server may have known the session before: then its past is not here.
            self.complete = response.keepwarm.get("turn", 1) == 1
        self.marks.append(Mark(self.head, len(self.history), self.cut_from))
        self.head, self.is_fork = response.id, False
        self.history += [item for item in items if item.get("type") != "compaction_trigger"]
        self.history += [dict(item) for item in response.raw["output"]]
        known = set(map(id, told))
        self.owed = [item for item in self.owed if id(item) not in known]
        self.heard = []
        self.ran.clear()
        self.held, self.resumes = frozenset(), 0
        self.cut_from = (response.keepwarm.get("context") or {}).get("from") or self.cut_from
        self.server_name = response.keepwarm.get("session", self.server_name)
        self.stats = _counted(self.stats, response)

    def count(self, response: Response) -> None:
        """Count what a turn cost that failed: the session stands where it stood."""
        self.stats = replace(_counted(self.stats, response), turns=self.stats.turns)

    def rewind(self, to: str | None) -> None:
        """Stand again behind the response ``to``, or at the beginning. Outputs that answered
        its calls are owed again.

        Raises:
            ValueError: no turn of this object ended with ``to``.
        """
        if to == self.head:
            return
        if to is None and (self.name is not None or not self.complete):
            raise ValueError("a session that the server knows by name cannot go back to nothing")
        heads = [mark.head for mark in self.marks]
        if to not in heads:
            raise ValueError(f"no turn of this session ended with the response {to!r}")
        number = heads.index(to)
        mark = self.marks[number]
        self.owed, self.heard = [], []
        for item in self.history[mark.length :]:
            if _answers(item) is None:
                break
            self.owed.append(item)
        self.head, self.cut_from = to, mark.cut_from
        self.held, self.resumes = frozenset(), 0
        del self.history[mark.length :], self.marks[number:]

    def before_cut(self) -> "Chain":
        """A second chain from before the newest cut on.

        Raises:
            ValueError: there was none in this object.
        """
        to = self.cut_from
        if to is None:
            raise ValueError("nothing of this session was compacted here")
        chain = self.fork()
        chain.cut_from = None
        if to in [mark.head for mark in chain.marks]:
            chain.rewind(to)
        else:  # it stands in what was taken over by name or id
            chain.head, chain.history, chain.complete = to, [], False
            chain.owed, chain.marks = [], []
        return chain

    def fork(self) -> "Chain":
        """A second chain from here on, without the name: it goes on from the response, so that
        both may run at once. The histories are apart, the items in them shared."""
        fork = replace(
            self,
            history=list(self.history),
            owed=[*self.heard, *self.owed],
            heard=[],
            ran=list(self.ran),
            marks=list(self.marks),
            late=dict(self.late),
        )
        fork.stats, fork.is_fork = SessionStats(), self.head is not None
        if self.name is not None:
            fork.set_keepwarm(session=None)
        return fork


def _answers(item: Mapping[str, Any]) -> str | None:
    """The id of the call whose output the item is."""
    kind = str(item.get("type", ""))
    is_output = kind.endswith("_call_output") or kind == "tool_search_output"
    return item.get("call_id", item.get("id")) if is_output else None


def _counted(stats: SessionStats, response: Response) -> SessionStats:
    told: Mapping[str, Any] = response.keepwarm
    cost = told.get("cost") or {}
    budget = told.get("budget") or {}
    return replace(
        stats,
        turns=stats.turns + 1,
        usage=stats.usage + response.usage,
        cost=cost.get("session"),
        saved=cost.get("saved"),
        budget_left=_left(budget.get(scope) or {} for scope in ("left", "tree", "tenant", "key"))
        or None,
    )


def _left(budgets: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The least of each kind that one of them leaves."""
    least: dict[str, float] = {}
    for budget in budgets:
        for kind, left in budget.items():
            least[kind] = min(left, least.get(kind, left))
    return least
