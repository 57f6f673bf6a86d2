"""Steering: what a client says to a response that runs, and the response that hears it.

A submission is accepted while its target runs. Where that ends with nothing to wait for, the server
makes the next response itself, in the same lane and before whatever waits there; where it ends with
calls, the submission is pending until the client's own request brings their outputs, and stands
before these. Which token a target ends with is the turn's business.

Always true: an accepted submission is heard by one response, whose ``response.created`` says so, or
is handed back once; there are no more of them for a response than the limit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sessions.durable.tenant import Tenant
from sessions.durable.transcript import Entry
from sessions.durable.weights import request_bytes
from sessions.turns.commits import Ending
from sessions.turns.effects import Outbox
from sessions.turns.following import Following
from sessions.turns.jobs import Job, Jobs
from sessions.turns.lanes import Lanes, Waiting
from sessions.turns.playing import Playing
from sessions.turns.service import Service
from sessions.turns.submissions import (
    Submission,
    messages_of,
    required_input,
    steering_items,
    successor,
)
from tools_api import events
from tools_api.errors import ApiError
from tools_api.events import SteerRequest, encode
from tools_api.items import Call
from tools_api.requests import CreateRequest

MOST_ENDED = 64
"""Responses of a connection that are known after their end."""
ANSWERED = "Its calls were answered meanwhile."
OVERTAKEN = "Other responses have ended since, and nobody went on from this one."
Stub = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Ended:
    """A response of this connection that has ended."""

    stream_id: str | None
    number: int
    """The number of its next event."""
    stubs: tuple[Stub, ...]
    """Stubs of the outputs that its calls wait for; empty: it waits for nothing."""
    pending: tuple[Submission, ...] = ()

    def take_number(self) -> int:
        self.number += 1
        return self.number - 1


class Steering:
    """The submissions of one connection."""

    def __init__(
        self,
        *,
        connection_id: str,
        tenant: Tenant,
        service: Service,
        jobs: Jobs,
        lanes: Lanes[Waiting],
        following: Following,
        outbox: Outbox,
        playing: Playing,
    ) -> None:
        self._id = connection_id
        self._tenant = tenant
        self._service = service
        self._jobs = jobs
        self._lanes = lanes
        self._following = following
        self._outbox = outbox
        self._playing = playing
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._over = False
        self._ending: ApiError | None = None
        """Why nothing is begun any more."""

    @property
    def held(self) -> list[object]:
        """Submissions that wait for a request of their client."""
        return [each for ended in self._ended.values() for each in ended.pending]

    def steer(self, asked: SteerRequest, num_bytes: int) -> None:
        """Take a client's ``response.steer``."""
        job = self._jobs.by_response(asked.previous_response_id)
        ended = self._ended.get(asked.previous_response_id)
        if job is None or job.followed is None or job.turn is None:
            self._steer_ended(asked, num_bytes, ended)
        elif job.ending is not None or job.displaced:
            message = "The response has just ended, or its events go elsewhere."
            self._refuse(asked, "response_not_active", message, job.lane.stream_id)
        else:
            self._steer_running(asked, num_bytes, job)

    def _steer_running(self, asked: SteerRequest, num_bytes: int, job: Job) -> None:
        turn, stream_id = job.followed, job.lane.stream_id
        assert turn is not None
        request = job.request
        if request.conversation is not None or request.may_compact or not request.generate:
            told: Submission | tuple[str, str] = (
                "steering_not_supported",
                "A response of a conversation, one that may be compacted, and a warm-up are not "
                "steered.",
            )
        else:
            told = self._read(asked, num_bytes, job.steers)
        if not isinstance(told, Submission):
            number = turn.events.take_number()
            failed = events.steer_failed(number, asked, *told, stream_id)
            self._following.publish(job, [encode(failed)])
            return
        number, id_ = turn.events.take_number(), asked.previous_response_id
        accepted = events.steer_accepted(number, told.id, id_, stream_id)
        self._following.publish(job, [encode(accepted)])
        job.steers += (told,)
        self._playing.steer(job, request.keepwarm.steer)

    def _steer_ended(self, asked: SteerRequest, num_bytes: int, ended: _Ended | None) -> None:
        """Take a steer of a response that has ended; its calls may still wait for their outputs."""
        if ended is None:
            message = "No response of that id runs on this connection."
            self._refuse(asked, "response_not_found", message)
            return
        if not ended.stubs:
            self._refuse(asked, "response_already_completed", "It has ended.", ended.stream_id)
            return
        told = self._read(asked, num_bytes, ended.pending)
        if not isinstance(told, Submission):
            self._refuse(asked, *told, ended.stream_id)
            return
        accepted = events.steer_accepted(
            ended.take_number(), told.id, asked.previous_response_id, ended.stream_id
        )
        self._outbox.frames.append(encode(accepted))
        ended.pending += (told,)
        self._tell_pending(asked.previous_response_id, ended, [told])

    def _read(
        self, asked: SteerRequest, num_bytes: int, before: Sequence[Submission]
    ) -> Submission | tuple[str, str]:
        """The submission, or why it is refused: a code and a sentence."""
        limits = self._service.limits
        try:
            items = steering_items(asked, num_bytes, limits)
        except ApiError as error:
            return "invalid_input", error.message
        waiting = sum(each.num_bytes for each in before)
        if len(before) >= limits.max_pending_steers or waiting + num_bytes > limits.max_steer_bytes:
            return "too_many_pending_steers", "Too much input waits for this response already."
        id_ = self._service.new_id("steer")
        return Submission(id=id_, asked=asked, items=items, num_bytes=num_bytes)

    # A target that has ended

    def settle(self, job: Job, ending: Ending) -> None:
        """A turn of the connection has ended, and its last event is told."""
        turn, submissions = job.turn, job.steers
        assert turn is not None
        job.steers = ()
        if self._over:
            return
        entry, id_ = ending.outcome.entry, turn.plan.answers
        ended = _Ended(
            stream_id=job.lane.stream_id, number=turn.events.take_number(), stubs=_stubs(entry)
        )
        self._note(id_, ended)
        if not submissions:
            return
        if entry is None or job.displaced or ending.outcome.report.status == "cancelled":
            message = "The response failed or was cancelled, or its events go elsewhere."
            self._hand_back(submissions, ended, "response_not_active", message)
        elif ended.stubs:
            ended.pending = submissions
            self._tell_pending(id_, ended, submissions)
        else:
            self._succeed(job, id_, submissions, ended)

    def _note(self, response_id: str, ended: _Ended) -> None:
        self._ended[response_id] = ended
        while len(self._ended) > MOST_ENDED:
            _, oldest = self._ended.popitem(last=False)
            self._hand_back(oldest.pending, oldest, "response_not_active", OVERTAKEN)

    def _succeed(
        self, job: Job, id_: str, submissions: tuple[Submission, ...], ended: _Ended
    ) -> None:
        """Make the response that hears them, in the target's lane."""
        request = successor(job.request, id_, submissions)
        num_bytes = sum(each.num_bytes for each in submissions)
        waiting = Waiting(request, num_bytes, self._service.clock(), steers=submissions)
        refusal = self._ending
        if refusal is None:
            try:
                waiting.hold = self._service.store.held.hold(
                    self._tenant.name, self._id, max(request_bytes(request), num_bytes)
                )
            except ApiError as error:
                refusal = error
        if refusal is None:
            self._lanes.add_first(job.lane, waiting)
        else:
            self._hand_back(submissions, ended, "successor_creation_failed", refusal.message)

    # The request that hears them

    def heard_by(self, job: Job) -> CreateRequest | None:
        """The job's request with what is pending before it; None: nothing is."""
        request = job.request
        ended = self._ended.get(request.previous_response_id or "")
        if ended is None or not ended.pending:
            return None
        job.heard, ended.pending = ended.pending, ()
        return request.model_copy(update={"input": (*messages_of(job.heard), *request.input)})

    def begun(self, job: Job) -> None:
        """The job's turn begins: what it continues waits for nothing any more, and what came for
        that since is too late."""
        ended = self._ended.get(job.request.previous_response_id or "")
        if ended is not None:
            late, ended.pending, ended.stubs = ended.pending, (), ()
            self._hand_back(late, ended, "response_not_active", ANSWERED)

    def not_begun(self, job: Job) -> None:
        """The job's request was not begun: what it was to hear is pending as before, or comes back
        where nobody is to go on from its target any more."""
        heard, job.heard = job.heard, ()
        if not heard or self._over:
            return
        ended = self._ended.get(job.request.previous_response_id or "")
        if ended is not None and ended.stubs:
            ended.pending = heard + ended.pending
            return
        message = ANSWERED if ended is not None else OVERTAKEN
        ended = ended or _Ended(stream_id=job.lane.stream_id, number=0, stubs=())
        self._hand_back(heard, ended, "response_not_active", message)

    def refused(self, job: Job, message: str) -> None:
        """The response that the server makes itself was not begun."""
        id_ = job.request.previous_response_id or ""
        ended = self._ended.get(id_) or _Ended(stream_id=job.lane.stream_id, number=0, stubs=())
        self._hand_back(job.frame.steers, ended, "successor_creation_failed", message)

    def drop(self, waiting: Waiting, lane_id: str | None, message: str) -> None:
        """A submission's response is not begun: it was still to wait for its lane."""
        ended = _Ended(stream_id=lane_id, number=0, stubs=())
        self._hand_back(waiting.steers, ended, "successor_creation_failed", message)

    def drain(self, why: ApiError) -> None:
        """Begin no response any more for what was said to another."""
        self._ending = why

    def close(self) -> None:
        """The client is gone: nobody is left to be told."""
        self._over = True
        self._ended.clear()

    # What the client is told

    def _tell_pending(self, id_: str, ended: _Ended, submissions: Sequence[Submission]) -> None:
        for each in submissions:
            number = ended.take_number()
            told = events.steer_pending(number, each.id, id_, ended.stubs, ended.stream_id)
            self._outbox.frames.append(encode(told))

    def _hand_back(
        self, submissions: Sequence[Submission], ended: _Ended, code: str, message: str
    ) -> None:
        for each in submissions:
            number = ended.take_number()
            told = events.steer_failed(
                number, each.asked, code, message, ended.stream_id, id_=each.id
            )
            self._outbox.frames.append(encode(told))

    def _refuse(
        self, asked: SteerRequest, code: str, message: str, stream_id: str | None = None
    ) -> None:
        """Refuse a submission to a response whose events are not numbered any more."""
        self._outbox.frames.append(encode(events.steer_failed(0, asked, code, message, stream_id)))


def _stubs(entry: Entry | None) -> tuple[Stub, ...]:
    if entry is None:
        return ()
    calls = (item for item in entry.output_items if isinstance(item, Call))
    return tuple(required_input(call) for call in calls if call.call_id in entry.open_calls)
