"""A turn while the engine says something: its requests out, tokens in, events to who follows it.

``Playing.play`` waits for a turn's end; what the engine says comes in by ``receive``, step by step.
Also what a turn may consume at most is noted here, for the journal. Knows neither what the turn
continues nor what is recorded of it; that is the life of its request (``sessions.turns.running``).

Always true: outputs of a turn that waits for more of a shared account are taken in their order;
events of a summary are told to nobody.
"""

import logging
from collections import deque

from runtime.messages import CancelRequest, GenerationRequest, SequenceOutput
from sessions.durable.account import NOTHING, Amount
from sessions.turns.asking import Asking
from sessions.turns.commits import Ending
from sessions.turns.effects import EngineOutputs, Outbox, TurnHold
from sessions.turns.following import Following
from sessions.turns.jobs import EndedEarly, Job, Jobs
from sessions.turns.memory import Memory
from sessions.turns.service import Service
from sessions.turns.submissions import Boundary
from sessions.turns.turn import Turn, TurnStep
from tools_api.events import encode

log = logging.getLogger(__name__)


class Playing:
    """The turns of one connection."""

    def __init__(
        self,
        *,
        service: Service,
        jobs: Jobs,
        following: Following,
        outbox: Outbox,
        asking: Asking,
    ) -> None:
        self._service = service
        self._jobs = jobs
        self._following = following
        self._outbox = outbox
        self._asking = asking

    async def play(self, job: Job, memory: Memory, turn: Turn) -> Ending:
        """Send a turn's events and requests, while the engine says something; most of that comes in
        by ``receive``."""
        if job.early is not None:
            self.carry_out(job, job.early.stop(turn, self._service.clock()))
        elif job.ending is None:
            self.carry_out(job, turn.start())
        while job.ending is None:
            try:
                await self._asking.question(EngineOutputs())
                while job.stalled and job.ending is None:
                    await self._spend(job, memory, turn, job.stalled.popleft())
            except EndedEarly as early:
                job.early = early.with_traceback(None)  # which leads back to the job
                self.carry_out(job, early.stop(turn, self._service.clock()))
            job.stalled = None
        return job.ending

    async def _spend(self, job: Job, memory: Memory, turn: Turn, output: SequenceOutput) -> None:
        """Take what waited for more of a shared account, whether the journal had enough or not."""
        gives = True
        try:
            while gives and (lacking := turn.lacking(output)):
                gives = await memory.take_shares(lacking)
        except Exception:
            message = "The server could not ask what is left of a budget."
            now = self._service.clock()
            self.carry_out(job, turn.fail("journal_unavailable", message, now))
        else:
            self._take(job, turn, output)

    def receive(self, job: Job, output: SequenceOutput) -> None:
        """Take what the engine said of a turn, unless it waits for more of a shared account."""
        turn = job.turn
        assert turn is not None
        if job.stalled is not None:
            job.stalled.append(output)
            return
        if job.shares and turn.lacking(output):
            job.stalled = deque([output])
        else:
            self._take(job, turn, output)
        if job.question is not None and (job.stalled or job.ending is not None):
            self._jobs.answer(job.question.id, None)

    def steer(self, job: Job, how: Boundary) -> None:
        """Have the job's turn end at its next safe boundary, at once where it stands at one."""
        turn = job.turn
        assert turn is not None
        if turn.steer(how) and job.stalled is None:
            self.carry_out(job, turn.end_steered(self._service.clock()))
            if job.question is not None:
                self._jobs.answer(job.question.id, None)

    def _take(self, job: Job, turn: Turn, output: SequenceOutput) -> None:
        now = self._service.clock()
        if self._jobs.of_request(output.request_id) is not job:
            return
        if output.finish is not None:
            self._jobs.withdrawn(output.request_id)
        try:
            step = turn.receive(output, now)
        except Exception:
            log.exception("turn failed response=%s", turn.plan.response_id)
            step = turn.fail("internal", "The server had an internal error.", now)
        self.carry_out(job, step)

    def carry_out(self, job: Job, step: TurnStep) -> None:
        """Carry out a turn's step: events to who follows it, requests to the engine."""
        frames = list(map(encode, step.events))
        if step.outcome is not None:
            terminal = b"" if step.outcome.goes_on else frames.pop()
            job.ending = Ending(outcome=step.outcome, terminal=terminal)
        if frames and (job.turn is None or job.turn.plan.sums_up is None):
            self._following.publish(job, frames)
        self._outbox.requests += step.requests
        for message in step.requests:
            if isinstance(message, GenerationRequest):
                self._jobs.submitted(job, message.request_id)
                if job.session is not None:
                    self._service.store.residents.writes(message.branch_id, job.session)
            elif isinstance(message, CancelRequest):
                self._jobs.withdrawn(message.request_id)
        if job.ending is None and job.turn is not None and job.turn.noted is not job.noted:
            self.note(job, job.turn, job.turn.noted)

    def note(self, job: Job, turn: Turn, held: Amount) -> None:
        """Have noted what the turn may consume, in case the server dies."""
        urgent = held.output > job.noted.output or NOTHING in (held, job.noted)
        job.noted = held
        commits = self._service.commits
        if commits is not None:
            assert job.session is not None
            created_s = self._service.wall_clock()
            record = commits.reservation(turn.plan, job.session, held, created_s=created_s)
            self._outbox.notes.append(TurnHold(record=record, urgent=urgent))
