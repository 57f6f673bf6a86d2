"""Whether a context is due to be recast, and by which rules: what requests say of compaction.

Knows the fields of the APIs by which a client asks (``context_management``, a trigger,
``keepwarm.context``) and sizes; what becomes of a context that is due is
``sessions.turns.compacting``.

Always true: a context below every threshold is never due; a threshold that no recasting could
reach is refused by its field.
"""

from sessions.durable.transcript import chain, expanded
from sessions.turns.recasting import Rules, is_cleared
from sessions.turns.service import ServedModel
from sessions.turns.truncation import Context
from sessions.turns.turn_plan import Due
from tools_api import errors
from tools_api.items import CallOutput
from tools_api.requests import ContextManagement, CreateRequest

AHEAD_PERCENT = 85
"""The part of a threshold from which on a context may be recast ahead of time."""


def due(
    request: CreateRequest,
    num_tokens: int,
    context: Context,
    model: ServedModel,
) -> Due | None:
    """Why the context of that request, which has so many tokens, is to be recast; None: it is
    not.

    Raises:
        ApiError: a threshold is below what no recasting takes away.
    """
    most = model.max_context_tokens
    if request.compacts != "no":
        threshold = min(most, max(num_tokens, 2))
        return Due(threshold=threshold, entry=None, inner=False)
    for entry in sorted(request.context_management, key=lambda each: each.type != "compaction"):
        threshold = min(entry.compact_threshold or most * 4 // 5, most)
        _refuse_below_header("context_management", threshold, len(context.header.ids))
        reached = num_tokens >= threshold
        if entry.trigger_uses is not None:
            reached = _uses(context) >= entry.trigger_uses
        if reached and request.generate:
            inner = entry.type == "clear_tool_uses"
            return Due(threshold=threshold, entry=entry, inner=inner)
    wanted = request.keepwarm.context
    if wanted is not None and request.generate:
        threshold = min(wanted.compact_threshold, most)
        _refuse_below_header(
            "keepwarm.context.compact_threshold", threshold, len(context.header.ids)
        )
        if num_tokens >= threshold:
            return Due(threshold=threshold, entry=None, inner=True)
    return None


def soon_due(request: CreateRequest, num_tokens: int, model: ServedModel) -> Due | None:
    """The threshold, of those that the client named, by which the context of the next turn will be
    due; None: that is some way off."""
    most = model.max_context_tokens
    named = [entry for entry in request.context_management if entry.type == "compaction"]
    entry = next((each for each in named if each.compact_threshold is not None), None)
    wanted = request.keepwarm.context
    if entry is not None and entry.compact_threshold is not None:
        threshold, inner = min(entry.compact_threshold, most), False
    elif wanted is not None and not named:
        threshold, inner = min(wanted.compact_threshold, most), True
    else:
        return None
    if num_tokens < threshold * AHEAD_PERCENT // 100 or request.compacts != "no":
        return None
    return Due(threshold=threshold, entry=entry, inner=inner)


def _uses(context: Context) -> int:
    """Outputs that are not cleared."""
    links = ((*link.input_items, *link.output_items) for link in chain(context.parent))
    items = (*(item for link in links for item in link), *context.items)
    return sum(isinstance(item, CallOutput) and not is_cleared(item) for item in expanded(items))


def _refuse_below_header(field: str, threshold: int, header_tokens: int) -> None:
    if threshold <= header_tokens:
        raise errors.invalid_value(
            field,
            f"instructions and tools alone have {header_tokens} tokens, the threshold is "
            f"{threshold}; raise it",
        )


def rules_of(request: CreateRequest, entry: ContextManagement | None) -> Rules:
    """The rules by which the request, or that entry of it, wants its context recast."""
    if request.compacts != "no":
        keeps_turns = request.compacts != "alone"
        return Rules(clears=False, keeps_newest=False, keeps_turns=keeps_turns)
    if entry is not None and entry.type == "clear_tool_uses":
        inputs = entry.clear_tool_inputs
        return Rules(
            summarises=False,
            keeps_uses=entry.keep_uses,
            exempt=frozenset(entry.exclude_tools),
            clears_inputs=inputs if isinstance(inputs, bool) else frozenset(inputs),
            least=entry.clear_at_least,
        )
    return Rules()
