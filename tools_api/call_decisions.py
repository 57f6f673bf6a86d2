"""A client's decision about a call of a response: ``POST /v1/responses/{id}/calls``.

Always true: who begins or ends a call has a name; an end has an output.
"""

from typing import Annotated, Literal

from pydantic import Field

from tools_api import errors
from tools_api.wire import WireModel, refuse_unprintable, validate

MAX_NAME = 256
"""Characters of a call's id, of who decides and of who runs it."""
MAX_REASON = 4096
MAX_OUTPUT = 1 << 20
"""Characters of an output that is kept."""


class CallDecision(WireModel):
    """The body of a request that decides about a call."""

    call_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    decision: Literal["approve", "reject", "begin", "end"]
    """``begin``: this client is about to run the tool, and nobody else may; ``end``: it has."""
    by: Annotated[str, Field(max_length=MAX_NAME)] = ""
    """The name of whoever decides, in the client's words."""
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""
    """Why; the model reads it where the call is rejected."""
    holder: Annotated[str, Field(max_length=MAX_NAME)] = ""
    """A name of the run that begins and ends the call; with the same one it may be said again."""
    needs_approval: bool = True
    """``begin`` is refused until somebody approves."""
    again: bool = False
    """``begin`` also what another run has begun: the tool may run twice."""
    output: Annotated[str | None, Field(max_length=MAX_OUTPUT)] = None
    """The tool's, for whoever goes on from here."""
    session: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Refuse where the session of this name does not stand at the response any more."""


def read_decision(raw: object) -> CallDecision:
    """A checked decision.

    Raises:
        ApiError: something is missing, of another type or too long.
    """
    asked = validate(CallDecision, raw, "")
    refuse_unprintable(asked.by, "by")
    if asked.decision in ("begin", "end") and not asked.holder:
        raise errors.missing_parameter("holder")
    if asked.decision == "end" and asked.output is None:
        raise errors.missing_parameter("output")
    return asked
