"""The requests that one connection has taken up and not yet answered to the end.

A job is a lane's active request, from the moment it may run to its answer. Its life is a coroutine
without an event loop: it runs until it awaits a question, and goes on when that is answered, or
when the request is ended early by what is thrown in. Jobs are found by what the different callers
know of them: a question, a response, an engine request, a lane. Decides nothing.

Always true: a lane waits for at most one job; a question and an engine request lead to the job
that sent them or to none; a job whose life is over is not among the jobs.
"""

import enum
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from runtime.messages import SequenceOutput
from sessions.durable.account import NOTHING, Account, Amount
from sessions.durable.session import Session
from sessions.durable.turn_logs import EventLog
from sessions.turns.commits import Ending
from sessions.turns.compacting import Recasting
from sessions.turns.effects import EngineOutputs, Outbox, Question, SessionTurn
from sessions.turns.lanes import Lane, Waiting
from sessions.turns.sharing import Bounded
from sessions.turns.submissions import Submission
from sessions.turns.turn import Turn, TurnStep
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.requests import CreateRequest


class EarlyEnd(enum.Enum):
    """How a request may be ended early."""

    CLIENT_GONE = enum.auto()
    CANCELLED = enum.auto()
    NEWER_REQUEST = enum.auto()
    """Another request bears the same id."""
    DRAINING = enum.auto()
    ENGINE_LOST = enum.auto()


class EndedEarly(BaseException):
    """Thrown into the life of a request at the question it waits at; no ``Exception``, so that it
    is not taken for an answer."""

    def __init__(self, way: EarlyEnd) -> None:
        super().__init__(way.name)
        self._way = way

    def refusal(self) -> ApiError | None:
        """The error for a request that has no turn yet; None: nobody is there to be told."""
        match self._way:
            case EarlyEnd.CANCELLED:
                return errors.request_cancelled()
            case EarlyEnd.NEWER_REQUEST:
                return errors.followed_elsewhere()
            case EarlyEnd.DRAINING:
                return shutting_down()
        return None

    def stop(self, turn: Turn, now: float) -> TurnStep:
        """End the turn that the request has become."""
        match self._way:
            case EarlyEnd.CANCELLED:
                return turn.stop(now)
            case EarlyEnd.CLIENT_GONE:
                return turn.cancel(now)
            case EarlyEnd.DRAINING:
                return turn.fail("shutting_down", "The server is shutting down.", now)
        return turn.fail("engine_died", "The engine stopped.", now)


def shutting_down() -> ApiError:
    """The error for a request that comes, or has not started, when the server ends."""
    return errors.overloaded("it is shutting down")


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request that a lane has taken up, until it is answered to the end."""

    lane: Lane[Waiting]
    frame: Waiting
    """The frame that asked; of a create that refers to stored items, with these once they are
    found."""
    life: Coroutine[Question, Any, None] | None = None
    question: Question | None = None
    """The question that it waits at."""
    turn: Turn | None = None
    """The turn, once it has started."""
    session: Session | None = None
    """The session that the turn runs in."""
    log: EventLog | None = None
    """The log of its events, if they can be resumed."""
    shares: Bounded = ()
    """Accounts that other servers draw on too, and that it may draw on."""
    stalled: deque[SequenceOutput] | None = None
    """The engine's outputs that wait for more of them."""
    noted: Amount = NOTHING
    """The amount that the journal was told the turn may consume."""
    ending: Ending | None = None
    """How the turn ended; from then on nothing ends the request earlier, but for ``summed_up``."""
    early: EndedEarly | None = None
    """The way in which it was ended while its context was summed up: the turn itself is to end
    so."""
    recasting: Recasting | None = None
    """The recasting of a context that is too long."""
    main: Turn | None = None
    """The turn that a client follows, while ``turn`` sums up its context."""
    ahead: bool = False
    """No request of a client: a context is recast while the client's tools run."""
    accounts: tuple[Account, ...] = ()
    """``ahead`` alone: those on which the turn drew that has ended, beside one of its own."""
    private: bool = False
    """``ahead`` alone: nobody can continue it once the connection is gone."""
    steers: tuple[Submission, ...] = ()
    """Input that was accepted while the turn ran: it is heard once that has ended."""
    heard: tuple[Submission, ...] = ()
    """Steers of the response that this request continues, with which its input begins."""
    displaced: bool = False
    """The lane has been answered: a newer request follows the turn."""

    @property
    def followed(self) -> Turn | None:
        """The turn that a client follows, once it has started."""
        return self.main or self.turn

    @property
    def summed_up(self) -> bool:
        """Whether a summary has ended and waits for its record: what it is for is still to come."""
        turn = self.turn
        return self.ending is not None and turn is not None and turn.plan.sums_up is not None

    @property
    def creates(self) -> bool:
        """Whether it asks for a turn; else for the events of one."""
        return isinstance(self.frame.content, CreateRequest)

    @property
    def request(self) -> CreateRequest:
        """The response to be created."""
        assert isinstance(self.frame.content, CreateRequest)
        return self.frame.content


