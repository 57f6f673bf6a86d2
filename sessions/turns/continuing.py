"""The response that a request continues: the one decision, for turns and for who counts their
prompts.

In this order: the response that the request names; the response whose history its input begins
with; the head of the session that it names; nothing. Knows no session order and no tokens.

Always true: nothing is claimed that ``sessions.turns.memory`` does not claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sessions.durable.response_table import StoredResponse
from sessions.durable.session import Session
from sessions.durable.transcript import Entry
from sessions.turns.cache_diagnostics import Comparison
from sessions.turns.conversing import same_items
from sessions.turns.memory import Memory
from tools_api import errors
from tools_api.items import Item
from tools_api.requests import CreateRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lineage:
    """The history that a turn continues."""

    parent: StoredResponse | None
    session: Session | None
    """The session of the turn; None: a new one, to be made when the turn begins."""
    session_name: str
    items: tuple[Item, ...]
    """The items of the request's input that are not history."""
    comparison: Comparison | None = None
    """The response with which the client wants the turn's cache hits compared."""
    said_before: Entry | None = None
    """Where the session stood, if there is no parent."""


async def find_lineage(
    request: CreateRequest,
    memory: Memory,
    session: Session | None,
    new_name: str,
    digests: Sequence[bytes] | None = None,
) -> Lineage:
    """Find what the turn continues, and the session that it will run in.

    Args:
        session: the one the request names, if it does.
        new_name: for a session that has to be made.
        digests: of each prefix of the input, if they are known.

    Raises:
        ApiError: ``previous_response_not_found``; the journal cannot say.
    """
    parent, items = await find_parent(request, memory, digests)
    if session is None and parent is not None:
        session = await memory.session(parent.session.name)
    return Lineage(
        parent=parent,
        session=session,
        session_name=new_name if session is None else session.name,
        items=items,
        comparison=await _comparison(request, memory),
        said_before=memory.visible.last_said(session) if parent is None and session else None,
    )


async def find_parent(
    request: CreateRequest, memory: Memory, digests: Sequence[bytes] | None = None
) -> tuple[StoredResponse | None, tuple[Item, ...]]:
    """The response that the request continues, and the part of its input that is not history.
    Raises as ``find_lineage``."""
    named = request.keepwarm.session
    if request.previous_response_id is not None:
        id_ = request.previous_response_id
        parent = await memory.response(id_, goes_on=named is None)
        if parent is None:
            raise errors.previous_response_not_found(id_)
        return parent, request.input
    found = await memory.history(request.input, digests, goes_on=named is None)
    if request.conversation is not None and found is not None:
        parent, length = found
        own = not parent.private and same_items(parent.entry, request.input[:length])
        found = found if own else None
    if found is not None:
        parent, length = found
        return parent, request.input[length:]
    if named is None or request.conversation is not None:  # which has no head, or was edited
        return None, request.input
    return await memory.head(named), request.input


async def _comparison(request: CreateRequest, memory: Memory) -> Comparison | None:
    options = request.prompt_cache_options
    if options is None or options.comparison_response_id is None:
        return None
    found = await memory.response(options.comparison_response_id)
    return Comparison(entry=None if found is None else found.entry)
