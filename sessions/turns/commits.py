"""A turn's last event waits until its record is committed.

When a turn has ended its record goes to the journal and its terminal event is held back; the
verdict lets it go, or puts ``response.failed`` in its place. Tokens are not held up by it. Also
here: what of a turn may be recorded at all.

Always true: what a client was told has ended is in the journal; of a private turn, and of one
that left nothing to continue, nothing that was said goes there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from sessions.durable.account import Amount
from sessions.durable.ledger import COMPACTION, PriceTable, TurnReport, TurnUsage, Unsettled
from sessions.durable.session import Session
from sessions.durable.store import Store
from sessions.durable.transcript import Entry, chain
from sessions.durable.usage_keys import UsageKeys
from sessions.journal.journal import Journal
from sessions.journal.records import (
    JOURNAL_FAILED,
    JOURNAL_UNAVAILABLE,
    PARENT_DELETED,
    RESIDENCY,
    SERVER_DIED,
    SESSION_MOVED,
    TurnRecord,
    account_names,
    options_told,
)
from sessions.journal.writer import Verdict
from sessions.turns.sharing import Bounded, SharedAccounts
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.usage_facts import computed_again
from tools_api import exact_json
from tools_api.events import encode
from tools_api.responses import failure

_FOREIGN_KEPT = 4096
_REASONS = {
    "stale": SESSION_MOVED,
    "unavailable": JOURNAL_UNAVAILABLE,
    PARENT_DELETED: PARENT_DELETED,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The end of a turn: its report, and the entry that others may continue."""

    report: TurnReport
    entry: Entry | None
    """The entry that can be continued; None if the turn left nothing."""
    goes_on: bool = False
    """Whether only a part of the turn has ended; the server answers its calls, and another part
    follows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ending:
    """A turn that has ended and waits for its record."""

    outcome: Outcome
    terminal: bytes


class Commits:
    """Records of all connections of a server with a journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.has_others = journal.shared
        """Other servers may start turns of the same sessions."""
        self.awake: Callable[[], None] = lambda: None
        """To be called before memory is believed about whose a session is."""
        self.shared = SharedAccounts()
        self._foreign: dict[Entry, None] = {}

    def rendered_anew(self, entry: Entry) -> None:
        """An entry's ids are not those of the row it was made of: who continues it records it with
        itself."""
        if len(self._foreign) >= _FOREIGN_KEPT:
            del self._foreign[next(iter(self._foreign))]
        self._foreign[entry] = None

    def record(
        self,
        plan: TurnPlan,
        session: Session,
        ending: Ending,
        *,
        created_s: float,
        shares: Bounded = (),
    ) -> TurnRecord:
        """The record of a turn that has ended."""
        outcome = ending.outcome
        report = outcome.report
        kept = outcome.entry is not None and not plan.private and plan.sums_up is None
        links, base_id = self._links(plan, outcome.entry if kept else None)
        return TurnRecord(
            **_whose(plan, session, created_s=created_s, repeatable=kept),
            status=report.status,
            reason=report.reason,
            usage=report.usage,
            cost=report.cost,
            saved=report.saved,
            computed_again=computed_again(report.misses),
            shares=shares,
            links=links,
            base_id=base_id,
            terminal=ending.terminal if kept else b"",
            conversation=plan.conversation if kept else None,
        )

    def reservation(
        self, plan: TurnPlan, session: Session, held: Amount, *, created_s: float
    ) -> TurnRecord:
        """The record of the failed turn that this one becomes if the server dies: it has
        consumed what it holds. A summary becomes none: it is charged."""
        of_model = session.ledger.prices
        prices = of_model.adapters.get(plan.adapter, of_model)
        usage = TurnUsage(
            input_tokens=held.input_uncached + held.input_cached,
            cached_tokens=held.input_cached,
            output_tokens=held.output,
            reasoning_tokens=min(held.reasoning, held.output),
        )
        return TurnRecord(
            **_whose(plan, session, created_s=created_s, repeatable=not plan.private),
            status="failed" if plan.sums_up is None else COMPACTION,
            reason=SERVER_DIED,
            usage=usage,
            cost=held.cost,
            saved=prices.saved(usage),
        )

    def forget(self, store: Store, plan: TurnPlan, session: Session, verdict: Verdict) -> None:
        """Forget what, by a refused record, is not this server's any more, or is gone."""
        tenant, moved = store.tenant(plan.tenant), verdict.reason == "stale"
        if moved:
            # Who took the session for a dead server's had its shares back.
            self.shared.distrust_shares()
        if verdict.reason == PARENT_DELETED:
            id_ = plan.previous_response_id or ""
            stored = tenant.responses.get(id_)
            tenant.delete_response(id_)
            # Of a fork only the parent is gone, with its session.
            moved = stored is not None and stored.session is session
        if moved:
            tenant.forget_session(session.name)

    def _links(self, plan: TurnPlan, entry: Entry | None) -> tuple[tuple[Entry, ...], str | None]:
        """The entries that only this turn has, and the response that has what is before them."""
        if entry is None:
            return (), None
        if entry.parent is None:
            return (entry,), None
        start = plan.start
        known = start.continued_id is not None and entry.parent not in self._foreign
        if entry.parent is start.continued and known:
            return (entry,), start.continued_id
        return tuple(chain(entry))[::-1], None


