"""A request's life: from the moment its connection takes it up to its answer.

``Running.live`` is the way of every request, read from top to bottom: it claims its id, recalls
what it names, waits for its session, is planned, has its grammar tried, gets its shares, and
becomes a turn that is played and recorded. Wherever it waits it awaits a question
(``sessions.turns.effects``); what ends it early is raised there (``jobs.EndedEarly``). Which
request is taken up, and when, ``sessions.turns.connection`` decides. No I/O and no event loop:
what is asked of others gathers in the connection's outbox.

Always true: a request that was taken up is answered once, by its turn's last event or an error;
what it holds is let go in one place each, on whichever way it ends.
"""

import logging
from collections.abc import Hashable
from dataclasses import replace
from functools import partial

from runtime.grammar.refusal import GrammarRefused
from sessions.durable.account import NOTHING
from sessions.durable.conversations import ids_among
from sessions.durable.ledger import TurnReport
from sessions.durable.policies import newly_warned
from sessions.durable.reservation import Reservation
from sessions.durable.session import Session, SessionState
from sessions.durable.store import ConnectionStore
from sessions.durable.turn_logs import EventLog
from sessions.ground import RETRY_AFTER_S
from sessions.journal.records import PARENT_DELETED, account_names
from sessions.journal.writer import Verdict
from sessions.turns.ahead import Ahead
from sessions.turns.asking import Asking
from sessions.turns.commits import Ending, refused
from sessions.turns.continuing import find_lineage
from sessions.turns.conversing import Conversing, conversing
from sessions.turns.effects import (
    Outbox,
    RequestIdFreed,
    ServerReady,
    SessionTurn,
    TurnEnded,
    Work,
)
from sessions.turns.following import Following, to_be_asked
from sessions.turns.jobs import EndedEarly, Job, Jobs
from sessions.turns.labels import labels_now
from sessions.turns.lanes import Lanes, Waiting
from sessions.turns.memory import Memory
from sessions.turns.planning import grammar_param, plan_turn, takes_long
from sessions.turns.playing import Playing
from sessions.turns.reading import PrecomputedRequest, grammar_of
from sessions.turns.references import Whole, digested
from sessions.turns.searching import Searching
from sessions.turns.service import Service
from sessions.turns.steering import Steering
from sessions.turns.summing_up import SummingUp
from sessions.turns.tool_waits import ToolWaits
from sessions.turns.turn import Turn
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.usage_facts import usage_keys
from sessions.turns.wanted import Recalled, Wanted
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import ResumeTurn, encode, response_of
from tools_api.grammar import GrammarSpec
from tools_api.requests import CreateRequest

log = logging.getLogger(__name__)