OWN_ANSWERS = SessionTurn, EngineOutputs
"""Questions that no caller answers."""


class Jobs:
    """A connection's requests in the order in which they were taken up; safe to change while it is
    iterated."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._jobs: dict[Job, None] = {}
        self._by_question: dict[str, Job] = {}
        self._by_request: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs))

    def __len__(self) -> int:
        return len(self._jobs)

    # Lives

    def start(self, job: Job, life: Coroutine[Question, Any, None]) -> None:
        """Let the job live as far as it gets."""
        self._jobs[job] = None
        job.life = life
        self._live(job, None)

    def answer(self, question_id: str, answer: Any) -> bool:
        """Go on with who waits at the question; an exception is raised there. False: nobody does
        any more."""
        job = self._by_question.pop(question_id, None)
        if job is None:
            return False
        job.question = None
        self._live(job, answer)
        return True

    def end_early(self, job: Job, way: EarlyEnd) -> None:
        """Raise ``EndedEarly`` where the job waits; what it waited for is of no interest then."""
        assert job.question is not None
        question, job.question = job.question, None
        del self._by_question[question.id]
        if not isinstance(question.asked, OWN_ANSWERS):
            self._outbox.withdrawn.append(question.id)
        self._live(job, EndedEarly(way))

    def _live(self, job: Job, answer: Any) -> None:
        """Up to the next question, or to the end."""
        life = job.life
        assert life is not None
        try:
            is_error = isinstance(answer, BaseException)
            question = life.throw(answer) if is_error else life.send(answer)
        except BaseException as end:
            del self._jobs[job]
            job.life = None
            if not isinstance(end, StopIteration):
                raise
        else:
            job.question = question
            self._by_question[question.id] = job
            if not isinstance(question.asked, OWN_ANSWERS):
                self._outbox.questions.append(question)

    @property
    def held(self) -> list[object]:
        """All that is kept for requests: nothing is left once each has been answered."""
        return [*self._jobs, *self._by_question, *self._by_request]

    def by_question(self, question_id: str) -> Job | None:
        """The job that waits for the answer to that question."""
        return self._by_question.get(question_id)

    # Engine requests

    def submitted(self, job: Job, request_id: str) -> None:
        """The job's turn has a request at the engine."""
        self._by_request[request_id] = job

    def withdrawn(self, request_id: str) -> None:
        """Outputs of the engine for this request are of no interest any more. Unknown ids too."""
        self._by_request.pop(request_id, None)

    def by_request(self, request_id: str) -> Job | None:
        return self._by_request.get(request_id)

    # What callers know

    def by_response(self, response_id: str) -> Job | None:
        """The job whose turn runs under this id."""
        for job in self._jobs:
            if job.turn is not None and job.turn.plan.answers == response_id:
                return job
        return None

    def in_lane(self, stream_id: str | None) -> Job | None:
        """The lane's job that creates something, started or not."""
        for job in self._jobs:
            if job.lane.stream_id == stream_id and job.creates and not job.displaced:
                return job
        return None

    def with_log(self, log: EventLog) -> list[Job]:
        """The jobs that bear this turn's request id or run the turn."""
        return [job for job in self._jobs if job.log is log]
