"""Which events of which turns a connection's lanes get, when clients lose sockets and come back.

A turn's events go into its log and to whoever follows it: the lane that asked for it, or, when
the client came back, the lane in which it asked again, on this connection or another one. The
newest follower is the only one. A connection that changes what another has to look at says so
with a notice.

Always true: a follower gets each event once and in order; an id that was used starts nothing.
"""

from collections.abc import Sequence

from sessions.durable.tenant import Tenant
from sessions.durable.turn_logs import EventLog, EventLogs, Follow
from sessions.turns.effects import Outbox, TurnChanged
from sessions.turns.jobs import Job
from sessions.turns.lanes import Lane, Lanes, Waiting
from tools_api import errors
from tools_api.events import ResumeTurn, encode


def to_be_asked(log: EventLog | None) -> bool:
    """Whether the journal has to be asked before the events of a turn that memory knows so are
    sent: it may have it, or know that it was deleted."""
    return log is None or (log.ended and log.recorded and not log.deleted)


class Following:
    """The followers of one connection."""

    def __init__(
        self,
        *,
        connection_id: str,
        tenant: Tenant,
        logs: EventLogs,
        lanes: Lanes[Waiting],
        outbox: Outbox,
    ) -> None:
        self._id = connection_id
        self._tenant = tenant
        self._logs = logs
        self._lanes = lanes
        self._outbox = outbox
        self._follows: dict[EventLog, tuple[Follow, Lane[Waiting]]] = {}

    def __len__(self) -> int:
        """Lanes that follow a turn which a request before theirs began."""
        return len(self._follows)

    @property
    def logs(self) -> list[EventLog]:
        """The turns that are followed."""
        return list(self._follows)

    def known(self, *, request_id: str | None, response_id: str | None) -> EventLog | None:
        """The turn of that id, as memory knows it."""
        tenant = self._tenant.name
        if request_id is not None:
            return self._logs.of_request(tenant, request_id)
        return None if response_id is None else self._logs.of_response(tenant, response_id)

    def in_lane(self, stream_id: str | None) -> EventLog | None:
        """The turn that the lane follows."""
        lanes = ((log, lane) for log, (_, lane) in self._follows.items())
        return next((log for log, lane in lanes if lane.stream_id == stream_id), None)

    def claim(self, job: Job) -> EventLog | None:
        """Let a request with an id have it. Returns the log to follow instead if its turn has
        started; a request that only waits gives way to this one.

        Raises:
            ApiError: the id was used for another body, what its turn said was deleted, or a newer
                request has it.
        """
        request_id = job.request.keepwarm.request_id
        if request_id is None:
            return None
        log = self._logs.of_request(self._tenant.name, request_id)
        if log is None:
            log = EventLog(
                tenant=self._tenant.name,
                owner=self._id,
                request_id=request_id,
                body_digest=job.request.body_digest,
            )
            self._logs.reserve(log)
        elif log.body_digest not in (b"", job.request.body_digest):
            raise errors.request_id_reused()
        elif log.deleted:
            raise errors.response_deleted()
        _take_newest(log, job.frame.arrival_s)
        if log.response_id is not None:
            return log
        self._hand_over(log, job)
        log.owner, job.log = self._id, log
        return None

    def found(self, asked: ResumeTurn, arrival_s: float) -> EventLog:
        """The log of the turn that a client asks for.

        Raises:
            ApiError: there is none that has started, it was deleted, or a newer request has it.
        """
        log = self.known(request_id=asked.request_id, response_id=asked.response_id)
        if log is None or log.response_id is None or log.deleted:
            param = "response_id" if asked.request_id is None else "request_id"
            raise errors.no_such_turn(param, asked.response_id or asked.request_id or "")
        _take_newest(log, arrival_s)
        return log

    def turn_started(self, job: Job, response_id: str, *, private: bool) -> None:
        """The request's turn starts, and its lane gets the events."""
        if job.log is None and private:
            return
        if job.log is None:
            job.log = EventLog(tenant=self._tenant.name, owner=self._id)
            self._hand_over(job.log, job)
        self._logs.start(job.log, response_id, listed=not private)

    def follow(self, lane: Lane[Waiting], log: EventLog, next_number: int) -> None:
        """Send a lane the turn's events from that number on, and what comes of them."""
        follow = Follow(log=log, stream_id=lane.stream_id, next_number=next_number)
        self._displace(log)
        self._hand_over(log, follow)
        self._follows[log] = (follow, lane)
        self._send(follow, lane)

    def publish(self, job: Job, frames: Sequence[bytes]) -> None:
        """Events of a turn that runs here: to its log, and to who follows it."""
        log, out = job.log, self._outbox
        if log is not None:
            self._logs.append(log, frames)
        if log is None or log.follower is job:
            out.frames += frames
        elif log.follower is not None:
            out.others.append(TurnChanged(connection_id=log.followed_on, log=log))

    def turn_changed(self, log: EventLog) -> None:
        """Something has changed about a turn: there are new events, or it went elsewhere."""
        follow, lane = self._follows.get(log, (None, None))
        if follow is None or lane is None:
            return
        if log.follower is follow:
            self._send(follow, lane)
        else:
            self._displace(log)

    def close(self) -> None:
        """The connection closes: nobody follows here any more."""
        for log, (follow, lane) in list(self._follows.items()):
            self._end(log, lane)
            if log.follower is follow:
                log.follower = None
                self._outbox.others.append(TurnChanged(connection_id=log.owner, log=log))

    def _hand_over(self, log: EventLog, follower: object) -> None:
        if log.follower is not None and not log.ended:
            self._outbox.others.append(TurnChanged(connection_id=log.followed_on, log=log))
        log.follower, log.followed_on = follower, self._id

    def _displace(self, log: EventLog) -> None:
        """Another lane of this connection follows the turn instead of the one that did."""
        _, lane = self._follows.get(log, (None, None))
        if lane is not None:
            self._end(log, lane)
            error = errors.followed_elsewhere().event(lane.stream_id)
            self._outbox.frames.append(encode(error))

    def _send(self, follow: Follow, lane: Lane[Waiting]) -> None:
        self._outbox.frames += follow.new_frames()
        if follow.log.ended:
            self._end(follow.log, lane)
            follow.log.follower = None

    def _end(self, log: EventLog, lane: Lane[Waiting]) -> None:
        del self._follows[log]
        self._lanes.done(lane)


def _take_newest(log: EventLog, arrival_s: float) -> None:
    """The turn's events are for a request that came in then, unless a newer one gets them.

    Raises:
        ApiError: one does. While this one waited for what the journal knows it was overtaken.
    """
    if log.follower is not None and arrival_s < log.asked_s:
        raise errors.followed_elsewhere()
    log.asked_s = arrival_s
