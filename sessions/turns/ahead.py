"""A context that will soon be due is recast while the client's tools run.

Where a client asks for that (``keepwarm.compaction.ahead``) and a turn ends with calls open, near
a threshold that the client named, the summary is written and the new prefix computed before the
next turn comes. Both are charged when they are computed. What was decided is kept with the session
and taken by the turn whose context is due; whichever comes before the threshold is as ever.

Always true: once a cut; never where the budgets that are left would then not pay the next turn;
whoever waits for it is woken, however it ends.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sessions.durable.account import NOTHING, Account, Amount, is_bound
from sessions.durable.ledger import PromptTokens
from sessions.durable.reservation import GRANT_TOKENS, Reservation
from sessions.durable.session import Session
from sessions.durable.transcript import Entry
from sessions.turns.asking import Asking
from sessions.turns.compacting import Recasting
from sessions.turns.effects import Work
from sessions.turns.jobs import EndedEarly, Job, Jobs
from sessions.turns.memory import Memory
from sessions.turns.service import Service
from sessions.turns.summaries import BEHIND_SHORT_TURNS, most_summary_tokens
from sessions.turns.summing_up import SummingUp
from sessions.turns.thresholds import soon_due
from sessions.turns.turn import Turn
from sessions.turns.turn_plan import (
    NO_CHECKS,
    NO_LAST_TURN,
    Due,
    PreparedCut,
    TurnPlan,
    prepared_for,
)
from tools_api.errors import ApiError
from tools_api.requests import ContextManagement

log = logging.getLogger(__name__)


class Ahead:
    """The contexts that are recast ahead of time, of one connection."""

    def __init__(
        self,
        *,
        service: Service,
        jobs: Jobs,
        summing_up: SummingUp,
        asking: Asking,
    ) -> None:
        self._service = service
        self._jobs = jobs
        self._summing_up = summing_up
        self._asking = asking
        self._draining = False

    def drain(self) -> None:
        """Begin nothing any more: no turn comes to this server that would take it."""
        self._draining = True

    def consider(self, job: Job, turn: Turn, entry: Entry | None, session: Session) -> None:
        """Begin behind a turn that has ended with ``entry``, if that is to be."""
        plan = turn.plan
        if entry is None or self._draining:
            return
        known = prepared_for(session.ahead, entry)
        if known is None and not (
            isinstance(session.ahead, PreparedCut) and session.ahead.under_way
        ):
            session.ahead = None  # the cut was made, or another way was taken
        if not plan.request.keepwarm.compaction.ahead or not entry.open_calls or session.ahead:
            return
        tokens = len(entry.header.ids) + entry.num_tokens
        due = soon_due(plan.request, tokens, self._service.model)
        if due is None or not _pays(turn, session, tokens, due):
            return
        whole = _plan_behind(plan, entry, due, self._service.new_id("resp"))
        session.ahead = prepared = PreparedCut(entry=entry, under_way=True)
        ahead = Job(
            lane=job.lane,
            frame=job.frame,
            session=session,
            displaced=True,
            ahead=True,
            accounts=turn.accounts,
            private=plan.private,
        )
        self._jobs.start(ahead, self._live(ahead, whole, prepared, session))

    async def _live(
        self, job: Job, plan: TurnPlan, prepared: PreparedCut, session: Session
    ) -> None:
        commits = self._service.commits
        session.in_background += 1
        try:
            if commits is not None and commits.has_others:
                job.shares = commits.shared.follow_accounts(
                    plan.tenant, plan.accounts, job.accounts[1:]
                )
            await self._prepare(job, plan, prepared, session)
        except (EndedEarly, ApiError) as end:
            log.info("no context was recast ahead session=%s: %s", session.name, end)
        except Exception:
            log.exception("a context could not be recast ahead session=%s", session.name)
        finally:
            session.in_background -= 1
            prepared.under_way = False
            waiting, prepared.waiting = prepared.waiting, ()
            for ticket in waiting:
                self._asking.wake(ticket)
            if commits is not None and job.shares:
                commits.shared.done(plan.tenant, job.shares)
                job.shares = ()

    async def _prepare(
        self, job: Job, plan: TurnPlan, prepared: PreparedCut, session: Session
    ) -> None:
        """Write the summary, and compute what the next turn's prompt will begin with."""
        service, memory = self._service, self._asking.memory_of(job)
        recasting: Recasting = await self._asking.ask(
            job,
            Work(partial(Recasting, plan, service=service, summary_id=service.new_id("resp"),
                         item_id=service.new_id("cmp"))),
        )  # fmt: skip
        if recasting.idle or recasting.decision is None:
            return
        text: str | None = None
        cost = dict[str, Any]()
        if recasting.summary is not None:
            summary = replace(recasting.summary, sums_up=recasting.summary.response_id)
            text, cost = recasting.read(*await self._play(job, memory, summary, session))
        found: TurnPlan = await self._asking.ask(job, Work(partial(recasting.finish, text)))
        if not recasting.keep(prepared, text, cost):
            return
        id_ = service.new_id("resp")
        prefix = replace(found, response_id=id_, sums_up=id_, recast=None)
        await self._play(job, memory, prefix, session)

    async def _play(
        self, job: Job, memory: Memory, plan: TurnPlan, session: Session
    ) -> tuple[str, Any]:
        """A turn that no client sees; returns its text and its report."""
        await self._take_shares(job, memory, plan, session)
        job.turn = turn = Turn(
            plan,
            service=self._service,
            ledger=session.ledger,
            stream_id=None,
            accounts=job.accounts,
        )
        ending = await self._summing_up.play(job, memory, turn)
        job.turn, job.ending, job.noted = None, None, NOTHING
        if ending.outcome.entry is not None:
            self._service.store.branches.drop(ending.outcome.entry)
        if job.early is not None:
            raise job.early
        return turn.text, ending.outcome.report

    async def _take_shares(
        self, job: Job, memory: Memory, plan: TurnPlan, session: Session
    ) -> None:
        """Have what it needs of accounts that other servers draw on too, if there is so much."""
        gives = bool(job.shares)
        while gives:
            held = Reservation(plan.needs(), session.ledger, accounts=job.accounts)
            if not (lacking := held.lacking_to_start()):
                return
            gives = await memory.claim_shares(lacking)


