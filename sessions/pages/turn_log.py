"""The turns that ended, session by session, in bounded memory.

What the session's page shows of each turn, and what the list needs of each session beyond its
account: failures, why tokens had to be computed, how long tools took. Knows no socket and no
clock; times are the caller's monotonic seconds.

Always true: at most ``MAX_TURNS`` turns are kept in all, and at most ``MAX_TURNS_OF_SESSION`` of
one session; the session that was quiet for longest goes first.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from sessions.durable.ledger import TurnReport
from sessions.durable.miss_reasons import OWN, Miss, MissReason

MAX_TURNS = 20_000
MAX_TURNS_OF_SESSION = 500
_TURN_BYTES, _SESSION_BYTES, _BRANCH_BYTES = 1050, 1200, 150


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTurn:
    """One turn and when it ended."""

    number: int
    """Counts the turns of the whole server."""
    report: TurnReport
    ended_s: float
    tool_wait_s: float | None
    """Between the end of the turn whose calls this one answers and its arrival."""

    @property
    def began_s(self) -> float:
        """When the turn's request arrived."""
        return self.ended_s - self.report.total_s


@dataclass(slots=True)
class SessionLog:
    """One session's turns, the oldest first."""

    turns: deque[LoggedTurn] = field(default_factory=lambda: deque(maxlen=MAX_TURNS_OF_SESSION))
    ended: int = 0
    """How many turns there were, those included that are not kept any more."""
    failed: int = 0
    missed: Counter[MissReason] = field(default_factory=Counter)
    avoidable_tokens: int = 0
    """Computed though they had been said before."""
    last_avoidable: Miss | None = None
    """The newest miss that is not the turn's own input."""

    def add(self, turn: LoggedTurn) -> None:
        """Put a turn into the log."""
        report = turn.report
        self.turns.append(turn)
        self.ended += report.is_turn
        self.failed += report.status == "failed"
        for miss in report.misses:
            self.missed[miss.reason] += miss.tokens
        avoidable = [miss for miss in report.misses if miss.reason not in OWN]
        self.avoidable_tokens += sum(miss.tokens for miss in avoidable)
        self.last_avoidable = avoidable[0] if avoidable else self.last_avoidable


class TurnHistory:
    """The logs of all sessions' turns."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], SessionLog] = OrderedDict()
        self._branches: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._num_turns = 0
        self._number = 0

    @property
    def num_bytes(self) -> int:
        """Memory of all that is kept, roughly."""
        turns, sessions = self._num_turns * _TURN_BYTES, len(self._sessions) * _SESSION_BYTES
        return turns + sessions + len(self._branches) * _BRANCH_BYTES

    def add(self, report: TurnReport, ended_s: float) -> LoggedTurn:
        """Note a turn that has just ended."""
        key = (report.tenant, report.session)
        log = self._sessions.setdefault(key, SessionLog())
        self._sessions.move_to_end(key)
        self._number += 1
        turn = LoggedTurn(
            number=self._number,
            report=report,
            ended_s=ended_s,
            tool_wait_s=_tool_wait_s(log, report, ended_s),
        )
        before = len(log.turns)
        log.add(turn)
        self._num_turns += len(log.turns) - before
        self._note_branch(report, key)
        while self._num_turns > MAX_TURNS and len(self._sessions) > 1:
            _, quiet = self._sessions.popitem(last=False)
            self._num_turns -= len(quiet.turns)
        return turn

    def of(self, tenant: str, session: str) -> SessionLog | None:
        """The known turns of a session; None: nothing ended there, or it was long ago."""
        return self._sessions.get((tenant, session))

    def session_of_branch(self, branch_id: str) -> tuple[str, str] | None:
        """Tenant and name of the session that wrote to the engine's branch."""
        return self._branches.get(branch_id)

    def _note_branch(self, report: TurnReport, key: tuple[str, str]) -> None:
        if not report.branch_id:
            return
        self._branches[report.branch_id] = key
        self._branches.move_to_end(report.branch_id)
        if len(self._branches) > MAX_TURNS:
            self._branches.popitem(last=False)


def _tool_wait_s(log: SessionLog, report: TurnReport, ended_s: float) -> float | None:
    """Seconds from the end of the turn it continues, if that one called tools."""
    parent = next(
        (t for t in reversed(log.turns) if t.report.response_id == report.parent_response_id), None
    )
    if parent is None or not parent.report.open_calls:
        return None
    return max(ended_s - report.total_s - parent.ended_s, 0.0)
