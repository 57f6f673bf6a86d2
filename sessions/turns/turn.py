"""One model turn: a request to the engine, its tokens back, events out, the account settled.

A turn holds everything that dies with it. It starts from a ``TurnPlan`` (what is said to
the model, and how much it may answer), and ends with an ``Outcome``. It does not know which
lane or socket it serves, nor the session's state; those react to the outcome.

Always true: after ``start`` exactly one step carries an outcome; the allowance it took from
the ledger and the branch it claimed are given back by then; input and cached counts are the
engine's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from runtime.messages import (
    CancelRequest,
    EngineMessage,
    ErrorKind,
    FinishReason,
    SequenceOutput,
    SequenceStart,
    TokenArray,
)
from sessions.durable.account import NOTHING, Account, Amount, BudgetExceeded
from sessions.durable.branches import Claim
from sessions.durable.ledger import Ledger, TurnUsage
from sessions.durable.renderer import Renderer
from sessions.durable.reservation import Reservation
from sessions.durable.transcript import Entry, chain_ids
from sessions.durable.turn_stats import TurnClock, TurnStats, wire_usage
from sessions.turns.boundaries import is_boundary, read_to_boundary
from sessions.turns.commits import Outcome
from sessions.turns.miss_account import account, prompt_of
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import ResponseEvents
from sessions.turns.service import Service
from sessions.turns.submissions import Boundary
from sessions.turns.turn_outcome import (
    STEERED,
    Ended,
    default_limit,
    entry_of,
    incomplete_reason,
    is_clients,
    report_of,
    tail_behind,
)
from sessions.turns.turn_plan import Begun, TurnPlan, begins_in_reasoning
from tools_api.built_in_items import BuiltInCall
from tools_api.errors import ApiError
from tools_api.events import Event
from tools_api.items import Call, Compaction, Item, Message
from tools_api.responses import FailureCode, ResponseObject

_MAX_ATTEMPTS = 4
"""Engine requests for one turn; the engine forgets a base or evicts a prefix rarely twice."""
_ENDING_UNKNOWN = (
    "No legal ending within this turn's limit is known: a limit that ends it cuts the output."
)


@dataclass(slots=True)
class TurnStep:
    """Orders of one call of a turn's methods for its caller."""

    events: list[Event] = field(default_factory=list)
    requests: list[EngineMessage] = field(default_factory=list)
    outcome: Outcome | None = None