class Running:
    """The lives of one connection's requests."""

    def __init__(
        self,
        *,
        connection_id: str,
        service: Service,
        visible: ConnectionStore,
        jobs: Jobs,
        lanes: Lanes[Waiting],
        following: Following,
        outbox: Outbox,
    ) -> None:
        self._id = connection_id
        self._tenant = tenant = visible.tenant
        self._seal = service.model.seal.for_tenant(tenant.name)
        self._service = service
        self._visible = visible
        self._jobs, self._lanes = jobs, lanes
        self._following, self._outbox = following, outbox
        self.key_name = ""
        """Name of the API key under which the client asks."""
        self.tool_waits = ToolWaits(tenant)
        self.http_request = ""
        """Name of the HTTP request by which the client came, for the log."""
        self._asking = Asking(
            connection_id=connection_id, visible=visible, service=service, outbox=outbox
        )
        self.playing = Playing(
            service=service, jobs=jobs, following=following, outbox=outbox, asking=self._asking
        )
        self._summing_up = SummingUp(
            service=service,
            visible=visible,
            jobs=jobs,
            playing=self.playing,
            outbox=outbox,
            asking=self._asking,
        )
        self._searching = Searching(service=service, playing=self.playing, asking=self._asking)
        self.steering = Steering(
            connection_id=connection_id,
            tenant=tenant,
            service=service,
            jobs=jobs,
            lanes=lanes,
            following=following,
            outbox=outbox,
            playing=self.playing,
        )
        self._ahead = Ahead(
            service=service, jobs=jobs, summing_up=self._summing_up, asking=self._asking
        )

    def enable_events(self) -> None:
        """The client asks for events of our own."""
        self._summing_up.vendor_events.wanted = True

    def drain(self, why: ApiError) -> None:
        """Begin nothing any more that the server begins itself behind a turn."""
        self.steering.drain(why)
        self._ahead.drain()

    # The life of a request, in its order

    async def live(self, job: Job) -> None:
        """Answer a request: with its turn, with the events of another one, or with an error."""
        memory = self._asking.memory_of(job)
        followed: EventLog | None = None
        try:
            followed = await self._claim_id(job, memory)
            if followed is None:
                await self._may_begin(job)
                if draws := self._tenant.quota.lacking():
                    await memory.draw(draws)
                grammar = self._check(job)
                if job.request.references:
                    await self._find_items(job, memory, grammar)
                if (request := self.steering.heard_by(job)) is not None:
                    await self._take_input(job, request, grammar, brought=0)
                while not await self._in_session(job, memory, grammar):
                    pass
        except EndedEarly as early:
            self._refuse(job, early.refusal())
        except ApiError as error:
            self._refuse(job, error)
        except Exception:
            if job.turn is not None:
                raise
            log.exception("request failed connection=%s", self._id)
            self._refuse(job, errors.internal_error())
        finally:
            self._let_go(job, followed)

    def _refuse(self, job: Job, error: ApiError | None) -> None:
        """Answer a request that was not begun; None: nobody is there."""
        self.steering.not_begun(job)
        if error is not None and job.frame.steers:
            self.steering.refused(job, error.message)
        elif error is not None:
            self.send_error(error, job.lane.stream_id)

    def _let_go(self, job: Job, followed: EventLog | None) -> None:
        """Let go of its id, unless a turn began with it, of its memory, and of its lane, which may
        go on with the events of another turn."""
        if job.turn is None and job.log is not None and job.log.follower in (job, None):
            self._service.store.logs.drop(job.log)
            self._free(job.log.request_id)
        if job.frame.hold is not None:
            job.frame.hold.release()
        if followed is not None:
            asked = job.frame.content
            first = asked.after_sequence + 1 if isinstance(asked, ResumeTurn) else 0
            self._following.follow(job.lane, followed, first)
        elif not job.displaced:
            self._lanes.done(job.lane)

    async def _claim_id(self, job: Job, memory: Memory) -> EventLog | None:
        """Have the request's id; returns the turn to follow instead: one that has begun with it, or
        that the client comes back to."""
        asked = job.frame.content
        if isinstance(asked, ResumeTurn):
            wanted = Wanted(request_id=asked.request_id, ended=asked.response_id)
        else:
            wanted = Wanted(request_id=job.request.keepwarm.request_id, takes_id=True)
        if wanted.request_id is not None or wanted.ended is not None:
            known = self._following.known(request_id=wanted.request_id, response_id=wanted.ended)
            if to_be_asked(known):
                wanted.takes_id = wanted.takes_id and known is None
                await memory.look_for_turn(known, wanted)
        if isinstance(asked, ResumeTurn):
            return self._following.found(asked, job.frame.arrival_s)
        return self._following.claim(job)

    async def _may_begin(self, job: Job) -> None:
        """Wait, for a while, until the turn's record could be kept: else nothing is computed."""
        ground = self._service.ground
        if not ground.writable and not await self._asking.ask(job, ServerReady()):
            ground.turn_lost()
            raise errors.overloaded("its journal cannot be written", retry_after_s=RETRY_AFTER_S)

    def _check(self, job: Job) -> GrammarSpec | None:
        """Check what can be checked without knowing what the turn continues; returns its
        grammar."""
        store, prepared = self._service.store, job.frame.prepared
        fault = self._service.fault_of_model(self._tenant, job.request.model)
        if fault is not None:
            raise fault
        if not store.running.has_room_for(self._tenant.name):
            raise errors.overloaded(f"{len(store.running)} turns are open")
        self._tenant.quota.begin_turn()
        if prepared is None:
            return grammar_of(job.request, self._service.read_context)
        if isinstance(prepared.grammar, ApiError):
            raise prepared.grammar
        return prepared.grammar

    async def _find_items(self, job: Job, memory: Memory, grammar: GrammarSpec | None) -> None:
        """Put the items to which the request refers where it refers to them."""
        request, brought = await memory.with_items(job.request)
        await self._take_input(job, request, grammar, brought=brought)

    async def _take_input(
        self, job: Job, request: CreateRequest, grammar: GrammarSpec | None, *, brought: int
    ) -> None:
        """Go on with the request, to whose input so many bytes were added."""
        frame = job.frame
        if frame.hold is not None:
            frame.hold.resize(frame.hold.num_bytes + brought)
        frame.num_bytes += brought
        long = frame.num_bytes > self._service.limits.max_inline_bytes
        work = partial(digested, request)
        whole: Whole = await self._asking.ask(job, Work(work)) if long else work()
        held_bytes = frame.num_bytes if frame.hold is None else frame.hold.num_bytes
        frame.content = whole.request
        frame.prepared = PrecomputedRequest(
            digests=whole.digests, grammar=grammar, held_bytes=held_bytes
        )

    async def _in_session(self, job: Job, memory: Memory, grammar: GrammarSpec | None) -> bool:
        """Run the turn in its session; False: that was lost before, to another server or to who
        deleted it, and has to be asked for anew."""
        if self._service.commits is not None:
            self._service.commits.awake()
        options, session = job.request.keepwarm, None
        ticket: Hashable | None = None
        in_turn = False
        try:
            if options.parent_session is not None:
                await memory.know(options.parent_session)
            if options.session is not None:
                named = job.request.previous_response_id or job.request.conversation
                session = await memory.session(options.session, with_head=named is None)
                turn_comes = self._asking.question(SessionTurn())
                ticket = self._asking.ticket(turn_comes)
                if not session.request_turn(ticket):
                    await turn_comes
                if session.state is SessionState.CLOSED:
                    return False
            in_turn = True
            plan = await self._plan(job, memory, session, grammar)
            if plan.grammar is not None:
                await self._try_grammar(job, plan.request, plan.grammar)
            await self._may_begin(job)
            known = self._visible.known_session(plan.session)
            if known is not None and options.parent_session is None:
                await memory.know_above(known)
            if self._lost(plan, session):
                return False
            return await self._with_shares(job, memory, plan, session, ticket)
        finally:
            if in_turn and job.request.conversation is not None:
                self._tenant.read_now.pop(job.request.conversation, None)
            if session is not None and ticket is not None:
                self._asking.wake(session.withdraw(ticket))

    async def _plan(
        self, job: Job, memory: Memory, session: Session | None, grammar: GrammarSpec | None
    ) -> TurnPlan:
        """Decide what the turn continues, and what the model reads; a long plan is made beside
        the event loop."""
        service, asked = self._service, await self._whole_request(job, memory)
        request, digests, num_bytes = asked.request, asked.digests, asked.num_bytes
        lineage = await find_lineage(request, memory, session, service.new_id("sess"), digests)
        work = partial(
            plan_turn,
            request,
            lineage,
            service=service,
            tenant=self._tenant,
            seal=self._seal,
            response_id=service.new_id("resp"),
            grammar=grammar,
            arrival_s=job.frame.arrival_s,
        )
        long = takes_long(service, request, lineage, num_bytes)
        plan: TurnPlan = await self._asking.ask(job, Work(work)) if long else work()
        if request.background and plan.private:
            why = "what it continues is not stored, so that nobody could ask for it"
            raise errors.invalid_value("background", why)
        if plan.due is not None:
            plan = await self._summing_up.begin(job, plan)
        repeats = len(lineage.items) < len(request.input)
        known = lineage.parent is not None and lineage.parent.entry is plan.continued
        return replace(
            plan,
            conversation=asked.read,
            frame_bytes=0 if repeats else job.frame.num_bytes,
            continued_id=plan.previous_response_id if known else None,
        )

    async def _whole_request(self, job: Job, memory: Memory) -> Conversing:
        """The request with what its conversation says before it."""
        prepared, frame = job.frame.prepared, job.frame
        digests = None if prepared is None else prepared.digests
        if job.request.conversation is None:
            return Conversing(request=job.request, digests=digests, num_bytes=frame.num_bytes)
        conversation = await memory.conversation(job.request.conversation)
        head = self._visible.response(conversation.head_id) if conversation.head_id else None
        entry, new_id = None if head is None else head.entry, self._service.new_id
        num_bytes = frame.num_bytes + conversation.size_bytes
        work = partial(conversing, job.request, conversation, entry, new_id, num_bytes)
        long = num_bytes > self._service.limits.max_inline_bytes
        whole: Conversing = await self._asking.ask(job, Work(work)) if long else work()
        self._tenant.read_now[conversation.id] = ids_among(whole.request.input)
        return whole

    async def _try_grammar(self, job: Job, request: CreateRequest, grammar: GrammarSpec) -> None:
        """Last before the turn, so that no probe works for a prompt that does not fit."""
        try:
            await self._asking.ask(job, grammar)
        except GrammarRefused as refusal:
            param = grammar_param(grammar, request, refusal.block, refusal.path)
            raise errors.invalid_json_schema(param, refusal.reason) from None
        except Exception:  # no fault of the client's
            raise errors.overloaded("the grammar cannot be tried just now") from None

    async def _with_shares(
        self,
        job: Job,
        memory: Memory,
        plan: TurnPlan,
        named: Session | None,
        ticket: Hashable | None,
    ) -> bool:
        """Run the turn with what it needs of accounts that other servers draw on too."""
        commits, session = self._service.commits, self._take_budgets(job, plan)
        try:
            if commits is not None and commits.has_others:
                job.shares = commits.shared.follow(session)
                gives = True
                while gives and (
                    lacking := Reservation(plan.needs(), session.ledger).lacking_to_start()
                ):
                    gives = await memory.claim_shares(lacking)
                    if self._lost(plan, named):
                        return False
                    session = self._take_budgets(job, plan)
                    job.shares = commits.shared.follow_anew(job.shares, session)
            await self._run(job, memory, plan, session, ticket)
            return True
        finally:
            if commits is not None and job.shares:
                commits.shared.done(self._tenant.name, job.shares)
                job.shares = ()

    async def _run(
        self,
        job: Job,
        memory: Memory,
        plan: TurnPlan,
        session: Session,
        ticket: Hashable | None,
    ) -> None:
        """The turn itself, from its first event to its last."""
        service, id_ = self._service, plan.response_id
        number = session.start_turn(id_, ticket, service.clock())
        service.store.running.add(id_, self._tenant.name, self._id)
        ending: Ending | None = None
        try:
            continued_id = plan.continued_id or self._visible.stored_id(plan.continued)
            keys = usage_keys(plan, key=self.key_name, labels=session.labels)
            plan = replace(
                plan,
                number=number,
                continued_id=continued_id,
                keys=keys,
                accounts=account_names(session),
            )
            job.session, session.keys = session, keys.without_tools()
            self._following.turn_started(job, id_, private=plan.private)
            if plan.previous_response_id is not None:
                service.store.logs.continued(self._tenant.name, plan.previous_response_id)
            job.turn = turn = Turn(
                plan, service=service, ledger=session.ledger, stream_id=job.lane.stream_id
            )
            self.steering.begun(job)
            if job.recasting is not None:
                job.turn = turn = await self._summing_up.recast(job, memory, turn, session)
            ending = await self.playing.play(job, memory, turn)
            turn, ending = await self._searching.go_on(job, memory, turn, ending, session)
            ending = await self._record(job, turn, ending)
            self._tell_end(job, turn, ending)
            self.steering.settle(job, ending)
        finally:
            entry = None if ending is None else ending.outcome.entry
            open_calls = None if entry is None else bool(entry.open_calls)
            if ending is not None and ending.outcome.report.out_of_budget == "refused":
                open_calls = False  # no tool's result is read any more
            followed = job.log is not None and job.log.follower not in (job, None)
            goes_on = followed or session.outlives_sockets or job.request.background
            open_calls = self.tool_waits.ended(session, open_calls=open_calls, goes_on=goes_on)
            self._asking.wake(session.end_turn(id_, service.clock(), open_calls=open_calls))
            self._tenant.used(session)
            service.store.running.remove(id_)
        self._ahead.consider(job, turn, ending.outcome.entry, session)

    async def _record(self, job: Job, turn: Turn, ending: Ending) -> Ending:
        """Hold the terminal event until the turn's record is in the journal, if there is one;
        returns how it has ended then."""
        commits, report = self._service.commits, ending.outcome.report
        spent = report.usage.input_tokens or report.cost
        if commits is None and not self._moved(turn.plan, ending):
            return refused(ending, Verdict(written=False, reason=PARENT_DELETED))
        if commits is None or not (spent or ending.outcome.entry is not None):
            if job.noted is not NOTHING:
                self.playing.note(job, turn, NOTHING)
            elif job.log is not None:
                self._free(job.log.request_id)
            return ending
        assert job.session is not None
        at_s = self._service.wall_clock()
        record = commits.record(turn.plan, job.session, ending, created_s=at_s, shares=job.shares)
        try:
            verdict: Verdict = await self._asking.ask(job, record)
        except Exception:
            log.exception("record failed response=%s", turn.plan.response_id)
            verdict = Verdict(written=False, reason="error")
        if job.log is not None:
            job.log.recorded = verdict.written
        if verdict.written:
            return ending
        if verdict.reason == "unavailable":
            self._service.ground.turn_lost()
        if ending.outcome.entry is not None:
            self._service.store.branches.drop(ending.outcome.entry)
        commits.forget(self._service.store, turn.plan, job.session, verdict)
        return refused(ending, verdict)

    def _moved(self, plan: TurnPlan, ending: Ending) -> bool:
        """Where no journal does it: the turn's conversation stands at it now. False: something that
        it read there was taken out meanwhile."""
        entry, store = ending.outcome.entry, self._service.store
        if plan.conversation is None or entry is None:
            return True
        if self._tenant.conversations.move(plan.conversation, plan.response_id, entry):
            return True
        store.branches.drop(entry)
        return False

    def _tell_end(self, job: Job, turn: Turn, ending: Ending) -> None:
        """Let the turn's last event go, and keep what outlives it."""
        service, plan = self._service, turn.plan
        outcome, terminal = ending.outcome, ending.terminal
        self._following.publish(job, [terminal])
        if job.log is not None and job.log.follower not in (job, None) and not job.displaced:
            self.overtaken(job)  # before the notice that says so
        if outcome.entry is not None and plan.request.compacts != "alone":
            assert job.session is not None
            wire = response_of(terminal)
            self._visible.keep(
                plan.response_id, outcome.entry, job.session, private=plan.private, wire=wire
            )
        if job.log is not None:
            if job.log.follower is job:
                job.log.follower = None  # the log outlives the turn, and must not hold it
            service.store.logs.close(job.log)
        service.store.pace.sequence_ended(service.clock())
        usage = outcome.report.usage
        self._tenant.quota.spend(usage.uncached_tokens + usage.output_tokens)
        report = self._warned(outcome.report, turn)
        fields = report.log_fields()
        if self.http_request:
            fields["x_request_id"] = self.http_request
        log.info("turn finished", extra={"fields": fields})
        self._outbox.ended.append(TurnEnded(report=report, terminal=terminal))

    def _warned(self, report: TurnReport, turn: Turn) -> TurnReport:
        """Tell the operator of budgets that are nearly spent, each once."""
        new = newly_warned(turn.accounts)
        for account, kind in new:
            fields = {
                "tenant": report.tenant,
                "scope": account.scope,
                "owner": account.owner,
                "kind": kind,
                "every": account.every,
                "part": account.warn_at,
            }
            log.warning("budget is nearly spent", extra={"fields": fields})
        if not new:
            return report
        return replace(report, warned=tuple(account.scope for account, _ in new))

    def unwanted(self, answer: object) -> None:
        """The journal's answer has come for a request that is gone."""
        commits = self._service.commits
        if not isinstance(answer, Recalled) or commits is None:
            return
        for share in answer.shares:
            commits.shared.unwanted(self._tenant.name, share)
        self._tenant.quota.drawn(answer.draws)
        id_ = answer.taken_id
        if id_ is not None and self._service.store.logs.by_request(self._tenant.name, id_) is None:
            self._free(id_)

    # Before the turn

    def _lost(self, plan: TurnPlan, named: Session | None) -> bool:
        """While the plan was made the session was dropped, and the journal has its account."""
        if named is not None:
            return named.state is SessionState.CLOSED
        known = self._visible.claimed_session(plan.session) is not None
        follows = plan.previous_response_id is not None
        return follows and not known and self._service.commits is not None

    def _take_budgets(self, job: Job, plan: TurnPlan) -> Session:
        """The turn's session, with what the request says of it."""
        # By its name: while the plan was made the session may have been dropped.
        session, options = self._visible.session(plan.session), job.request.keepwarm
        self._visible.set_budgets(options, session)
        session.ledger.policies = self._tenant.policies.for_key(self.key_name)
        session.labels = labels_now(job.request, session, self._service.label_sources)
        if options.on_disconnect is not None:
            session.outlives_sockets = options.on_disconnect == "continue"
        return session

    # What others are told

    def overtaken(self, job: Job) -> None:
        """A newer request gets the events of the turn that this one has become."""
        job.displaced = True
        self._lanes.done(job.lane)
        self.send_error(errors.followed_elsewhere(), job.lane.stream_id)

    def send_error(self, error: ApiError, stream_id: str | None) -> None:
        """Answer with an error in a lane of the connection."""
        self._outbox.frames.append(encode(error.event(stream_id)))

    def _free(self, request_id: str | None) -> None:
        """Let other servers start a turn with that id: nothing came of it here."""
        commits = self._service.commits
        if request_id is not None and commits is not None and commits.has_others:
            self._outbox.notes.append(RequestIdFreed(request_id))
