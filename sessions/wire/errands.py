"""Work of connections beside the event loop: grammars tried, turns planned, memories fetched,
records kept.

Each question of a connection is a task of its own, but for a record, which the journal's writer
takes; the answer comes back with ``Connection.answer``. Knows who does the work, and nothing of the
engine or of frames.

Always true: a question that was not given up is answered exactly once. An exception is no local
variable of a frame that it holds: such a ring, and all that the frames worked on, would wait for
the garbage collector.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from runtime.grammar.refusal import GrammarRefused
from sessions.fair_slots import FairSlots
from sessions.ground import Ground
from sessions.journal.records import TurnRecord
from sessions.pages.metrics import Metrics
from sessions.turns.effects import Effects, Question, ServerReady, TurnHold, Work
from sessions.turns.wanted import Recalled, Wanted
from sessions.wire.fair_reading import Reading
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.links import Call, Link
from tools_api.grammar import GrammarSpec

log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWork:
    """The workers for calls that take too long for the event loop."""

    check_grammar: Callable[[GrammarSpec, str], Awaitable[GrammarRefused | None]]
    """Tries a grammar for a tenant; gives the reason against it, or None. Cancelled, it is given
    up."""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    """Makes a call beside the event loop, or none if it is cancelled before."""
    planners: int = 1
    """How many of those at a time; tenants take turns."""
    reading: Reading
    """Reads large frames and bodies."""
    journal: JournalDesk | None = None
    """Keeps what turns leave; None: memory alone does."""
    ground: Ground = field(default_factory=Ground)
    """The ground under the server."""


class Errands:
    """All errands that are under way. For one event loop."""

    def __init__(
        self,
        long_work: LongWork,
        *,
        run: Callable[[Iterable[Call]], None],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """``run`` makes calls on connections; ``clock``: monotonic seconds."""
        self._long_work = long_work
        self._journal = long_work.journal
        self._run = run
        self._metrics = metrics
        self._clock = clock
        self._planners = FairSlots(long_work.planners)
        self._tasks: dict[str, tuple[asyncio.Task[None], Question]] = {}
        """Tasks by the id of the question that each of them answers."""

    @property
    def open(self) -> list[str]:
        """The ids of the questions that are being answered."""
        return list(self._tasks)

    @property
    def held(self) -> list[object]:
        """Calls at the planners, or waiting for one; nothing is left once all is answered."""
        return self._planners.held

    def run(self, link: Link, effects: Effects) -> None:
        """Begin what a connection asks for, and give up what it withdraws."""
        for id_ in effects.withdrawn:
            self._give_up(link, id_)
        for note in effects.notes:
            assert self._journal is not None
            if isinstance(note, TurnHold):
                self._journal.reserve(note.record, urgent=note.urgent)
            else:
                self._journal.free(link.tenant.name, [note.request_id])
        for question in effects.questions:
            if isinstance(question.asked, TurnRecord):
                assert self._journal is not None
                self._journal.commit(question.asked, (link, question.id))
            else:
                task = asyncio.get_running_loop().create_task(self._answer(link, question))
                self._tasks[question.id] = task, question
                task.add_done_callback(partial(self._over, question.id))

    def _give_up(self, link: Link, question_id: str) -> None:
        """Withdraw a question. An answer of the journal comes to memory all the same; a plan that
        has begun keeps the next one of its client waiting, if that is there."""
        task, question = self._tasks.get(question_id, (None, None))
        if task is None or question is None or isinstance(question.asked, Wanted):
            return
        if link.gone or question_id != link.planned:
            task.cancel()

    async def beside(self, tenant: str, work: Callable[[], Outcome]) -> Outcome:
        """Make a call that takes long beside the event loop, when it is the tenant's turn."""
        async with self._planners.place(tenant):
            outcome: Outcome = await self._long_work.in_thread(work)
            return outcome

    def _over(self, question_id: str, _: object) -> None:
        del self._tasks[question_id]

    async def _answer(self, link: Link, question: Question) -> None:
        answered = partial(link.connection.answer, question.id)
        try:
            answer = await self._find(link, question)
        except Exception as error:
            self._run([(link, partial(answered, error))])
        else:
            self._run([(link, partial(answered, answer))])

    async def _find(self, link: Link, question: Question) -> Any:
        match question.asked:
            case Wanted() as wanted:
                assert self._journal is not None
                found: Recalled = await self._journal.recall(link.tenant, wanted)
                self._journal.remember(link.tenant, found)
                return found
            case Work(call):
                async with link.planner:
                    link.planned = question.id
                    return await self.beside(link.tenant.name, call)
            case ServerReady():
                return await self._long_work.ground.wait_writable()
            case GrammarSpec() as spec:
                return await self._try(link, spec)
        raise AssertionError(f"nobody answers {question.asked!r}")

    async def _try(self, link: Link, spec: GrammarSpec) -> GrammarRefused | None:
        asked = self._clock()
        try:
            refusal = await self._long_work.check_grammar(spec, link.tenant.name)
        except Exception:
            log.exception("grammar check failed connection=%s", link.id)
            raise
        self._metrics.grammar_checked(self._clock() - asked, refused=refusal is not None)
        return refusal
