"""A context that is due is recast before its turn: the summary is asked for, and charged.

The turn that sums up is played like any other, told to nobody and recorded as ``compaction``; the
turn itself goes on behind it, with the events of the one that was announced. What is decided is in
``sessions.turns.compacting``.

Always true: a summary is recorded before the turn that reads it begins; a request that is ended
early meanwhile ends as the turn that its client follows.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from sessions.durable.account import NOTHING
from sessions.durable.session import Session
from sessions.durable.store import ConnectionStore
from sessions.turns.asking import Asking
from sessions.turns.commits import Ending
from sessions.turns.compacting import Recasting
from sessions.turns.effects import Outbox, SessionTurn, TurnEnded, Work
from sessions.turns.jobs import EndedEarly, Job, Jobs
from sessions.turns.memory import Memory
from sessions.turns.playing import Playing
from sessions.turns.service import Service
from sessions.turns.turn import Turn
from sessions.turns.turn_plan import PreparedCut, TurnPlan, prepared_for
from sessions.turns.vendor_events import VendorEvents
from tools_api.errors import ApiError

log = logging.getLogger(__name__)


class SummingUp:
    """The contexts of one connection that are recast."""

    def __init__(
        self,
        *,
        service: Service,
        visible: ConnectionStore,
        jobs: Jobs,
        playing: Playing,
        outbox: Outbox,
        asking: Asking,
    ) -> None:
        self._visible = visible
        self._service = service
        self._jobs = jobs
        self._playing = playing
        self._outbox = outbox
        self._asking = asking
        self.vendor_events = VendorEvents(outbox)

    async def begin(self, job: Job, plan: TurnPlan) -> TurnPlan:
        """Decide what becomes of a context that is too long; returns the plan of a turn that runs
        as it is where nothing can be gained."""
        service = self._service
        work = partial(
            Recasting,
            plan,
            service=service,
            summary_id=service.new_id("resp"),
            item_id=service.new_id("cmp"),
            prepared=await self._prepared(plan),
        )
        recasting: Recasting = await self._asking.ask(job, Work(work))
        job.recasting = None if recasting.idle else recasting
        return recasting.without() if recasting.idle else plan

    async def _prepared(self, plan: TurnPlan) -> PreparedCut | None:
        """The cut that was computed ahead for what the plan continues, once it is."""
        session = self._visible.claimed_session(plan.session)
        prepared = None if session is None else prepared_for(session.ahead, plan.parent)
        if prepared is not None and prepared.under_way:
            question = self._asking.question(SessionTurn())
            prepared.waiting += (self._asking.ticket(question),)
            await question
        return prepared

    async def play(self, job: Job, memory: Memory, summary: Turn) -> Ending:
        """Play a turn that no client sees, and record it."""
        ending = await self._playing.play(job, memory, summary)
        return await self._record_summary(job, summary, ending)

    async def recast(self, job: Job, memory: Memory, first: Turn, session: Session) -> Turn:
        """Have the context summed up, if that is needed; returns the turn behind it, which goes on
        with the events of the ``first`` one. One that was ended early meanwhile is that one."""
        assert job.recasting is not None
        recasting, job.main = job.recasting, first
        self._playing.carry_out(job, first.announce(recasting.announced))
        text: str | None = None
        cost: dict[str, Any] = {}
        if recasting.summary is not None:
            summary = Turn(
                replace(recasting.summary, accounts=first.plan.accounts),
                service=self._service,
                ledger=session.ledger,
                stream_id=None,
                accounts=first.accounts,
            )
            job.turn = summary
            ending = await self.play(job, memory, summary)
            job.turn, job.ending, job.noted = first, None, NOTHING
            text, cost = recasting.read(summary.text, ending.outcome.report)
        if job.early is not None:
            return first
        try:
            plan: TurnPlan = await self._asking.ask(job, Work(partial(recasting.finish, text)))
        except EndedEarly as early:
            job.early = early.with_traceback(None)
            return first
        except ApiError as error:
            self._playing.carry_out(job, first.refuse(error))
            return first
        assert plan.recast is not None
        plan.recast.report.update(cost)
        if not job.displaced:
            self.vendor_events.context_recast(
                first.plan.response_id, plan.recast.report, job.lane.stream_id
            )
        plan = replace(
            plan,
            number=first.plan.number,
            keys=first.plan.keys,
            accounts=first.plan.accounts,
        )
        return Turn(
            plan,
            service=self._service,
            ledger=session.ledger,
            stream_id=job.lane.stream_id,
            events=first.events,
            accounts=first.accounts,
        )

    async def _record_summary(self, job: Job, turn: Turn, ending: Ending) -> Ending:
        """Record what the summary consumed before its turn goes on."""
        commits, report = self._service.commits, ending.outcome.report
        self._jobs.withdrawn(turn.request_id)
        if report.usage.input_tokens or report.cost:
            if commits is not None:
                assert job.session is not None
                at_s = self._service.wall_clock()
                record = commits.record(
                    turn.plan, job.session, ending, created_s=at_s, shares=job.shares
                )
                try:
                    await self._asking.ask(job, record)
                except EndedEarly as early:
                    job.early = early.with_traceback(None)
                except Exception:
                    log.exception("record failed response=%s", turn.plan.response_id)
            usage = report.usage
            tenant = self._service.store.tenant(turn.plan.tenant)
            tenant.quota.spend(usage.uncached_tokens + usage.output_tokens)
            self._outbox.ended.append(TurnEnded(report=report, terminal=ending.terminal))
            log.info("context summed up", extra={"fields": report.log_fields()})
        elif job.noted is not NOTHING:
            self._playing.note(job, turn, NOTHING)
        return ending