class Turn:
    """A turn of the model: runs a plan once."""

    request_id = ""
    """The id of the engine request that is open; outputs of earlier ones are to be dropped."""
    _paused = False
    _other_adapter = False
    """Whether the engine holds what it continues, computed with another adapter."""

    def __init__(
        self,
        plan: TurnPlan,
        *,
        service: Service,
        ledger: Ledger,
        stream_id: str | None,
        events: ResponseEvents | None = None,
        accounts: tuple[Account, ...] | None = None,
    ) -> None:
        """
        Args:
            events: of the response, where some of them were told before this plan was made.
            accounts: those that it draws on as another one's part; None: the session's of now.
        """
        self.plan = plan
        self.accounts = ledger.accounts if accounts is None else accounts
        """The accounts that it draws on beside its own."""
        self._service = service
        self._ledger = ledger
        self._branches = service.store.branches
        request, begun = plan.request, plan.begun
        self.events = events or _events(plan, service, stream_id)
        self._reader = _reader(plan, service)
        self._clock = TurnClock(arrival_s=plan.arrival_s) if begun is None else begun.clock
        needs = plan.needs()
        self._stats = TurnStats(
            session=plan.session,
            number=plan.number,
            shown=request.keepwarm.stats,
            ledger=ledger,
            adapter=plan.adapter,
            clock=self._clock,
            accounts=(*needs.own, *self.accounts),
            cut=plan.cut,
            warnings=plan.warnings,
            context=None if plan.recast is None else plan.recast.report,
            misses=() if begun is None else begun.misses,
            resumed=() if begun is None else begun.resumed,
            causes_before={} if begun is None else begun.miss_causes,
        )
        self._told_before = len(self.events.items) if begun is None else begun.told
        """Items of the output that this part of the turn does not say."""
        self._attempts, self._branch_id = 0, ""
        self._reservation = Reservation(
            needs, ledger, accounts=self.accounts, is_turn=plan.sums_up is None
        )
        self._claim: Claim | None = None
        self._queue_reported = begun is not None
        self._noted = (NOTHING, NOTHING)
        """The amount held now, and that with what was consumed before."""
        self.steered: Boundary | None = None
        """The boundary at which a steer is to end it; None: it is not steered."""

    def start(self) -> TurnStep:
        """``response.created`` and the engine request; or, if the session's budget does not
        hold the prompt, ``response.failed``."""
        step = TurnStep()
        if not self.events.begun:
            step.events.append(self.events.created(self._stats.brief()))
        if self.plan.recast is not None and self.plan.begun is None:
            step.events += self.events.leading(self.plan.recast.items)
            self._told_before = len(self.plan.recast.items)
        if self.plan.prompt_tokens == 0:
            self._stats.start = SequenceStart(input_tokens=0, cached_tokens=0, queue_s=0.0)
            step.events.append(self.events.in_progress(self._stats.begun()))
            self._complete(step)
            return step
        before, adapter = self.plan.continued, self.plan.adapter
        held, self._other_adapter = self._branches.held(before, adapter)
        known = 0 if self.plan.rebuilt else held
        self._submit(step, cached=min(known, self.plan.prompt_tokens - 1))
        return step

    def announce(self, item: Compaction | None) -> TurnStep:
        """``response.created`` before its context is recast; ``item`` will stand for that."""
        step = TurnStep(events=[self.events.created(self._stats.brief())])
        if item is not None:
            step.events.append(self.events.in_progress(self._stats.begun()))
            step.events += self.events.compacting(item)
        return step

    @property
    def renderer(self) -> Renderer:
        """The renderer of the turn's model, which makes tokens of items."""
        return self._service.model.renderer

    @property
    def text(self) -> str:
        """The text of the turn's finished messages so far."""
        return "".join(item.text for item in self.events.items if isinstance(item, Message))

    def lacking(self, output: SequenceOutput) -> list[tuple[Account, Amount]]:
        """The accounts that other servers draw on too of which more is needed to take that."""
        if output.request_id != self.request_id:
            return []
        return self._reservation.lacking_for(output, len(self._reader.tokens))

    def receive(self, output: SequenceOutput, now: float) -> TurnStep:
        """Take the tokens that one engine step gave this turn."""
        step = TurnStep()
        if output.queue_position is not None and self._stats.start is None:
            self._report_queue(output.queue_position, step)
        if output.start is not None:
            self._begin(output.start, step)
            if output.request_id != self.request_id or step.outcome is not None:
                return step
        if len(output.new_tokens):
            kept = output
            if len(self._reader.tokens) + len(output.new_tokens) > self._reservation.ask_at:
                kept = self._reservation.within_budget(output, self._reader)
            self._clock.token(now)
            stopped = kept is output and output.finish is FinishReason.STOP_STRING
            told = self._read(kept, step, stopped=stopped)
            self._stats.add(told)
            if told is not kept:
                self._end_steered(step, now, in_engine=output.finish is None)
                return step
            if kept is not output:
                self._stop_at_budget(output, step, now)
                return step
        if output.finish is not None:
            self._clock.end(now)
            self._finish(output, step)
        return step

    def _read(self, output: SequenceOutput, step: TurnStep, *, stopped: bool) -> SequenceOutput:
        """Read a step's tokens; returns the part up to where the turn is to end, the same object
        where that is all of it."""
        if self.steered is None:
            pieces = self._reader.read(output.new_tokens, output.logprobs, stopped=stopped)
            step.events += self.events.write(pieces)
            return output
        told, written = read_to_boundary(
            self.steered, output, self._reader, self.events, stopped=stopped
        )
        step.events += written
        return told

    def fail(self, reason: str, message: str, now: float) -> TurnStep:
        """End with ``response.failed`` for a reason outside the turn, cancelling it in the
        engine."""
        step = TurnStep(requests=[CancelRequest(request_id=self.request_id)])
        self._clock.end(now)
        self._fail(step, "server_error", message, reason)
        return step

    def refuse(self, error: ApiError) -> TurnStep:
        """Refuse a turn the rest of whose context cannot be read: end with ``response.failed``."""
        step = TurnStep()
        self._clock.end(self._service.clock())
        self._fail(step, "invalid_prompt", error.message, error.code or "invalid_prompt")
        return step

    def stop(self, now: float) -> TurnStep:
        """The client wants no more of it: end with what there is, which can be continued."""
        step = TurnStep(requests=[CancelRequest(request_id=self.request_id)])
        self._clock.end(now)
        step.events += self.events.write(self._reader.finish(), cut=True)
        self.events.close("incomplete", step.events)
        self._leave_engine()
        self._end(step, "cancelled", "cancelled")
        return step

    def steer(self, how: Boundary) -> bool:
        """Have the turn end at its next safe boundary, with what there is; returns whether it
        stands at one, so that ``end_steered`` may be called."""
        self.steered = how
        return not self._paused and is_boundary(how, self._reader, self.events)

    def end_steered(self, now: float) -> TurnStep:
        """End a steered turn here, at a boundary."""
        step = TurnStep()
        self._end_steered(step, now, in_engine=bool(self.request_id))
        return step

    def cancel(self, now: float) -> TurnStep:
        """The client is gone: stop, and keep the account. The last event is for a client that
        comes back."""
        step = self.fail("client_disconnected", "The client's connection was lost.", now)
        assert step.outcome is not None
        report = replace(step.outcome.report, status="cancelled")
        step.outcome = replace(step.outcome, report=report)
        return step

    @property
    def num_output_tokens(self) -> int:
        """The tokens of its output so far."""
        return len(self._reader.tokens)

    @property
    def noted(self) -> Amount:
        """The amount that it may consume before it says so anew, as ``Reservation.noted``; what its
        parts before this one have consumed is in it."""
        held, begun = self._reservation.noted, self.plan.begun
        if begun is None or held is NOTHING:
            return held
        if self._noted[0] is not held:
            self._noted = (held, held.plus(begun.spent))
        return self._noted[1]

    def snapshot(self) -> Event:
        """The response as it stands."""
        return self.events.snapshot(self._stats.brief())

    # Towards the engine

    def _submit(self, step: TurnStep, *, cached: int) -> None:
        """Set tokens aside and send the request; ends the turn if the budget is too small.

        Args:
            cached: prompt tokens that the engine is expected to find in its cache.
        """
        try:
            self._reservation.admit(cached=cached)
        except BudgetExceeded as error:
            self._refuse(step, error)
            return
        self._attempts += 1
        plan = self.plan
        part = "" if plan.begun is None else f"{plan.begun.part}."
        self.request_id = f"{plan.response_id}.{part}{self._attempts}"
        self._claim = self._branches.claim(
            plan.continued, rebuilt=plan.rebuilt, forks=plan.forks, adapter=plan.adapter
        )
        self._branch_id = self._claim.branch_id
        now = self._service.clock()
        if plan.begun is None:
            self._clock.submitted(now)
        step.requests.append(
            self.plan.generation_request(
                request_id=self.request_id,
                claim=self._claim,
                limit=self._reservation.limit,
                now=now,
            )
        )

    def _refuse(self, step: TurnStep, error: BudgetExceeded) -> None:
        """Fail the turn: a budget does not hold what it needs."""
        self._stats.exhausted = True
        self._clock.end(self._service.clock())
        self._fail(step, "rate_limit_exceeded", str(error), "budget_exhausted")

    def _withdraw(self) -> None:
        """Give back what is held and the branch without having consumed anything."""
        self._reservation.release()
        self._leave_engine()

    def _leave_engine(self) -> None:
        """Give the branch back: what stands in it is not known to the token."""
        if self._claim is not None:
            self._branches.abandon(self._claim)
            self._claim = None

    # From the engine

    def _report_queue(self, position: int, step: TurnStep) -> None:
        if not self._queue_reported:
            self._queue_reported = True
            retry_after_s = self._service.store.pace.wait_s(position)
            step.events.append(self.events.queued(self._stats.queued(position, retry_after_s)))

    def _begin(self, start: SequenceStart, step: TurnStep) -> None:
        """The engine has looked at its cache, and the input is held as it says. If less was
        there than was reckoned with, the turn may have to be refused, or to be cut shorter."""
        cancel, asked = CancelRequest(request_id=self.request_id), self._reservation.limit
        try:
            self._reservation.adjust(start)
        except BudgetExceeded as error:
            self._refuse(step, error)
            step.requests.append(cancel)
            return
        if self._reservation.limit < asked and self.plan.grammar is not None:
            step.requests.append(cancel)
            self._withdraw()
            certain = self._attempts < _MAX_ATTEMPTS
            self._submit(step, cached=start.cached_tokens if certain else 0)
            return
        self._stats.admitted(start)
        begun = self.plan.begun
        before = () if begun is None else begun.misses
        prompt = prompt_of(self.plan, self._branches, other_adapter=self._other_adapter)
        self._stats.misses = before + account(prompt, start)
        self._stats.resumed = () if begun is None else begun.resumed
        self._stats.resumed += () if start.resumed is None else (start.resumed,)
        if begun is None:
            self._clock.admitted(start.queue_s)
        if not start.ending_known:
            self._stats.warnings += (_ENDING_UNKNOWN,)
        if not self.events.in_progress_told:
            step.events.append(self.events.in_progress(self._stats.begun()))

    def _finish(self, output: SequenceOutput, step: TurnStep) -> None:
        match output.finish:
            case FinishReason.UNKNOWN_BASE:
                self._resend_whole(step)
            case FinishReason.STOP | FinishReason.STOP_STRING | FinishReason.PREFILLED:
                self._complete(step)
            case FinishReason.LENGTH | FinishReason.CONTEXT as reason:
                self._cut_short(step, context=reason is FinishReason.CONTEXT)
            case FinishReason.CANCELLED:
                self._fail(step, "server_error", "The engine stopped this turn.", "cancelled")
            case _:
                self._fail_by_engine(output, step)

    def _resend_whole(self, step: TurnStep) -> None:
        assert self._claim is not None
        if self._claim.base_branch_id is None or self._attempts > _MAX_ATTEMPTS:
            self._fail(step, "server_error", "The engine lost this turn.", "unknown_base")
            return
        for branch_id in (self._claim.base_branch_id, self._claim.branch_id):
            self._branches.forgotten(branch_id)
        self._withdraw()
        self._submit(step, cached=0)

    def _fail_by_engine(self, output: SequenceOutput, step: TurnStep) -> None:
        kind = output.error or ErrorKind.INTERNAL
        if kind is ErrorKind.BUDGET_TOO_SMALL:
            self._stats.exhausted = self._reservation.limited
            code: FailureCode = "invalid_prompt"
            if self._reservation.limited:
                code = "rate_limit_exceeded"
            self._fail(step, code, output.error_message, kind.value)
            return
        self._fail(step, "server_error", output.error_message, kind.value)

    # The end

    def _complete(self, step: TurnStep) -> None:
        step.events += self.events.write(self._reader.finish())
        self.events.close("completed", step.events)
        self._end_whole(step)

    def _end_whole(self, step: TurnStep) -> None:
        self._stats.stop = self._reader.stop
        violation = self.plan.checks.violation(self.events.items)
        if violation is not None:
            self._fail(step, "output_invalid", violation, "output_invalid")
        elif self.searches:
            self._pause(step)
        else:
            self._end(step, "completed", None)

    @property
    def searches(self) -> tuple[BuiltInCall, ...]:
        """The calls of this part of the turn, if the server answers all of them."""
        calls = [item for item in self.events.items[self._told_before :] if isinstance(item, Call)]
        found = tuple(
            call for call in calls if isinstance(call, BuiltInCall) and call.execution == "server"
        )
        whole = all(call.status == "completed" for call in calls)
        return found if whole and len(found) == len(calls) else ()

    def _pause(self, step: TurnStep) -> None:
        """A part of the turn has ended; another follows."""
        entry, self._paused = self._entry(), True
        if self._claim is not None:
            self._branches.place(self._claim, entry, len(entry.header.ids) + entry.num_tokens)
            self._claim = None
        self._settle(goes_on=True)
        step.outcome = replace(self._outcome("completed", None, entry), goes_on=True)

    def begun(self, entry: Entry, outputs: Sequence[Item], ids: TokenArray) -> Begun:
        """The response so far, with the server's answers to ``searches``.

        Args:
            entry: this part's, of which it leaves nothing but the next one.
            outputs: the answers, told already.
            ids: what the model reads of them.
        """
        plan = self.plan
        return Begun(
            first=plan.start,
            part=1 if plan.begun is None else plan.begun.part + 1,
            items=(*entry.output_items, *outputs),
            ids=np.concatenate([entry.output_ids, ids]),
            told=len(self.events.items),
            usage=self._usage(),
            cost=self._stats.cost,
            misses=self._stats.misses,
            resumed=self._stats.resumed,
            miss_causes=self._stats.causes,
            clock=self._clock,
        )

    def out_of_room(self, *, context: bool) -> TurnStep:
        """A part of a turn that has no room to write anything: end what there is as incomplete."""
        step = TurnStep()
        self._clock.end(self._service.clock())
        self._cut_short(step, context=context)
        return step

    def _end_steered(self, step: TurnStep, now: float, *, in_engine: bool) -> None:
        """``in_engine``: it has not ended there by itself. Calls that were made are the client's
        to answer, so that the turn is complete with them."""
        self._clock.end(now)
        if in_engine:
            step.requests.append(CancelRequest(request_id=self.request_id))
            self._leave_engine()
        cut = self.steered == "now"
        step.events += self.events.write(self._reader.finish(), cut=cut)
        self.events.close("incomplete" if cut else "completed", step.events)
        if self.searches or any(map(is_clients, self.events.items)):
            self._end_whole(step)
        else:
            self._end(step, "incomplete", STEERED)

    def _stop_at_budget(self, output: SequenceOutput, step: TurnStep, now: float) -> None:
        """End the turn with the last token that is within the budget, as not all of a step's
        are."""
        self._clock.end(now)
        if output.finish is None:
            step.requests.append(CancelRequest(request_id=self.request_id))
            self._leave_engine()
        self._cut_short(step, context=False)

    def _cut_short(self, step: TurnStep, *, context: bool) -> None:
        """End the turn cut short: what is open is closed as incomplete (protocol 3.1 rule 6)."""
        step.events += self.events.write(self._reader.finish(), cut=True)
        self.events.close("incomplete", step.events)
        self._stats.exhausted = self._reservation.limited and not context
        if self._stats.exhausted:
            reason = "budget_exhausted"
        elif context or self.plan.context_limited:
            reason = "context_full"
        else:
            reason = "max_output_tokens"
            if self.plan.request.max_output_tokens is None:
                self._stats.warnings += (default_limit(self.plan.max_output),)
        self._end(step, "incomplete", reason)

    def _end(
        self,
        step: TurnStep,
        status: Literal["completed", "incomplete", "cancelled"],
        reason: str | None,
    ) -> None:
        entry = self._entry()
        if self._claim is not None:
            self._branches.place(self._claim, entry, len(entry.header.ids) + entry.num_tokens)
            self._claim = None
        usage = self._settle()
        step.events.append(
            self.events.terminal(
                "completed" if status == "completed" else "incomplete",
                usage=wire_usage(usage),
                incomplete_reason=incomplete_reason(status, reason),
                completed_at=int(self._service.wall_clock()),
                keepwarm=self._stats.full(usage, reason),
                cache_diagnostics=self._cache_diagnostics(),
            )
        )
        step.outcome = self._outcome(status, reason, entry)

    def _cache_diagnostics(self) -> Event | None:
        plan, start = self.plan, self._stats.start
        if plan.comparison is None or start is None:
            return None
        prompt = chain_ids(plan.header, plan.parent, plan.input_ids)
        return plan.comparison.diagnosis(
            plan.header, prompt, start.cached_tokens, start.miss_causes
        )

    def _fail(self, step: TurnStep, code: FailureCode, message: str, reason: str) -> None:
        self.events.close("incomplete", step.events)
        told = self._stats.start is not None or self.plan.begun is not None
        usage = self._settle()
        step.events.append(
            self.events.terminal(
                "failed",
                usage=wire_usage(usage) if told else None,
                error=(code, message),
                completed_at=int(self._service.wall_clock()),
                keepwarm=self._stats.full(usage, reason),
            )
        )
        step.outcome = self._outcome("failed", reason, None)

    def _settle(self, *, goes_on: bool = False) -> TurnUsage:
        """Close the account: what was consumed takes the allowance's place. Returns what the whole
        turn consumed."""
        if self._stats.start is not None:
            usage, cost = self._reservation.settle(self._own_usage(), goes_on=goes_on)
            self._stats.cost = cost
            self._stats.residency = usage.residency
        elif self.plan.begun is not None:
            self._ledger.settled(TurnUsage(), 0)  # a turn all the same: its parts before were none
        if self.plan.begun is not None:
            self._stats.cost += self.plan.begun.cost
        self._withdraw()
        return self._usage()

    def _usage(self) -> TurnUsage:
        """Usage of the whole turn, its parts before this one included."""
        own, begun = self._own_usage(), self.plan.begun
        return own if begun is None else begun.usage + own

    def _own_usage(self) -> TurnUsage:
        return self._stats.usage(
            output_tokens=len(self._reader.tokens), reasoning_tokens=self._reader.num_reasoning
        )

    def _outcome(self, status: str, reason: str | None, entry: Entry | None) -> Outcome:
        usage, prices = self._usage(), self._ledger.prices
        ended = Ended(
            status=status,
            reason=reason,
            usage=usage,
            saved=prices.adapters.get(self.plan.adapter, prices).saved(usage),
            entry=entry,
            branch_id=self._branch_id,
        )
        report = report_of(self.plan, ended, self._stats, self._clock)
        return Outcome(report=report, entry=entry)

    def _entry(self) -> Entry:
        """The entry that later turns continue: one for all parts of the turn."""
        tokens = self._reader.tokens
        said = self.events.items[self._told_before :]
        model = self._service.model
        tail = tail_behind(tokens, model.tokenizer, model.chat_format)
        return entry_of(self.plan, said, tokens, tail)


def _reader(plan: TurnPlan, service: Service) -> OutputReader:
    request = plan.request
    return OutputReader(
        tokenizer=service.model.tokenizer,
        chat_format=service.model.chat_format,
        thinking=plan.options.thinking,
        calls=bool(request.tool_choice.callable(request.tools)),
        stops=plan.sampling().stop,
        plain=frozenset(tool.name for tool in request.tools if tool.plain),
        reasons_first=(plan.grammar is not None and plan.grammar.reasons_first)
        or begins_in_reasoning(service.model.chat_format, plan.options, plan.tail),
        tools=request.tools,
    )


def _events(plan: TurnPlan, service: Service, stream_id: str | None) -> ResponseEvents:
    request, sampling = plan.request, plan.sampling()
    response = ResponseObject(
        id=plan.response_id,
        request=request,
        model=plan.model,
        created_at=int(service.wall_clock()),
        previous_response_id=None if request.conversation else plan.previous_response_id,
        service_tier=plan.service_tier,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_output_tokens=request.max_output_tokens,
    )
    return ResponseEvents(response, stream_id=stream_id, new_id=service.new_id)
