"""What becomes of the requests that one connection has taken up: planned, started, ended.

A request looks for what it continues, waits for its session, is planned, has its grammar tried and
becomes a turn; the turn's steps become events and requests, and its end waits for the journal.
Which request is taken up, and when, ``sessions.turns.connection`` decides; so it is that hears of
sockets, engines and clocks. No I/O: what is asked of others gathers in the connection's outbox.

Always true: a request that was taken up is answered once, by its turn's last event or an error,
and then is no longer among the jobs; its lane is free from then on.
"""

import itertools
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from runtime.messages import CancelRequest, GenerationRequest, SequenceOutput
from sessions.durable.account import NOTHING, Account, Amount
from sessions.durable.session import Session, SessionState
from sessions.durable.store import ConnectionStore
from sessions.journal.shares import Share
from sessions.turns.commits import Commit, Ending, Reserve
from sessions.turns.effects import Ended, GrammarCheck, Lookup, Outbox
from sessions.turns.following import Following, to_be_asked
from sessions.turns.intake import Waiting
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lanes
from sessions.turns.long_plans import LongPlans, takes_long
from sessions.turns.metering import Meter, needs_of
from sessions.turns.planning import find_lineage, plan_turn
from sessions.turns.reading import Prepared, grammar_of
from sessions.turns.references import Whole, digested, refuse_many_lists, remembered, with_stored
from sessions.turns.service import Service
from sessions.turns.sharing import wants
from sessions.turns.turn import Turn, TurnStep
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.wanted import Wanted, wanted_by
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import encode, response_of
from tools_api.grammar import GrammarSpec
from tools_api.items import Item

log = logging.getLogger(__name__)


