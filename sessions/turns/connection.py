"""One client's connection without the socket: frames in, frames and requests out.

A WebSocket is one; so is every turn that is asked for over HTTP, for itself. It knows lanes,
the order of turns, which response a turn continues and when the connection must end. It does
no I/O: each call returns ``Effects``, which ``sessions.wire.hub`` carries out. Tokens become events
in ``sessions.turns.turn``; what outlives the connection is in ``sessions.durable.store``.

Always true: a turn that sent ``response.created`` sends exactly one terminal event, unless
the client is gone; a request that fails before that gets exactly one ``error``; within a
lane answers come in the order of the requests.
"""

import itertools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

from runtime.messages import CancelRequest, GenerationRequest, SequenceOutput
from sessions.durable.store import ConnectionStore
from sessions.durable.turn_logs import TurnLog
from sessions.durable.weights import Hold, request_bytes
from sessions.journal.writer import Verdict
from sessions.turns.commits import Commit, Ending, refused
from sessions.turns.effects import Effects, Ended, GrammarCheck, Lookup, Outbox
from sessions.turns.following import Following
from sessions.turns.intake import Waiting, place
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lane, Lanes
from sessions.turns.long_plans import LongPlans, takes_long
from sessions.turns.planning import find_lineage, grammar_param, plan_turn
from sessions.turns.reading import Prepared, Read, grammar_of, read_frame
from sessions.turns.recollection import Recalled, Wanted, journal_error, wanted_by
from sessions.turns.service import Service
from sessions.turns.turn import Turn, TurnStep
from sessions.turns.turn_plan import TurnPlan
from tools_api import errors, events
from tools_api.errors import ApiError
from tools_api.events import CancelTurn, ResumeTurn, SteerRequest, encode, response_of
from tools_api.grammar import GrammarSpec
from tools_api.requests import CreateRequest

log = logging.getLogger(__name__)

GOING_AWAY = 1001
SERVICE_RESTART = 1012


