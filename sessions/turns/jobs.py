"""The requests that one connection has taken up and not yet answered to the end.

A job is a lane's active request, from the moment it may run to its answer; jobs are found by
what the different callers know of them: a grammar check, a response, an engine request, a
lane. Decides nothing.

Always true: a lane waits for at most one job; an engine request leads to the job that sent it
or to none.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from runtime.messages import SequenceOutput
from sessions.durable.account import NOTHING, Account, Amount
from sessions.durable.session import Session
from sessions.durable.turn_logs import TurnLog
from sessions.durable.weights import Hold
from sessions.turns.commits import Ending
from sessions.turns.intake import Waiting
from sessions.turns.lanes import Lane
from sessions.turns.planning import Lineage
from sessions.turns.reading import Prepared
from sessions.turns.references import Found
from sessions.turns.sharing import Bounded
from sessions.turns.turn import Turn
from sessions.turns.turn_plan import TurnPlan
from tools_api.grammar import GrammarSpec
from tools_api.requests import CreateRequest


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A lane's active request. ``turn`` is there once it has started."""

    lane: Lane[Waiting]
    request: CreateRequest
    num_bytes: int
    arrival_s: float
    prepared: Prepared | None = None
    hold: Hold | None = None
    check_id: str | None = None
    grammar: GrammarSpec | None = None
    session: Session | None = None
    """The one it runs in, or asks for by name."""
    ticket: Hashable | None = None
    lineage: Lineage | None = None
    """What it continues, once that has been decided."""
    plan: TurnPlan | None = None
    """While it waits for the verdict on its grammar."""
    turn: Turn | None = None
    noted: Amount = NOTHING
    """What the journal was told that the turn may consume."""
    ending: Ending | None = None
    """The turn has ended and waits for its record to be committed."""
    found: Found | None = None
    """While the items that the request refers to are looked for: what memory had of them."""
    lookup_id: str | None = None
    id_looked_up: bool = False
    """The journal was asked whether the request's id was used."""
    known: TurnLog | None = None
    """What memory had of that id's turn then."""
    taken_up: bool = False
    """It is known that the id was not."""
    """While the journal is asked what the request names."""
    log: TurnLog | None = None
    """Of its events, if they can be resumed."""
    shares: Bounded | None = None
    """Accounts that other servers draw on too, once it has been seen to what it may spend."""
    asked: dict[str, Account] = field(default_factory=dict)
    """Of them, those of which the journal was asked for more."""
    stalled: list[SequenceOutput] | None = None
    """What the engine said that waits for that."""
    displaced: bool = False
    """The lane has been answered: a newer request follows the turn."""


class Jobs:
    """In the order in which they were taken up; safe to change while it is iterated."""

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self._by_request: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs))

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs[job] = None

    def remove(self, job: Job) -> None:
        """The job is answered: what it held is given back."""
        del self._jobs[job]
        if job.hold is not None:
            job.hold.give_back()

    def sent(self, job: Job, request_id: str) -> None:
        """The job's turn has a request at the engine."""
        self._by_request[request_id] = job

    def withdrawn(self, request_id: str) -> None:
        """What the engine still says of this request is of no interest. Unknown ids too."""
        self._by_request.pop(request_id, None)

    def of_request(self, request_id: str) -> Job | None:
        return self._by_request.get(request_id)

    def of_check(self, check_id: str) -> Job | None:
        """The job that waits for this verdict on its grammar."""
        return next((job for job in self._jobs if job.check_id == check_id), None)

    def of_lookup(self, lookup_id: str) -> Job | None:
        """The job that waits for this answer of the journal."""
        return next((job for job in self._jobs if job.lookup_id == lookup_id), None)

    def of_response(self, response_id: str) -> Job | None:
        """The job whose turn runs under this id."""
        running = (job for job in self._jobs if job.turn is not None)
        return next((job for job in running if _response_id(job) == response_id), None)

    def in_lane(self, stream_id: str | None) -> Job | None:
        """The lane's job, started or not."""
        own = (job for job in self._jobs if not job.displaced)
        return next((job for job in own if job.lane.stream_id == stream_id), None)

    def with_log(self, log: TurnLog) -> list[Job]:
        """The jobs that bear this turn's request id or run the turn."""
        return [job for job in self._jobs if job.log is log]


def _response_id(job: Job) -> str | None:
    return None if job.turn is None else job.turn.plan.response_id
