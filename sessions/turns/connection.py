"""One client's connection without the socket: frames in, frames and requests out.

A WebSocket is one; so is every turn that is asked for over HTTP, for itself. It knows lanes,
which request is taken up next, and when the connection must end. It does no I/O: each call
returns ``Effects``, which ``sessions.wire.hub`` carries out. What becomes of a request that was
taken up is in ``sessions.turns.running``; what outlives the connection in
``sessions.durable.store``.

Always true: a turn that sent ``response.created`` sends exactly one terminal event, unless
the client is gone; a request that fails before that gets exactly one ``error``; within a
lane answers come in the order of the requests.
"""

import logging
from collections.abc import Sequence

from runtime.messages import SequenceOutput
from sessions.durable.store import ConnectionStore
from sessions.durable.turn_logs import TurnLog
from sessions.durable.weights import Hold, request_bytes
from sessions.journal.records import PARENT_DELETED
from sessions.journal.writer import Verdict
from sessions.turns.commits import refused
from sessions.turns.effects import Effects, Outbox
from sessions.turns.following import Following, to_be_asked
from sessions.turns.intake import Waiting, place
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lane, Lanes
from sessions.turns.planning import grammar_param
from sessions.turns.reading import Prepared, Read, read_frame
from sessions.turns.recollection import Recalled, journal_error
from sessions.turns.references import Whole
from sessions.turns.running import Running
from sessions.turns.service import Service
from sessions.turns.turn import Turn
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.wanted import Wanted
from tools_api import errors, events
from tools_api.errors import ApiError
from tools_api.events import CancelTurn, ResumeTurn, SteerRequest, encode
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
        self._jobs = Jobs()
        self._out = Outbox()
        self._following = Following(
            connection_id=connection_id,
            tenant=tenant,
            logs=service.store.logs,
            lanes=self._lanes,
            outbox=self._out,
        )
        self._running = Running(
            connection_id=connection_id,
            tenant=tenant,
            service=service,
            visible=self._visible,
            jobs=self._jobs,
            lanes=self._lanes,
            following=self._following,
            outbox=self._out,
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
                self._running.disconnected(job)
            elif log.follower is not job and not job.displaced:
                self._running.give_way(job)
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
        self._running.receive(job, output)
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
            self._running.start(job, job.plan)
        else:
            assert job.grammar is not None
            param = grammar_param(job.grammar, job.request, block, path)
            self._running.refuse(job, errors.invalid_json_schema(param, refusal))
        return self._effects()

    def grammar_unchecked(self, check_id: str) -> Effects:
        """The probe could not try the grammar, which is no fault of the client's."""
        job = self._jobs.of_check(check_id)
        if job is not None:
            job.check_id = None
            self._running.refuse(job, errors.overloaded("the grammar cannot be tried just now"))
        return self._effects()

    def planned(self, planning_id: str, outcome: TurnPlan | Whole | Exception) -> Effects:
        """Take what a plan's work gave or raised. An unknown id (its turn is gone) is ignored."""
        job = self._running.long_plans.returned(planning_id)
        if job is None:
            return self._effects()
        if isinstance(outcome, Whole):
            self._running.referred(job, outcome)
        else:
            self._running.begin(job, outcome)
        return self._effects()

    def recalled(self, lookup_id: str, outcome: Recalled | Exception) -> Effects:
        """Take notice that the journal was asked: what it knew is in memory. An unknown id (its
        turn is gone) is ignored."""
        job, waited = self._jobs.of_lookup(lookup_id), self._following.waited(lookup_id)
        if job is not None:
            job.lookup_id = None
        elif isinstance(outcome, Recalled) and outcome.taken_id is not None:
            self._running.unwanted(outcome.taken_id)
        if isinstance(outcome, Recalled) and outcome.shares:
            self._running.got_shares(job, outcome.shares)
        elif waited is not None:
            self._resume_recalled(*waited, outcome)
        elif job is not None:
            if job.turn is not None:
                self._running.stalled_for_good(job)
            elif isinstance(outcome, Exception):
                self._running.begin(job, journal_error(outcome))
            elif job.id_looked_up and not job.taken_up:
                self._forget_deleted(job.known, outcome)
                self._running.take_up(job)
            elif job.found is not None:
                self._running.found_items(job, outcome.items)
            else:
                self._running.enter_session(job)
        return self._effects()

    def committed(self, response_id: str, verdict: Verdict) -> Effects:
        """Take the verdict on a turn's record, and let its terminal event go."""
        job = self._jobs.of_response(response_id)
        if job is not None and job.ending is not None:
            ending, entry = job.ending, job.ending.outcome.entry
            if job.log is not None:
                job.log.recorded = verdict.written
            if not verdict.written:
                ending = refused(ending, verdict)
                if entry is not None:
                    self._service.store.branches.drop(entry)
                self._forget(job, verdict)
            self._running.end(job, ending)
        return self._effects()

    def _forget(self, job: Job, verdict: Verdict) -> None:
        """What a refused record says is not this server's any more, or is gone."""
        store, commits, moved = self._service.store, self._service.commits, False
        if verdict.reason == "stale" and commits is not None:
            moved = True
            commits.shared.doubt()  # who took the session for a dead server's had its shares back
        if verdict.reason == PARENT_DELETED and job.turn is not None:
            id_ = job.turn.plan.previous_response_id or ""
            stored = store.tenant_responses(self._tenant).get(id_)
            store.delete_response(self._tenant, id_)
            # Of a fork only the parent is gone, with its session.
            moved = stored is not None and stored.session is job.session
        if moved and job.session is not None:
            store.forget_session(self._tenant, job.session.name)

    def resume(self) -> Effects:
        """Start turns that waited for a named session; called when ``Effects.wake`` says so."""
        for job in self._jobs:
            if job.lineage is None and job.session and job.session.is_granted(job.ticket):
                self._running.granted(job)
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
                self._running.take(job, job.turn.fail(reason, message, now))
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
            self._running.refuse(job, _shutting_down())
        for lane, waiting in self._drop_waiting():
            content = waiting.content
            error = content if isinstance(content, ApiError) else _shutting_down()
            self._running.send_error(error, lane.stream_id)
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
                self._running.disconnected(job)
            self._visible.close()
        return self._effects()

    # Taking requests in

    def _accept(self, waiting: Waiting, request: CreateRequest | ResumeTurn) -> None:
        if self._draining:
            self._running.send_error(_shutting_down(), request.stream_id)
        elif self._too_old():
            self._close_with = GOING_AWAY
            age_s = self._service.limits.connection_age_s
            self._running.send_error(errors.connection_limit_reached(age_s), request.stream_id)
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
        except ApiError as error:
            self._turn_away(waiting, error, stream_id)
            return
        refusal = place(self._lanes, waiting, stream_id, self._service.limits)
        if refusal is not None:
            self._turn_away(waiting, refusal, stream_id)

    def _turn_away(self, waiting: Waiting, error: ApiError, stream_id: str | None) -> None:
        _let_go(waiting)
        self._running.send_error(error, stream_id)

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
            elsewhere = self._service.store.running.connection_of(self._tenant, response_id)
        if elsewhere is None or response_id is None:
            self._running.send_error(errors.response_not_found(response_id), asked.stream_id)
        else:
            self._out.cancels.append((elsewhere, response_id))

    def _stop(self, job: Job) -> None:
        if job.turn is None:
            self._running.refuse(job, errors.request_cancelled())
        elif job.ending is None:
            self._running.take(job, job.turn.stop(self._service.clock()))

    # From request to turn

    def _pump(self) -> None:
        """Take up whatever may run."""
        while not self._closed and (taken := self._lanes.next()) is not None:
            lane, waiting = taken
            if isinstance(waiting.content, ApiError):
                self._lanes.done(lane)
                self._running.send_error(waiting.content, lane.stream_id)
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
            self._running.take_up(job)

    def _resume_turn(self, lane: Lane[Waiting], asked: ResumeTurn) -> None:
        """Follow the turn, once the journal has been asked where memory lacks it, or may not know
        that it was deleted."""
        known = self._following.known(request_id=asked.request_id, response_id=asked.response_id)
        if self._service.commits is None or not to_be_asked(known):
            self._follow_found(lane, asked)
            return
        wanted = Wanted(request_id=asked.request_id, ended=asked.response_id)
        self._following.wait_for(self._running.look_up(wanted), lane, asked, known)

    def _forget_deleted(self, known: TurnLog | None, outcome: Recalled) -> None:
        """What memory knew and the journal knows no longer was deleted at another server, or by a
        command."""
        gone = outcome.ended is None or outcome.ended[0].deleted
        if known is not None and known.response_id is not None and gone:
            self._service.store.delete_response(self._tenant, known.response_id)
            self._service.store.logs.delete(known)

    def _resume_recalled(
        self,
        lane: Lane[Waiting],
        asked: ResumeTurn,
        known: TurnLog | None,
        outcome: Recalled | Exception,
    ) -> None:
        if not isinstance(outcome, Exception):
            self._forget_deleted(known, outcome)
            self._follow_found(lane, asked)
            return
        error = journal_error(outcome)
        self._lanes.done(lane)
        refusal = error if isinstance(error, ApiError) else errors.internal_error()
        self._running.send_error(refusal, lane.stream_id)

    def _follow_found(self, lane: Lane[Waiting], asked: ResumeTurn) -> None:
        try:
            log = self._following.found(asked)
        except ApiError as error:
            self._lanes.done(lane)
            self._running.send_error(error, lane.stream_id)
        else:
            self._following.follow(lane, log, asked.after_sequence + 1)

    def _too_old(self) -> bool:
        age_s = self._service.clock() - self._opened_s
        return age_s > self._service.limits.connection_age_s

    def _effects(self) -> Effects:
        """Everything that gathered, after taking up what may run now."""
        self._pump()
        if (planning := self._running.long_plans.take()) is not None:
            self._out.plannings.append(planning)
        idle = not self.num_active and not self._lanes.num_waiting
        close = None
        if idle and not self._closed and self._close_with is not None:
            close = self._close_with
            self._closed = True
            self._visible.close()
        if self._closed and close is None:
            self._out.frames.clear()
        self._out.requests += self._service.store.branches.take_releases()
        return self._out.take(close)


def _let_go(waiting: Waiting) -> None:
    """It will not be taken up."""
    if waiting.hold is not None:
        waiting.hold.give_back()


def _shutting_down() -> ApiError:
    return errors.overloaded("it is shutting down")