class Connection:
    """Not thread-safe; all connections of a service live in one event loop."""

    def __init__(
        self,
        *,
        connection_id: str,
        tenant: str,
        service: Service,
        visible: ConnectionStore | None = None,
    ) -> None:
        """``visible``: what it may continue, if that is not its tenant's and its own."""
        self._id = connection_id
        self._tenant = tenant
        self._service = service
        self._visible = visible or ConnectionStore(
            service.store, tenant=tenant, connection_id=connection_id
        )
        limits = service.limits
        self._lanes: Lanes[Waiting] = Lanes(
            max_names=limits.max_stream_ids, max_active=limits.max_active_responses
        )
        self._opened_s = service.clock()
        self._numbers = itertools.count(1)
        self._jobs = Jobs()
        self._long_plans: LongPlans[Job] = LongPlans(connection_id)
        self._out = Outbox()
        self._following = Following(
            connection_id=connection_id,
            tenant=tenant,
            logs=service.store.logs,
            lanes=self._lanes,
            outbox=lambda: self._out,
        )
        self._draining = False
        self._close_with: int | None = None
        """Code to close with at the next moment without work."""
        self._closed = False
        self._hosted_logged = False

    @property
    def num_active(self) -> int:
        """Requests taken up and not yet answered to the end, and turns that go on without
        their client."""
        return len(self._jobs) + len(self._following)

    def receive(self, frame: str | bytes) -> Effects:
        """Take one client frame (protocol section 2). Never raises for what a client sent."""
        if self._closed:
            return Effects()
        return self.take(read_frame(frame, self._service.read_context), len(frame))

    def take(self, read: Read, num_bytes: int) -> Effects:
        """Take a frame or body of ``num_bytes`` that has been read."""
        if self._closed:
            return Effects()
        event = read.content
        if isinstance(event, CreateRequest | ResumeTurn | ApiError):
            self._put(event, num_bytes, read.prepared)
        elif isinstance(event, CancelTurn):
            self._cancel(event)
        elif isinstance(event, SteerRequest):
            self._refuse_steering(event)
        return self._effects()

    def _put(
        self,
        content: CreateRequest | ResumeTurn | ApiError,
        num_bytes: int,
        prepared: Prepared | None,
    ) -> None:
        waiting = Waiting(content, num_bytes, self._service.clock(), prepared)
        if isinstance(content, ApiError):
            self._enqueue(waiting, content.stream_id)
        else:
            self._accept(waiting, content)

    def look(self, log: TurnLog) -> Effects:
        """Take notice that something has changed about a turn that runs or is followed here."""
        self._following.look(log)
        for job in self._jobs.with_log(log):
            if log.follower is None:
                self._disconnected(job)
            elif log.follower is not job and not job.displaced:
                self._give_way(job)
        return self._effects()

    def running(self, response_id: str) -> Turn | None:
        """The turn of that response, if it runs here."""
        job = self._jobs.of_response(response_id)
        return None if job is None else job.turn

    def output(self, output: SequenceOutput) -> Effects:
        """Take what one engine step gave one of this connection's requests."""
        job = self._jobs.of_request(output.request_id)
        if job is None or job.turn is None:
            return Effects()  # of a request that was cancelled meanwhile
        now = self._service.clock()
        try:
            step = job.turn.receive(output, now)
        except Exception:
            log.exception("turn failed response=%s", job.turn.plan.response_id)
            step = job.turn.fail("internal", "The server had an internal error.", now)
        self._take(job, step)
        return self._effects()

    def grammar_checked(
        self,
        check_id: str,
        refusal: str | None,
        *,
        block: int | None = None,
        path: Sequence[str | int] | None = None,
    ) -> Effects:
        """Take the probe's verdict. An unknown ``check_id`` (its turn is gone) is ignored.

        Args:
            refusal: the reason in words, None if the grammar compiles.
            block: which of the grammar's JSON schemas is at fault, from 0, if known.
            path: from that schema's root to the keyword, if known.
        """
        job = self._jobs.of_check(check_id)
        if job is None:
            return Effects()
        job.check_id = None
        if refusal is None:
            assert job.plan is not None
            self._start(job, job.plan)
        else:
            assert job.grammar is not None
            param = grammar_param(job.grammar, job.request, block, path)
            self._refuse(job, errors.invalid_json_schema(param, refusal))
        return self._effects()

    def grammar_unchecked(self, check_id: str) -> Effects:
        """The probe could not try the grammar, which is no fault of the client's."""
        job = self._jobs.of_check(check_id)
        if job is not None:
            job.check_id = None
            self._refuse(job, errors.overloaded("the grammar cannot be tried just now"))
        return self._effects()

    def planned(self, planning_id: str, outcome: TurnPlan | Exception) -> Effects:
        """Take what a plan's work gave or raised. An unknown id (its turn is gone) is ignored."""
        job = self._long_plans.returned(planning_id)
        if job is not None:
            self._begin(job, outcome)
        return self._effects()

    def recalled(self, lookup_id: str, outcome: Recalled | Exception) -> Effects:
        """Take notice that the journal was asked: what it knew is in memory. An unknown id (its
        turn is gone) is ignored."""
        job, waited = self._jobs.of_lookup(lookup_id), self._following.waited(lookup_id)
        if waited is not None:
            self._resume_recalled(*waited, outcome)
        elif job is not None:
            job.lookup_id = None
            if isinstance(outcome, Exception):
                self._begin(job, journal_error(outcome))
            elif job.id_looked_up and not job.taken_up:
                self._take_up(job)
            else:
                self._enter_session(job)
        return self._effects()

    def committed(self, response_id: str, verdict: Verdict) -> Effects:
        """Take the verdict on a turn's record, and let its terminal event go."""
        job = self._jobs.of_response(response_id)
        if job is not None and job.ending is not None:
            ending, entry = job.ending, job.ending.outcome.entry
            if not verdict.written:
                ending = refused(ending, verdict)
                if entry is not None:
                    self._service.store.branches.drop(entry)
                if verdict.reason == "stale" and job.session is not None:
                    self._service.store.forget_session(self._tenant, job.session.name)
            self._end(job, ending)
        return self._effects()

    def resume(self) -> Effects:
        """Start turns that waited for a named session; called when ``Effects.wake`` says so."""
        for job in self._jobs:
            if job.lineage is None and job.session and job.session.is_granted(job.ticket):
                self._find_lineage(job)
        return self._effects()

    def cancel(self, response_id: str) -> Effects:
        """End that turn, for whoever of its tenant asked. One that does not run is ignored."""
        job = self._jobs.of_response(response_id)
        if job is not None:
            self._stop(job)
        return self._effects()

    def engine_died(self) -> Effects:
        """Fail all running turns: the engine is gone, or the time for draining is over.

        When the engine died the hub has called ``service.store.engine_lost()`` before, once
        for all connections; it sends the returned requests when the engine is back.
        """
        now = self._service.clock()
        reason, message = "engine_died", "The engine stopped."
        if self._draining:
            reason, message = "shutting_down", "The server is shutting down."
        for job in self._jobs:
            if job.turn is not None and job.ending is None:
                self._take(job, job.turn.fail(reason, message, now))
        return self._effects()

    def tick(self) -> Effects:
        """Look at the clock: an idle connection beyond its age limit is closed with 1001, a
        busy one at its next moment without work. To be called about once a second."""
        if not self._closed:
            self._visible.expire()
            if self._too_old() and self._close_with is None:
                self._close_with = GOING_AWAY
        return self._effects()

    def drain(self) -> Effects:
        """Shut down gently: running turns finish, waiting creates are answered with
        ``server_is_overloaded``, then the socket closes with 1012."""
        self._draining = True
        self._close_with = SERVICE_RESTART
        for job in [job for job in self._jobs if job.turn is None]:
            self._refuse(job, _shutting_down())
        for lane, waiting in self._drop_waiting():
            content = waiting.content
            error = content if isinstance(content, ApiError) else _shutting_down()
            self._send_error(error, lane.stream_id)
        return self._effects()

    def close(self) -> Effects:
        """The client is gone: cancel its turns and forget what was local to it. Idempotent."""
        if not self._closed:
            self._closed = True
            self._drop_waiting()
            self._following.leave()
            for job in self._jobs:
                if job.log is not None and job.log.follower is job:
                    job.log.follower = None
                self._disconnected(job)
            self._visible.close()
        return self._effects()

    # Taking requests in

    def _accept(self, waiting: Waiting, request: CreateRequest | ResumeTurn) -> None:
        if self._draining:
            self._send_error(_shutting_down(), request.stream_id)
        elif self._too_old():
            self._close_with = GOING_AWAY
            age_s = self._service.limits.connection_age_s
            self._send_error(errors.connection_limit_reached(age_s), request.stream_id)
        else:
            if isinstance(request, CreateRequest):
                self._log_hosted(request)
            self._enqueue(waiting, request.stream_id)

    def _log_hosted(self, request: CreateRequest) -> None:
        if request.hosted_tools and not self._hosted_logged:
            self._hosted_logged = True
            tools = ",".join(request.hosted_tools)
            log.info("hosted tools are left out connection=%s tools=%s", self._id, tools)

    def _enqueue(self, waiting: Waiting, stream_id: str | None) -> None:
        try:
            waiting.hold = self._hold(waiting)
            error = place(self._lanes, waiting, stream_id, self._service.limits)
        except ApiError as too_much:
            error = too_much
        if error is not None:
            _let_go(waiting)
            self._send_error(error, stream_id)

    def _hold(self, waiting: Waiting) -> Hold | None:
        if not isinstance(waiting.content, CreateRequest):
            return None
        ready = waiting.prepared
        held_bytes = request_bytes(waiting.content) if ready is None else ready.held_bytes
        held_bytes = max(held_bytes, waiting.num_bytes)
        return self._service.store.held.take(self._tenant, self._id, held_bytes)

    def _drop_waiting(self) -> list[tuple[Lane[Waiting], Waiting]]:
        dropped = self._lanes.drop_waiting()
        for _, waiting in dropped:
            _let_go(waiting)
        return dropped

    def _refuse_steering(self, request: SteerRequest) -> None:
        job = self._jobs.of_response(request.previous_response_id)
        number, stream_id = 0, None
        if job is not None and job.turn is not None:
            number, stream_id = job.turn.events.take_number(), job.lane.stream_id
        failed = events.steer_failed(
            number,
            request,
            "steering_not_supported",
            "This server does not steer running responses.",
            stream_id,
        )
        if job is None or job.turn is None:
            self._out.frames.append(encode(failed))
        else:
            self._following.tell(job, [encode(failed)])

    def _cancel(self, asked: CancelTurn) -> None:
        """Protocol 7.7: the lane's turn, or a turn of the tenant by its id, wherever it runs."""
        response_id = asked.response_id
        followed = self._following.in_lane(asked.stream_id)
        if response_id is None and followed is not None:
            response_id = followed.response_id
        if response_id is None:
            job = self._jobs.in_lane(asked.stream_id)
        else:
            job = self._jobs.of_response(response_id)
        if job is not None:
            self._stop(job)
            return
        elsewhere = None
        if response_id is not None:
            elsewhere = self._service.store.running_on(self._tenant, response_id)
        if elsewhere is None or response_id is None:
            self._send_error(errors.response_not_found(response_id), asked.stream_id)
        else:
            self._out.cancels.append((elsewhere, response_id))

    def _stop(self, job: Job) -> None:
        if job.turn is None:
            self._refuse(job, errors.request_cancelled())
        elif job.ending is None:
            self._take(job, job.turn.stop(self._service.clock()))

    # From request to turn

    def _pump(self) -> None:
        """Take up whatever may run."""
        while not self._closed and (taken := self._lanes.next()) is not None:
            lane, waiting = taken
            if isinstance(waiting.content, ApiError):
                self._lanes.done(lane)
                self._send_error(waiting.content, lane.stream_id)
                continue
            if isinstance(waiting.content, ResumeTurn):
                self._resume_turn(lane, waiting.content)
                continue
            job = Job(
                lane=lane,
                request=waiting.content,
                prepared=waiting.prepared,
                hold=waiting.hold,
                num_bytes=waiting.num_bytes,
                arrival_s=waiting.arrival_s,
            )
            self._jobs.add(job)
            self._take_up(job)

    def _look_up(self, wanted: Wanted) -> str:
        """Ask the journal; returns the id with which the answer comes."""
        lookup_id = f"{self._id}.lookup{next(self._numbers)}"
        self._out.lookups.append(Lookup(lookup_id=lookup_id, wanted=wanted))
        return lookup_id

    def _resume_turn(self, lane: Lane[Waiting], asked: ResumeTurn) -> None:
        """Follow the turn, once the journal has been asked where memory lacks it."""
        known = self._following.knows(request_id=asked.request_id, response_id=asked.response_id)
        if known or self._service.commits is None:
            self._follow_found(lane, asked)
            return
        wanted = Wanted(request_id=asked.request_id, ended=asked.response_id)
        self._following.wait_for(self._look_up(wanted), lane, asked)

    def _resume_recalled(
        self, lane: Lane[Waiting], asked: ResumeTurn, outcome: Recalled | Exception
    ) -> None:
        if not isinstance(outcome, Exception):
            self._follow_found(lane, asked)
            return
        error = journal_error(outcome)
        self._lanes.done(lane)
        refusal = error if isinstance(error, ApiError) else errors.internal_error()
        self._send_error(refusal, lane.stream_id)

    def _follow_found(self, lane: Lane[Waiting], asked: ResumeTurn) -> None:
        try:
            log = self._following.found(asked)
        except ApiError as error:
            self._lanes.done(lane)
            self._send_error(error, lane.stream_id)
        else:
            self._following.follow(lane, log, asked.after_sequence + 1)

    def _take_up(self, job: Job) -> None:
        """Start a request, or follow the turn that its id has started already."""
        request_id = job.request.keepwarm.request_id
        known = self._following.knows(request_id=request_id, response_id=None)
        if not (known or job.id_looked_up or self._service.commits is None):
            job.id_looked_up = True
            job.lookup_id = self._look_up(Wanted(request_id=request_id))
            return
        try:
            log = self._following.claim(job)
        except ApiError as error:
            self._refuse(job, error)
            return
        job.taken_up = True
        if log is None:
            self._prepare(job)
        else:
            self._jobs.remove(job)
            self._following.follow(job.lane, log, 0)

    def _prepare(self, job: Job) -> None:
        """What can be checked without knowing what the turn continues."""
        store, limits = self._service.store, self._service.limits
        try:
            self._service.check_model(self._tenant, job.request.model)
            if store.running_turns >= limits.max_queued_turns:
                raise errors.overloaded(f"{store.running_turns} turns are open")
            self._service.quotas.begin_turn(self._tenant)
            job.grammar = self._grammar(job)
        except Exception as error:
            self._begin(job, error)
            return
        self._recall(job)

    def _recall(self, job: Job) -> None:
        """Ask the journal for what the request names and memory lacks."""
        commits = self._service.commits
        digests = None if job.prepared is None else job.prepared.digests
        wanted = None if commits is None else wanted_by(job.request, self._visible, digests)
        if not wanted:
            self._enter_session(job)
            return
        job.lookup_id = self._look_up(wanted)

    def _grammar(self, job: Job) -> GrammarSpec | None:
        if job.prepared is None:
            return grammar_of(job.request, self._service.read_context)
        if isinstance(job.prepared.grammar, ApiError):
            raise job.prepared.grammar
        return job.prepared.grammar

    def _enter_session(self, job: Job) -> None:
        """Wait for the named session's turn, if the request names one."""
        name = job.request.keepwarm.session
        if name is not None:
            job.session = self._visible.session(name)
            job.ticket = (self._id, next(self._numbers))
            if not job.session.request(job.ticket):
                return
        self._find_lineage(job)

    def _find_lineage(self, job: Job) -> None:
        """Decide what the turn continues, and plan it: at once, or later if that takes long."""
        service, request = self._service, job.request
        try:
            digests = None if job.prepared is None else job.prepared.digests
            lineage = find_lineage(
                request, self._visible, job.session, service.new_id("sess"), digests
            )
        except Exception as error:
            self._begin(job, error)
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
            self._long_plans.add(job, work)
            return
        try:
            plan: TurnPlan | Exception = work()
        except Exception as error:
            plan = error
        self._begin(job, plan)

    def _begin(self, job: Job, plan: TurnPlan | Exception) -> None:
        """Start a turn that is planned, or refuse it for what kept it from being planned. Its
        grammar is tried last, so that no probe works for a prompt that does not fit."""
        if job.log is not None and job.log.follower is not job:
            self._give_way(job)  # before the notice that says so
            return
        if isinstance(plan, ApiError):
            self._refuse(job, plan)
            return
        if isinstance(plan, Exception):
            log.error("planning failed connection=%s", self._id, exc_info=plan)
            self._refuse(job, errors.internal_error())
            return
        if job.grammar is None:
            self._start(job, plan)
            return
        job.plan = plan
        job.check_id = f"{self._id}.check{next(self._numbers)}"
        self._out.grammar_checks.append(GrammarCheck(check_id=job.check_id, spec=job.grammar))

    def _start(self, job: Job, plan: TurnPlan) -> None:
        service = self._service
        if job.log is not None and job.log.follower is not job:
            self._give_way(job)  # to one that came while the grammar was tried
            return
        # By its name: while the plan was made the session may have been dropped.
        session = self._visible.session(plan.session)
        try:
            self._visible.take_budgets(job.request.keepwarm, session)
        except ApiError as error:
            self._refuse(job, error)
            return
        if job.request.keepwarm.on_disconnect is not None:
            session.outlives_sockets = job.request.keepwarm.on_disconnect == "continue"
        number = session.begin(plan.response_id, job.ticket, service.clock())
        plan = replace(plan, number=number, frame_bytes=_new_bytes(job))
        service.store.turn_began(plan.response_id, self._tenant, self._id)
        job.session, job.ticket, job.plan = session, None, None
        self._following.begin(job, plan.response_id, private=plan.private)
        if plan.previous_response_id is not None:
            service.store.logs.continued(self._tenant, plan.previous_response_id)
        job.turn = Turn(plan, service=service, ledger=session.ledger, stream_id=job.lane.stream_id)
        self._take(job, job.turn.start())

    # From turn to client

    def _take(self, job: Job, step: TurnStep) -> None:
        frames = list(map(encode, step.events))
        ending: Ending | None = None
        if step.outcome is not None:
            ending = Ending(outcome=step.outcome, terminal=frames.pop())
        if frames:
            self._following.tell(job, frames)
        self._out.requests += step.requests
        for message in step.requests:
            if isinstance(message, GenerationRequest):
                self._jobs.sent(job, message.request_id)
            elif isinstance(message, CancelRequest):
                self._jobs.withdrawn(message.request_id)
        if ending is not None:
            self._commit(job, ending)

    def _commit(self, job: Job, ending: Ending) -> None:
        """Hold the terminal event until the turn's record is in the journal, if there is one."""
        commits, report = self._service.commits, ending.outcome.report
        spent = report.usage.input_tokens or report.cost
        if commits is None or not (spent or ending.outcome.entry is not None):
            self._end(job, ending)
            return
        assert job.turn is not None
        assert job.session is not None
        job.ending = ending
        self._jobs.withdrawn(job.turn.request_id)
        created_s = self._service.wall_clock()
        record = commits.record(job.turn.plan, job.session, ending, created_s=created_s)
        self._out.commits.append(Commit(record=record))

    def _end(self, job: Job, ending: Ending) -> None:
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
        store.turn_ended(plan.response_id)
        store.pace.sequence_ended(now)
        usage = outcome.report.usage
        self._service.quotas.spend(self._tenant, usage.uncached_tokens + usage.output_tokens)
        log.info("turn finished", extra={"fields": outcome.report.log_fields()})
        self._out.finished.append(outcome.report)
        self._out.ended.append(Ended(response_id=plan.response_id, terminal=terminal))
        self._answered(job)

    def _answered(self, job: Job) -> None:
        self._jobs.remove(job)
        if not job.displaced:
            self._lanes.done(job.lane)

    def _give_way(self, job: Job) -> None:
        """A newer request bears this one's id: it gets the turn, or what comes of it."""
        if job.turn is None:
            self._refuse(job, errors.followed_elsewhere())
            return
        job.displaced = True
        self._lanes.done(job.lane)
        self._send_error(errors.followed_elsewhere(), job.lane.stream_id)

    def _disconnected(self, job: Job) -> None:
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
            self._take(job, job.turn.cancel(self._service.clock()))

    def _refuse(self, job: Job, error: ApiError) -> None:
        """Answer a request that does not start."""
        self._send_error(error, job.lane.stream_id)
        self._leave(job)

    def _leave(self, job: Job) -> None:
        """A request that has not started goes."""
        if job.session is not None and job.ticket is not None:
            self._wake(job.session.withdraw(job.ticket))
        if job.log is not None and job.log.follower in (job, None):
            self._service.store.logs.drop(job.log)
        self._long_plans.withdraw(job)
        if job.check_id is not None:
            self._out.withdrawn_checks.append(job.check_id)
        self._answered(job)

    def _wake(self, ticket: Hashable | None) -> None:
        if ticket is not None:
            assert isinstance(ticket, tuple)
            self._out.wake.append(ticket[0])

    def _send_error(self, error: ApiError, stream_id: str | None) -> None:
        self._out.frames.append(encode(error.event(stream_id)))

    def _too_old(self) -> bool:
        age_s = self._service.clock() - self._opened_s
        return age_s > self._service.limits.connection_age_s

    def _effects(self) -> Effects:
        """Everything that gathered, after taking up what may run now."""
        self._pump()
        if (planning := self._long_plans.take()) is not None:
            self._out.plannings.append(planning)
        out, self._out = self._out, Outbox()
        idle = not self.num_active and not self._lanes.num_waiting
        close = None
        if idle and not self._closed and self._close_with is not None:
            close = self._close_with
            self._closed = True
            self._visible.close()
        if self._closed and close is None:
            out.frames.clear()
        out.requests += self._service.store.branches.take_releases()
        return out.effects(close)


def _new_bytes(job: Job) -> int:
    """Of the frame, unless part of it is history that is held already."""
    repeats = job.lineage is not None and len(job.lineage.items) < len(job.request.input)
    return 0 if repeats else job.num_bytes


def _let_go(waiting: Waiting) -> None:
    """It will not be taken up."""
    if waiting.hold is not None:
        waiting.hold.give_back()


def _shutting_down() -> ApiError:
    return errors.overloaded("it is shutting down")