class Running:
    """Of one connection."""

    def __init__(
        self,
        *,
        connection_id: str,
        tenant: str,
        service: Service,
        visible: ConnectionStore,
        jobs: Jobs,
        lanes: Lanes[Waiting],
        following: Following,
        outbox: Outbox,
    ) -> None:
        self._id = connection_id
        self._tenant = tenant
        self._service = service
        self._visible = visible
        self._jobs = jobs
        self._lanes = lanes
        self._following = following
        self._outbox = outbox
        self._numbers = itertools.count(1)
        self.long_plans: LongPlans[Job] = LongPlans(connection_id)
        """Plans that take long, to be worked out beside the event loop."""

    def look_up(self, wanted: Wanted) -> str:
        """Ask the journal; returns the id with which the answer comes."""
        lookup_id = f"{self._id}.lookup{next(self._numbers)}"
        self._outbox.lookups.append(Lookup(lookup_id=lookup_id, wanted=wanted))
        return lookup_id

    def take_up(self, job: Job) -> None:
        """Start a request, or follow the turn that its id has started already."""
        request_id = job.request.keepwarm.request_id
        if request_id is not None and self._service.commits is not None and not job.id_looked_up:
            known = self._following.known(request_id=request_id, response_id=None)
            if to_be_asked(known):
                job.id_looked_up, job.known = True, known
                wanted = Wanted(request_id=request_id, takes_id=known is None)
                job.lookup_id = self.look_up(wanted)
                return
        try:
            log = self._following.claim(job)
        except ApiError as error:
            self.refuse(job, error)
            return
        job.taken_up = True
        if log is None:
            self._prepare(job)
        else:
            self._jobs.remove(job)
            self._following.follow(job.lane, log, 0)

    def _prepare(self, job: Job) -> None:
        """What can be checked without knowing what the turn continues."""
        store = self._service.store
        try:
            self._service.check_model(self._tenant, job.request.model)
            if not store.running.takes(self._tenant):
                raise errors.overloaded(f"{len(store.running)} turns are open")
            self._service.quotas.begin_turn(self._tenant)
            job.grammar = self._grammar(job)
        except Exception as error:
            self.begin(job, error)
            return
        self._look_for_items(job)

    def _look_for_items(self, job: Job) -> None:
        """Find what the request refers to, in memory or else in the journal."""
        references, commits = job.request.references, self._service.commits
        if not references:
            self._recall(job)
            return
        try:
            refuse_many_lists(references, self._service.limits)
        except ApiError as error:
            self.refuse(job, error)
            return
        job.found = remembered(references, self._visible)
        if job.found.missing and commits is not None:
            job.lookup_id = self.look_up(Wanted(item_ids=tuple(job.found.missing)))
        else:
            self.found_items(job, {})

    def found_items(self, job: Job, recalled: Mapping[str, Item]) -> None:
        """Put the items where the request refers to them; ``recalled`` were in the journal."""
        found, job.found = job.found, None
        assert found is not None
        try:
            request, brought = with_stored(job.request, found, recalled, self._service.limits)
            if job.hold is not None:
                job.hold.resize(job.hold.num_bytes + brought)
        except ApiError as error:
            self.refuse(job, error)
            return
        job.num_bytes += brought
        work = partial(digested, request)
        if job.num_bytes > self._service.limits.max_inline_bytes:
            self.long_plans.add(job, work)
        else:
            self.referred(job, work())

    def referred(self, job: Job, whole: Whole) -> None:
        """Go on with a request that has the items it referred to."""
        job.request = whole.request
        held_bytes = job.num_bytes if job.hold is None else job.hold.num_bytes
        job.prepared = Prepared(digests=whole.digests, grammar=job.grammar, held_bytes=held_bytes)
        self._recall(job)

    def _recall(self, job: Job) -> None:
        """Ask the journal for what the request names and memory lacks."""
        commits = self._service.commits
        if commits is not None:
            commits.awake()
        digests = None if job.prepared is None else job.prepared.digests
        wanted = None if commits is None else wanted_by(job.request, self._visible, digests)
        if not wanted:
            self.enter_session(job)
            return
        job.lookup_id = self.look_up(wanted)

    def _grammar(self, job: Job) -> GrammarSpec | None:
        if job.prepared is None:
            return grammar_of(job.request, self._service.read_context)
        if isinstance(job.prepared.grammar, ApiError):
            raise job.prepared.grammar
        return job.prepared.grammar

    def enter_session(self, job: Job) -> None:
        """Wait for the named session's turn, if the request names one."""
        name = job.request.keepwarm.session
        if name is not None:
            job.session = self._visible.session(name)
            job.ticket = (self._id, next(self._numbers))
            if not job.session.request(job.ticket):
                return
        self.find_lineage(job)

    def granted(self, job: Job) -> None:
        """It is the request's turn in its session, if that is still this server's: while it
        waited another one may have taken it, or somebody deleted it."""
        if job.session is not None and job.session.state is SessionState.CLOSED:
            self._enter_anew(job)
        else:
            self.find_lineage(job)

    def _lost_its_session(self, job: Job, plan: TurnPlan) -> bool:
        """While the plan was made the session was dropped, and the journal has its account."""
        if job.session is not None and job.ticket is not None:
            return job.session.state is SessionState.CLOSED
        known = self._visible.claimed_session(plan.session) is not None
        follows = plan.previous_response_id is not None
        return follows and not known and self._service.commits is not None

    def _enter_anew(self, job: Job) -> None:
        if job.session is not None and job.ticket is not None:
            self._wake(job.session.withdraw(job.ticket))
        job.session = job.ticket = job.lineage = job.plan = None
        self._done_with_shares(job)
        self._recall(job)

    def find_lineage(self, job: Job) -> None:
        """Decide what the turn continues, and plan it: at once, or later if that takes long."""
        service, request = self._service, job.request
        try:
            digests = None if job.prepared is None else job.prepared.digests
            lineage = find_lineage(
                request, self._visible, job.session, service.new_id("sess"), digests
            )
        except Exception as error:
            self.begin(job, error)
            return
        job.lineage = lineage
        work = partial(
            plan_turn,
            request,
            lineage,
            service=service,
            tenant=self._tenant,
            response_id=service.new_id("resp"),
            grammar=job.grammar,
            arrival_s=job.arrival_s,
        )
        if takes_long(service, request, lineage, job.num_bytes):
            self.long_plans.add(job, work)
            return
        try:
            plan = work()
        except Exception as error:
            self.begin(job, error)
        else:
            self.begin(job, plan)

    def begin(self, job: Job, plan: TurnPlan | Exception) -> None:
        """Start a turn that is planned, or refuse it for what kept it from being planned. Its
        grammar is tried last, so that no probe works for a prompt that does not fit."""
        if job.log is not None and job.log.follower is not job:
            self.give_way(job)  # before the notice that says so
            return
        if isinstance(plan, ApiError):
            self.refuse(job, plan)
            return
        if isinstance(plan, Exception):
            log.error("planning failed connection=%s", self._id, exc_info=plan)
            self.refuse(job, errors.internal_error())
            return
        if job.grammar is None:
            self.start(job, plan)
            return
        job.plan = plan
        job.check_id = f"{self._id}.check{next(self._numbers)}"
        self._outbox.grammar_checks.append(GrammarCheck(check_id=job.check_id, spec=job.grammar))

    def start(self, job: Job, plan: TurnPlan) -> None:
        """Start a turn whose grammar, if it has one, was found good."""
        service = self._service
        if job.log is not None and job.log.follower is not job:
            self.give_way(job)  # to one that came while the grammar was tried
            return
        if self._lost_its_session(job, plan):
            self._enter_anew(job)
            return
        # By its name: while the plan was made the session may have been dropped.
        session = self._visible.session(plan.session)
        try:
            self._visible.take_budgets(job.request.keepwarm, session)
        except ApiError as error:
            self.refuse(job, error)
            return
        if job.request.keepwarm.on_disconnect is not None:
            session.outlives_sockets = job.request.keepwarm.on_disconnect == "continue"
        if self._waits_for_shares(job, plan, session):
            return
        number = session.begin(plan.response_id, job.ticket, service.clock())
        plan = replace(
            plan,
            number=number,
            frame_bytes=_new_bytes(job),
            continued_id=self._continued_id(job, plan),
        )
        service.store.running.begin(plan.response_id, self._tenant, self._id)
        job.session, job.ticket, job.plan = session, None, None
        self._following.begin(job, plan.response_id, private=plan.private)
        if plan.previous_response_id is not None:
            service.store.logs.continued(self._tenant, plan.previous_response_id)
        job.turn = Turn(plan, service=service, ledger=session.ledger, stream_id=job.lane.stream_id)
        self.take(job, job.turn.start())

    def _continued_id(self, job: Job, plan: TurnPlan) -> str | None:
        parent = None if job.lineage is None else job.lineage.parent
        if parent is not None and parent.entry is plan.continued:
            return parent.id
        return self._visible.stored_id(plan.continued)

    def _waits_for_shares(self, job: Job, plan: TurnPlan, session: Session) -> bool:
        """Of the accounts that other servers draw on too the turn needs what this one has not."""
        commits = self._service.commits
        if commits is None or not commits.journal.shared or job.shares is not None:
            return False
        job.plan, job.shares = plan, commits.shared.follow(session)
        meter = Meter(needs_of(plan), session.ledger)
        return self._ask_for_shares(job, meter.lacking_to_start())

    def _ask_for_shares(self, job: Job, lacking: Sequence[tuple[Account, Amount]]) -> bool:
        if lacking:
            job.asked = {account.name: account for account, _ in lacking}
            job.lookup_id = self.look_up(Wanted(shares=wants(lacking)))
        return bool(lacking)

    def got_shares(self, job: Job | None, shares: Sequence[Share]) -> None:
        """The journal has given what a turn asked for, or what there was of it."""
        commits = self._service.commits
        assert commits is not None
        for share in shares:
            if job is None:
                commits.shared.unwanted(self._tenant, share)
            else:
                commits.shared.got(job.asked[share.name], share)
        if job is not None and job.turn is not None:
            self._go_on(job)
        elif job is not None:
            assert job.plan is not None
            self.start(job, job.plan)

    def _go_on(self, job: Job) -> None:
        """Take what waited; the first of it whether the journal had enough or not."""
        outputs, job.stalled = job.stalled or [], None
        for number, output in enumerate(outputs):
            self.receive(job, output, asks=number > 0)

    def receive(self, job: Job, output: SequenceOutput, *, asks: bool = True) -> None:
        """Take what the engine said of a turn. ``asks``: if it needs more of a shared account it
        waits until the journal has been asked."""
        turn = job.turn
        assert turn is not None
        if job.ending is not None or self._jobs.of_request(output.request_id) is not job:
            return
        if job.stalled is not None:
            job.stalled.append(output)
            return
        now = self._service.clock()
        try:
            if asks and job.shares and self._ask_for_shares(job, turn.lacking(output)):
                job.stalled = [output]
                return
            step = turn.receive(output, now)
        except Exception:
            log.exception("turn failed response=%s", turn.plan.response_id)
            step = turn.fail("internal", "The server had an internal error.", now)
        self.take(job, step)

    def stalled_for_good(self, job: Job) -> None:
        """The journal cannot say what the turn may still spend."""
        assert job.turn is not None
        job.stalled = None
        message = "The server could not ask what is left of a budget."
        step = job.turn.fail("journal_unavailable", message, self._service.clock())
        self.take(job, step)

    def take(self, job: Job, step: TurnStep) -> None:
        """Carry out what a turn asks for: events to who follows it, requests to the engine."""
        frames = list(map(encode, step.events))
        ending: Ending | None = None
        if step.outcome is not None:
            ending = Ending(outcome=step.outcome, terminal=frames.pop())
        if frames:
            self._following.tell(job, frames)
        self._outbox.requests += step.requests
        for message in step.requests:
            if isinstance(message, GenerationRequest):
                self._jobs.sent(job, message.request_id)
                if job.session is not None:
                    self._service.store.residents.writes(message.branch_id, job.session)
            elif isinstance(message, CancelRequest):
                self._jobs.withdrawn(message.request_id)
        if ending is not None:
            self._commit(job, ending)
        elif job.turn is not None and job.turn.noted is not job.noted:
            self._note(job, job.turn.noted)

    def _note(self, job: Job, held: Amount) -> None:
        """Have noted what the turn may consume, in case the server dies."""
        urgent = held.output > job.noted.output or NOTHING in (held, job.noted)
        job.noted = held
        commits = self._service.commits
        if commits is not None:
            assert job.turn is not None
            assert job.session is not None
            created_s = self._service.wall_clock()
            record = commits.reservation(job.turn.plan, job.session, held, created_s=created_s)
            self._outbox.reserves.append(Reserve(record=record, urgent=urgent))

    def _commit(self, job: Job, ending: Ending) -> None:
        """Hold the terminal event until the turn's record is in the journal, if there is one."""
        commits, report = self._service.commits, ending.outcome.report
        spent = report.usage.input_tokens or report.cost
        if commits is None or not (spent or ending.outcome.entry is not None):
            if job.noted is not NOTHING:
                self._note(job, NOTHING)
            elif job.log is not None:
                self._free(job.log.request_id)
            self.end(job, ending)
            return
        assert job.turn is not None
        assert job.session is not None
        job.ending = ending
        self._jobs.withdrawn(job.turn.request_id)
        created_s = self._service.wall_clock()
        record = commits.record(
            job.turn.plan, job.session, ending, created_s=created_s, shares=job.shares or ()
        )
        self._outbox.commits.append(Commit(record=record))

    def end(self, job: Job, ending: Ending) -> None:
        """Let a turn's last event go, and keep what outlives it."""
        assert job.turn is not None
        assert job.session is not None
        outcome, terminal = ending.outcome, ending.terminal
        self._following.tell(job, [terminal])
        plan, session, entry = job.turn.plan, job.session, outcome.entry
        now = self._service.clock()
        if entry is not None:
            wire = response_of(terminal)
            self._visible.keep(plan.response_id, entry, session, private=plan.private, wire=wire)
        open_calls = None if entry is None else bool(entry.open_calls)
        if job.log is not None:
            if job.log.follower is job:
                job.log.follower = None  # the log outlives the turn, and must not hold it
            self._service.store.logs.close(job.log)
        self._wake(session.end(plan.response_id, now, open_calls=open_calls))
        self._jobs.withdrawn(job.turn.request_id)
        store = self._service.store
        store.used(session)
        store.running.end(plan.response_id)
        store.pace.sequence_ended(now)
        usage = outcome.report.usage
        self._service.quotas.spend(self._tenant, usage.uncached_tokens + usage.output_tokens)
        log.info("turn finished", extra={"fields": outcome.report.log_fields()})
        self._outbox.finished.append(outcome.report)
        self._outbox.ended.append(Ended(response_id=plan.response_id, terminal=terminal))
        self._answered(job)

    def _done_with_shares(self, job: Job) -> None:
        commits, shares, job.shares = self._service.commits, job.shares, None
        if commits is not None and shares:
            commits.shared.done(self._tenant, shares)

    def _answered(self, job: Job) -> None:
        self._done_with_shares(job)
        self._jobs.remove(job)
        if not job.displaced:
            self._lanes.done(job.lane)

    def give_way(self, job: Job) -> None:
        """A newer request bears this one's id: it gets the turn, or what comes of it."""
        if job.turn is None:
            self.refuse(job, errors.followed_elsewhere())
            return
        job.displaced = True
        self._lanes.done(job.lane)
        self.send_error(errors.followed_elsewhere(), job.lane.stream_id)

    def disconnected(self, job: Job) -> None:
        """Nobody is there for a request any more, or it has lost its connection: it goes on for
        who follows it, or for a client that may come back."""
        if job.turn is None:
            self._leave(job)
            return
        if job.ending is not None:
            return
        assert job.session is not None
        followed = job.log is not None and job.log.follower is not None
        if job.turn.plan.private or not (followed or job.session.outlives_sockets):
            self.take(job, job.turn.cancel(self._service.clock()))

    def refuse(self, job: Job, error: ApiError) -> None:
        """Answer a request that does not start."""
        self.send_error(error, job.lane.stream_id)
        self._leave(job)

    def _leave(self, job: Job) -> None:
        """A request that has not started goes."""
        if job.session is not None and job.ticket is not None:
            self._wake(job.session.withdraw(job.ticket))
        if job.log is not None and job.log.follower in (job, None):
            self._service.store.logs.drop(job.log)
            self._free(job.log.request_id)
        self.long_plans.withdraw(job)
        if job.check_id is not None:
            self._outbox.withdrawn_checks.append(job.check_id)
        self._answered(job)

    def unwanted(self, request_id: str) -> None:
        """The journal has given this server a request's id, and the request is gone."""
        if self._service.store.logs.of_request(self._tenant, request_id) is None:
            self._free(request_id)

    def _free(self, request_id: str | None) -> None:
        """Let other servers start a turn with that id: nothing came of it here."""
        commits = self._service.commits
        if request_id is not None and commits is not None and commits.journal.shared:
            self._outbox.freed.append(request_id)

    def _wake(self, ticket: Hashable | None) -> None:
        if ticket is not None:
            assert isinstance(ticket, tuple)
            self._outbox.wake.append(ticket[0])

    def send_error(self, error: ApiError, stream_id: str | None) -> None:
        """Answer with an error in a lane of the connection."""
        self._outbox.frames.append(encode(error.event(stream_id)))


def _new_bytes(job: Job) -> int:
    """Of the frame, unless part of it is history that is held already."""
    repeats = job.lineage is not None and len(job.lineage.items) < len(job.request.input)
    return 0 if repeats else job.num_bytes