class _Whose(TypedDict):
    tenant: str
    session: str
    number: int
    response_id: str
    parent_id: str | None
    request_id: str | None
    request_digest: bytes
    price: PriceTable
    accounts: tuple[str, ...]
    created_s: float
    epoch: int
    options: bytes
    private: bool
    keys: UsageKeys


def _whose(plan: TurnPlan, session: Session, *, created_s: float, repeatable: bool) -> _Whose:
    """The fields of a turn's record that are the same however it ends. ``repeatable``: the same
    request may be sent again, and another one under its id is refused."""
    request_id = plan.request.keepwarm.request_id
    named, prices = repeatable and request_id is not None, session.ledger.prices
    return {
        "tenant": plan.tenant,
        "session": plan.session,
        "number": plan.number,
        "response_id": plan.response_id,
        "parent_id": plan.previous_response_id,
        "request_id": request_id,
        "request_digest": plan.request.body_digest if named else b"",
        "price": prices.adapters.get(plan.adapter, prices),
        "accounts": plan.accounts or account_names(session),
        "created_s": created_s,
        "epoch": session.epoch,
        "options": options_told(session),
        "private": plan.private,
        "keys": plan.keys if plan.sums_up is None else session.keys,
    }


def residency_record(
    session: Session, unsettled: Unsettled, *, record_id: str, created_s: float
) -> TurnRecord:
    """The record of what a session's KV was charged, for which no turn will come."""
    return TurnRecord(
        tenant=session.tenant,
        session=session.name,
        number=session.turns_begun,
        response_id=record_id,
        parent_id=None,
        status=RESIDENCY,
        reason=None,
        usage=TurnUsage(residency=unsettled.block_us),
        price=session.ledger.prices,
        cost=unsettled.cost,
        saved=0,
        accounts=account_names(session),
        created_s=created_s,
        epoch=session.epoch,
        follows_turns=session.ledger.turns > 0,
        keys=session.keys,
    )


def refused(ending: Ending, verdict: Verdict) -> Ending:
    """The turn failed after all: its record is not in the journal, so nobody may continue it. What
    it consumed is spent, unless it is for the session's next owner to say what that is."""
    event: dict[str, Any] = exact_json.loads(ending.terminal)
    reason = _REASONS.get(verdict.reason, JOURNAL_FAILED)
    response: dict[str, Any] = event["response"] | {
        "status": "failed",
        "error": failure("server_error", _message(verdict)),
        "incomplete_details": None,
        "completed_at": None,
    }
    if verdict.reason == "stale":
        response["usage"] = None
    if isinstance(response.get("keepwarm"), dict):
        response["keepwarm"] = response["keepwarm"] | {"reason": reason}
    report = replace(ending.outcome.report, status="failed", reason=reason)
    return Ending(
        outcome=replace(ending.outcome, report=report, entry=None),
        terminal=encode(event | {"type": "response.failed", "response": response}),
    )


def _message(verdict: Verdict) -> str:
    if verdict.reason == "stale":
        return verdict.message
    if verdict.reason == PARENT_DELETED:
        return "What this turn continues was deleted while it ran."
    return "The server could not record this turn."