def _pays(turn: Turn, session: Session, tokens: int, due: Due) -> bool:
    """Whether summary, new prefix and a next turn are within what is left of all budgets, at the
    most that they may cost."""
    said = min(turn.plan.request.max_output_tokens or GRANT_TOKENS, GRANT_TOKENS)
    wanted = NOTHING
    for prompt, output in (
        (PromptTokens(uncached=GRANT_TOKENS, cached=tokens), most_summary_tokens(due)),
        (PromptTokens(uncached=due.threshold // 2), 0),
        (PromptTokens(uncached=GRANT_TOKENS, cached=tokens), said),
    ):
        of_model = session.ledger.prices
        prices = of_model.adapters.get(turn.plan.adapter, of_model)
        cost = prices.most(prompt, output, output)
        wanted = wanted.plus(Amount(*prompt, output, output, cost))
    return all(_has(account, wanted) for account in turn.accounts)


def _has(account: Account, wanted: Amount) -> bool:
    left = account.limits.minus(account.spent).minus(account.held)
    pairs = zip(wanted, left, account.limits, strict=True)
    return all(part <= rest or not is_bound(limit) for part, rest, limit in pairs)


def _plan_behind(plan: TurnPlan, entry: Entry, due: Due, response_id: str) -> TurnPlan:
    """A plan as of a turn that says nothing new behind ``entry``, and is due."""
    options = plan.request.keepwarm
    entries: tuple[ContextManagement, ...] = ()
    if due.entry is not None:
        entries = (due.entry.model_copy(update={"pause": False}),)
    options = options.model_copy(
        update={
            "priority": max(options.priority - BEHIND_SHORT_TURNS, -100),
            "deadline_ms": None,
            "expected_tool_ms": None,
            "request_id": None,
        }
    )
    request = plan.request.model_copy(
        update={"generate": False, "context_management": entries, "keepwarm": options}
    )
    return replace(
        plan,
        response_id=response_id,
        request=request,
        previous_response_id=plan.response_id,
        continued=None,
        continued_id=None,
        parent=entry,
        rebuilt=False,
        input_items=(),
        input_ids=np.empty(0, dtype=np.int32),
        tail=entry.tail,
        open_calls=entry.open_calls,
        digest=entry.digest,
        left_out=entry.left_out,
        max_output=0,
        context_limited=False,
        grammar=None,
        comparison=None,
        last_turn=NO_LAST_TURN,
        checks=NO_CHECKS,
        cut=False,
        frame_bytes=0,
        due=due,
        recast=None,
        warnings=(),
    )
