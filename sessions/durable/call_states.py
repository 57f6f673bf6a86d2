"""States of a call that a person decides about, or that may run once only.

A call that a turn made is pending until somebody approves or rejects it; it has begun before its
tool runs, and ended with an output. Knows no journal and no socket: who keeps the states asks
``decided`` inside whatever keeps others out.

Always true: of all who say that they begin a call one is let, unless the tool may run again; what
was decided is not decided otherwise.
"""

from dataclasses import dataclass, replace
from typing import Any

import orjson

from tools_api import errors
from tools_api.call_decisions import CallDecision

PENDING, APPROVED, REJECTED, BEGUN, ENDED = "pending", "approved", "rejected", "begun", "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """How far a call has come."""

    call_id: str
    state: str = PENDING
    by: str = ""
    """The name of whoever decided, in the client's words."""
    key: str = ""
    """The name of the API key with which it was decided."""
    reason: str = ""
    decided_s: float | None = None
    """When, in seconds since the epoch; None: nobody has."""
    holder: str = ""
    """The run that has begun it, by a name that a client made."""
    begun_s: float | None = None
    output: str | None = None
    """The output of the call's tool, once that has ended."""

    def to_wire(self) -> dict[str, Any]:
        """The state as a client reads it, in JSON."""
        told: dict[str, Any] = {"call_id": self.call_id, "state": self.state}
        if self.decided_s is not None:
            told |= {"by": self.by, "key": self.key, "reason": self.reason}
            told["decided_at"] = self.decided_s
        if self.begun_s is not None:
            told |= {"holder": self.holder, "begun_at": self.begun_s}
        return told if self.output is None else told | {"output": self.output}

    def encoded(self) -> bytes:
        """The state without the call's id, as a journal keeps it."""
        return orjson.dumps({name: getattr(self, name) for name in _KEPT})


_KEPT = ("state", "by", "key", "reason", "decided_s", "holder", "begun_s", "output")


def decoded(call_id: str, body: bytes) -> CallState:
    """The state that ``encoded`` wrote."""
    return CallState(call_id=call_id, **orjson.loads(body))


def decided(state: CallState, asked: CallDecision, *, key: str, now_s: float) -> CallState:
    """The call's state after ``asked``; the same where it says again what holds already.

    Raises:
        ApiError: it was decided otherwise, is not approved, or another run has begun it.
    """
    match asked.decision:
        case "approve" | "reject":
            return _judged(state, asked, key=key, now_s=now_s)
        case "begin":
            return _begun(state, asked, now_s=now_s)
        case "end":
            return _ended(state, asked)


def _judged(state: CallState, asked: CallDecision, *, key: str, now_s: float) -> CallState:
    wanted = APPROVED if asked.decision == "approve" else REJECTED
    if state.state == PENDING:
        return replace(
            state, state=wanted, by=asked.by, key=key, reason=asked.reason, decided_s=now_s
        )
    if (state.state == REJECTED) != (wanted == REJECTED):
        raise errors.call_decided(state.call_id, state.state, state.by)
    return state


def _begun(state: CallState, asked: CallDecision, *, now_s: float) -> CallState:
    begun = replace(state, state=BEGUN, holder=asked.holder, begun_s=now_s)
    match state.state:
        case "approved":
            return begun
        case "pending" if not asked.needs_approval:
            return begun
        case "pending":
            raise errors.call_not_approved(state.call_id)
        case "begun" if state.holder == asked.holder:
            return state
        case "begun" if asked.again:
            return begun
    raise errors.call_decided(state.call_id, state.state, state.by)


def _ended(state: CallState, asked: CallDecision) -> CallState:
    mine = state.holder in ("", asked.holder)
    if state.state == ENDED and mine:
        return state
    if state.state == REJECTED or not mine or state.state == ENDED:
        raise errors.call_decided(state.call_id, state.state, state.by)
    return replace(state, state=ENDED, holder=asked.holder, output=asked.output)
