"""What connections need done beside the event loop: grammars tried, turns planned, memories
fetched, records kept.

Each errand is a task of its own whose outcome comes back as one more call on the connection that
asked. Knows who does the work, and nothing of the engine or of frames.

Always true: an errand that was not given up ends in exactly one call; a grammar check that is
withdrawn ends in none. An exception is no local variable of a frame that it holds: such a ring, and
all that the frames worked on, would wait for the garbage collector.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from runtime.grammar.refusal import GrammarRefused
from sessions.fair_slots import FairSlots
from sessions.pages.metrics import Metrics
from sessions.turns.effects import Effects, GrammarCheck, Lookup, Planning
from sessions.turns.recollection import Recalled
from sessions.turns.references import Whole
from sessions.turns.turn_plan import TurnPlan
from sessions.wire.fair_reading import Reading
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.links import Call, Link
from tools_api.grammar import GrammarSpec

log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWork:
    """Who does what takes too long for the event loop."""

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


class Errands:
    """All that is under way. For one event loop."""

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
        self._run = run
        self._metrics = metrics
        self._clock = clock
        self._planners = FairSlots(long_work.planners)
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._lookups: set[asyncio.Task[None]] = set()

    def begin(self, link: Link, effects: Effects) -> None:
        """Begin what a connection asks for, and give up what it withdraws."""
        create_task = asyncio.get_running_loop().create_task
        for check in effects.grammar_checks:
            task = create_task(self._check(link, check))
            self._checks[check.check_id] = task
            task.add_done_callback(partial(self._check_over, check.check_id))
        for check_id in effects.withdrawn_checks:
            if check_id in self._checks:
                self._checks[check_id].cancel()
        for planning in effects.plannings:
            link.planning = create_task(self._plan(link, planning))
        for reserve in effects.reserves:
            self._journal.reserve(reserve.record, urgent=reserve.urgent)
        for commit in effects.commits:
            self._journal.commit(commit.record, link)
        if effects.freed:
            self._journal.free(link.tenant, effects.freed)
        for lookup in effects.lookups:
            asked = create_task(self._look_up(link, lookup))
            self._lookups.add(asked)
            asked.add_done_callback(self._lookups.discard)

    async def beside(self, tenant: str, work: Callable[[], Outcome]) -> Outcome:
        """Make a call that takes long beside the event loop, when it is the tenant's turn."""
        async with self._planners.place(tenant):
            outcome: Outcome = await self._long_work.in_thread(work)
            return outcome

    @property
    def _journal(self) -> JournalDesk:
        assert self._long_work.journal is not None
        return self._long_work.journal

    def _check_over(self, check_id: str, _: object) -> None:
        del self._checks[check_id]

    async def _check(self, link: Link, check: GrammarCheck) -> None:
        asked = self._clock()
        try:
            refusal = await self._long_work.check_grammar(check.spec, link.tenant)
        except Exception:
            log.exception("grammar check failed connection=%s", link.id)
            self._run([(link, partial(link.connection.grammar_unchecked, check.check_id))])
            return
        self._metrics.grammar_checked(self._clock() - asked, refused=refusal is not None)
        verdict = partial(link.connection.grammar_checked, check.check_id, None)
        if refusal is not None:
            verdict = partial(
                link.connection.grammar_checked,
                check.check_id,
                refusal.reason,
                block=refusal.block,
                path=refusal.path,
            )
        self._run([(link, verdict)])

    async def _plan(self, link: Link, planning: Planning) -> None:
        planned = partial(link.connection.planned, planning.planning_id)
        try:
            plan: TurnPlan | Whole = await self.beside(link.tenant, planning.work)
        except Exception as error:
            self._run([(link, partial(planned, error))])
        else:
            self._run([(link, partial(planned, plan))])

    async def _look_up(self, link: Link, lookup: Lookup) -> None:
        recalled = partial(link.connection.recalled, lookup.lookup_id)
        try:
            found: Recalled = await self._journal.recall(link.tenant, lookup.wanted)
            self._journal.take(link.tenant, found)
        except Exception as error:
            self._run([(link, partial(recalled, error))])
        else:
            self._run([(link, partial(recalled, found))])
