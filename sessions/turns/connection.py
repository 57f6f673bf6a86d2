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

from runtime.messages import SequenceOutput
from sessions.durable.store import ConnectionStore
from sessions.durable.tenant import Tenant
from sessions.durable.turn_logs import EventLog
from sessions.durable.weights import request_bytes
from sessions.turns.effects import Effects, Outbox, TurnCancel
from sessions.turns.following import Following
from sessions.turns.jobs import EarlyEnd, EndedEarly, Job, Jobs, shutting_down
from sessions.turns.lanes import Lane, Lanes, Waiting, place
from sessions.turns.reading import Read, read_frame
from sessions.turns.running import Running
from sessions.turns.service import Service
from sessions.turns.turn import Turn
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import CancelTurn, ResumeTurn, SteerRequest
from tools_api.requests import CreateRequest

log = logging.getLogger(__name__)

ANSWERED = 1000
"""All the events that were asked for over HTTP have been told; there may have been none."""
GOING_AWAY = 1001
SERVICE_RESTART = 1012


class Connection:
    """One client's connection. Not thread-safe; all connections of a service live in one event
    loop."""

    def __init__(
        self,
        *,
        connection_id: str,
        tenant: Tenant,
        service: Service,
        visible: ConnectionStore | None = None,
    ) -> None:
        """``visible``: what it may continue, if that is not its tenant's and its own."""
        self._id = connection_id
        self._tenant = tenant
        self._service = service
        self._is_socket = visible is None
        """Whether the connection stays between turns, as a socket does."""
        self._visible = visible or ConnectionStore(
            service.store, tenant=tenant, connection_id=connection_id
        )
        limits = service.limits
        self._lanes: Lanes[Waiting] = Lanes(
            max_names=limits.max_stream_ids, max_active=limits.max_active_responses
        )
        self._opened_s = service.clock()
        self._out = Outbox()
        self._jobs = Jobs(self._out)
        self._following = Following(
            connection_id=connection_id,
            tenant=tenant,
            logs=service.store.logs,
            lanes=self._lanes,
            outbox=self._out,
        )
        self._running = Running(
            connection_id=connection_id,
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
    def tenant(self) -> Tenant:
        """The tenant whose client it is."""
        return self._tenant

    @property
    def jobs(self) -> Jobs:
        """The requests that were taken up and are not yet answered to the end."""
        return self._jobs

    @property
    def held(self) -> list[object]:
        """All that is kept for requests: nothing is left once each has been answered."""
        steers = self._running.steering.held
        return [*self._jobs.held, *self._lanes.held, *self._following.logs, *steers]

    @property
    def num_active(self) -> int:
        """Requests taken up and not yet answered to the end, and turns that go on without
        their client."""
        return len(self._jobs) + len(self._following)

    @property
    def _is_idle(self) -> bool:
        return not self.num_active and not self._lanes.num_waiting

    def identify(self, key_name: str, http_request: str = "") -> None:
        """Its requests are those of an API key of that name, and came by that HTTP request."""
        self._running.key_name, self._running.http_request = key_name, http_request

    def enable_events(self) -> None:
        """The client asks for events of our own too (``sessions.turns.vendor_events``)."""
        self._running.enable_events()

    def receive(self, frame: str | bytes) -> Effects:
        """Take one client frame (protocol section 2). Never raises for what a client sent."""
        if self._closed:
            return Effects()
        return self.receive_parsed(read_frame(frame, self._service.read_context), len(frame))

    def receive_parsed(self, read: Read, num_bytes: int) -> Effects:
        """Take a frame or body of ``num_bytes`` that has been read."""
        if self._closed:
            return Effects()
        event = read.content
        if isinstance(event, ResumeTurn):
            self.enable_events()
            if not self._is_socket and self._close_with is None:
                self._close_with = ANSWERED
        if isinstance(event, CreateRequest | ResumeTurn | ApiError):
            refusal = None if isinstance(event, ApiError) else self._closing()
            if refusal is None:
                waiting = Waiting(event, num_bytes, self._service.clock(), read.prepared)
                refusal = self._enqueue(waiting, event.stream_id)
            if refusal is not None:
                self._running.send_error(refusal, event.stream_id)
        elif isinstance(event, CancelTurn):
            self._cancel(event)
        elif isinstance(event, SteerRequest):
            self._running.steering.steer(event, num_bytes)
        return self._effects()

    def turn_changed(self, log: EventLog) -> Effects:
        """Take notice that something has changed about a turn that runs or is followed here."""
        self._following.turn_changed(log)
        for job in self._jobs.with_log(log):
            if log.follower is None:
                self._disconnected(job)
            elif log.follower is not job and not job.displaced:
                self._give_way(job)
        return self._effects()

    def running(self, response_id: str) -> Turn | None:
        """The turn of that response, if it runs here."""
        job = self._jobs.by_response(response_id)
        return None if job is None else job.followed

    def output(self, output: SequenceOutput) -> Effects:
        """Take what one engine step gave one of this connection's requests."""
        job = self._jobs.by_request(output.request_id)
        if job is None or job.turn is None:
            return Effects()  # of a request that was cancelled meanwhile
        self._running.playing.receive(job, output)
        return self._effects()

    def answer(self, question_id: str, answer: object) -> Effects:
        """Take the answer to a question, an exception where there is none. One at which nobody
        waits any more does no harm."""
        if not self._jobs.answer(question_id, answer):
            self._running.unwanted(answer)
        return self._effects()

    def cancel(self, response_id: str) -> Effects:
        """End that turn, for whoever of its tenant asked. One that does not run is ignored."""
        job = self._jobs.by_response(response_id)
        if job is not None:
            self._end_early(job, EarlyEnd.CANCELLED)
        return self._effects()

    def engine_died(self) -> Effects:
        """Fail all running turns: the engine is gone, or the time for draining is over.

        When the engine died the hub has called ``service.store.engine_lost()`` before, once
        for all connections; it sends the returned requests when the engine is back.
        """
        way = EarlyEnd.DRAINING if self._draining else EarlyEnd.ENGINE_LOST
        for job in self._jobs:
            if job.turn is not None:
                self._end_early(job, way)
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
        self._running.drain(shutting_down())
        for job in self._jobs:
            if job.turn is None or job.ahead:
                self._end_early(job, EarlyEnd.DRAINING)
        for lane, waiting in self._drop_waiting():
            content = waiting.content
            error = content if isinstance(content, ApiError) else shutting_down()
            if waiting.steers:
                self._running.steering.drop(waiting, lane.stream_id, error.message)
            else:
                self._running.send_error(error, lane.stream_id)
        return self._effects()

    def close(self) -> Effects:
        """The client is gone: cancel its turns and forget what was local to it. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._is_socket:
                self._running.tool_waits.leave()
            self._running.steering.close()
            self._drop_waiting()
            self._following.close()
            for job in self._jobs:
                if job.log is not None and job.log.follower is job:
                    job.log.follower = None
                self._disconnected(job)
            self._visible.close()
        return self._effects()

    # Taking requests in

    def _closing(self) -> ApiError | None:
        """Why nothing more is taken in."""
        if self._draining:
            return shutting_down()
        if self._too_old():
            self._close_with = GOING_AWAY
            return errors.connection_limit_reached(self._service.limits.connection_age_s)
        return None

    def _enqueue(self, waiting: Waiting, stream_id: str | None) -> ApiError | None:
        """Returns what is sent instead of waiting for the lane's turn."""
        content, ready = waiting.content, waiting.prepared
        if isinstance(content, CreateRequest):
            if content.hosted_tools and not self._hosted_logged:
                self._hosted_logged = True
                tools = ",".join(content.hosted_tools)
                log.info("hosted tools are left out connection=%s tools=%s", self._id, tools)
            held_bytes = request_bytes(content) if ready is None else ready.held_bytes
            try:
                waiting.hold = self._service.store.held.hold(
                    self._tenant.name, self._id, max(held_bytes, waiting.num_bytes)
                )
            except ApiError as error:
                return error
        refusal = place(self._lanes, waiting, stream_id, self._service.limits)
        if refusal is not None:
            _let_go(waiting)
        return refusal

    def _drop_waiting(self) -> list[tuple[Lane[Waiting], Waiting]]:
        dropped = self._lanes.drop_waiting()
        for _, waiting in dropped:
            _let_go(waiting)
        return dropped

    def _cancel(self, asked: CancelTurn) -> None:
        """Protocol 7.7: the lane's turn, or a turn of the tenant by its id, wherever it runs."""
        response_id = asked.response_id
        followed = self._following.in_lane(asked.stream_id)
        if response_id is None and followed is not None:
            response_id = followed.response_id
        if response_id is None:
            job = self._jobs.in_lane(asked.stream_id)
        else:
            job = self._jobs.by_response(response_id)
        if job is not None:
            self._end_early(job, EarlyEnd.CANCELLED)
            return
        elsewhere = None
        if response_id is not None:
            elsewhere = self._service.store.running.connection_of(self._tenant.name, response_id)
        if elsewhere is None or response_id is None:
            self._running.send_error(errors.response_not_found(response_id), asked.stream_id)
        else:
            self._out.others.append(TurnCancel(elsewhere, response_id))

    # Ended early

    def _end_early(self, job: Job, way: EarlyEnd) -> None:
        """End a request where it waits. One whose turn has ended waits for its record, also where
        that is a summary's, and one that only follows a turn goes with its client."""
        if job.ending is None and (job.creates or way is EarlyEnd.CLIENT_GONE):
            self._jobs.end_early(job, way)
        elif job.summed_up and way is not EarlyEnd.ENGINE_LOST:  # which computes nothing for it
            job.early = job.early or EndedEarly(way)

    def _give_way(self, job: Job) -> None:
        """A newer request bears this one's id: it gets the turn, or what comes of it."""
        if job.turn is None:
            self._end_early(job, EarlyEnd.NEWER_REQUEST)
        else:
            self._running.overtaken(job)

    def _disconnected(self, job: Job) -> None:
        """Nobody is there for a request any more, or it has lost its connection: it goes on for
        who follows it, or for a client that may come back."""
        if job.ahead and job.session is not None and not job.private:
            return
        if job.turn is not None and not job.turn.plan.private:
            assert job.session is not None
            followed = job.log is not None and job.log.follower is not None
            if followed or job.session.outlives_sockets or job.request.background:
                return
        self._end_early(job, EarlyEnd.CLIENT_GONE)

    # From request to turn

    def _pump(self) -> None:
        """Take up whichever requests may run."""
        while not self._closed and (taken := self._lanes.next()) is not None:
            lane, waiting = taken
            if isinstance(waiting.content, ApiError):
                self._lanes.done(lane)
                self._running.send_error(waiting.content, lane.stream_id)
                continue
            job = Job(lane=lane, frame=waiting)
            self._jobs.start(job, self._running.live(job))

    def _too_old(self) -> bool:
        age_s = self._service.clock() - self._opened_s
        return age_s > self._service.limits.connection_age_s

    def _effects(self) -> Effects:
        """Everything that gathered, after taking up what may run now."""
        self._pump()
        close = None
        if self._close_with is not None and not self._closed and self._is_idle:
            close = self._close_with
            self._closed = True
            self._visible.close()
        if self._closed and close is None:
            self._out.frames.clear()
        self._out.requests += self._service.store.branches.pop_releases()
        return self._out.collect(close)


def _let_go(waiting: Waiting) -> None:
    """Release the memory of a request that will not be taken up."""
    if waiting.hold is not None:
        waiting.hold.release()
