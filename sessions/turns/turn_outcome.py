"""The results of a turn that has ended: the entry that others continue, and its report.

Pure: made of the plan, and of what the turn has counted and read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from runtime.tokenizer import Tokenizer
from sessions.durable.ledger import COMPACTION, TurnReport, TurnUsage
from sessions.durable.transcript import Entry, Tail, roll_all
from sessions.durable.turn_stats import TurnClock, TurnStats
from sessions.turns.turn_plan import TurnPlan
from sessions.turns.usage_facts import tool_runs
from tools_api.built_in_items import BuiltInCall
from tools_api.chat_format import ChatFormat
from tools_api.items import Call, Item, Message
from tools_api.responses import IncompleteReason

STEERED = "steered"
"""Why a turn ended that its client wanted to interrupt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a turn."""

    status: str
    """``completed``, ``incomplete``, ``failed`` or ``cancelled``."""
    reason: str | None
    """Why it did not complete."""
    usage: TurnUsage
    """The usage of all its parts."""
    saved: int
    """Cost that was saved by the cache, in nano-dollars."""
    entry: Entry | None
    """The entry that later turns continue; None: it leaves none."""
    branch_id: str
    """The engine's branch that it wrote to last."""


def report_of(plan: TurnPlan, ended: Ended, stats: TurnStats, clock: TurnClock) -> TurnReport:
    """The report of a turn; ``stats`` has the cost of all its parts."""
    return TurnReport(
        tenant=plan.tenant,
        session=plan.session,
        turn=plan.number,
        response_id=plan.response_id,
        status=ended.status if plan.sums_up is None else COMPACTION,
        reason=ended.reason,
        usage=ended.usage,
        cost=stats.cost,
        saved=ended.saved,
        queue_s=clock.queue_s,
        ttft_s=clock.ttft_s,
        total_s=clock.total_s,
        model=plan.model,
        adapter=plan.adapter,
        traceparent=plan.request.keepwarm.traceparent,
        misses=stats.misses,
        resumed=stats.resumed,
        parent_response_id=plan.previous_response_id,
        open_calls=0 if ended.entry is None else len(ended.entry.open_calls),
        branch_id=ended.branch_id,
        context=None if plan.recast is None else plan.recast.report,
        tools=tool_runs(plan.start),
    )


def tail_behind(tokens: Sequence[int], tokenizer: Tokenizer, chat_format: ChatFormat) -> Tail:
    """How a transcript ends behind an output of the model."""
    if not tokens or tokens[-1] not in tokenizer.end_of_turn_ids:
        return Tail.OPEN_OUTPUT
    opens = chat_format.opens_output
    if opens is not None and tokens[-1] == tokenizer.special_id(opens):
        return Tail.OPENED_CALL_OUTPUT
    return Tail.CLOSED_OUTPUT


def entry_of(plan: TurnPlan, said: Sequence[Item], tokens: Sequence[int], tail: Tail) -> Entry:
    """The entry that later turns continue: one for all parts of the turn.

    Args:
        said: the items of the turn's last part.
        tokens: that part's output.
        tail: how the text ends behind them, if there are any.
    """
    output_items = tuple(_without_logprobs(item) for item in said)
    if not tokens:  # where it was asked the model's turn is open, though nothing stands in it
        tail = Tail.OPEN_OUTPUT if plan.request.generate else plan.tail
    calls = {
        item.call_id
        for item in output_items
        if isinstance(item, Call) and item.status == "completed"
    }
    start, ids = plan.start, np.array(tokens, dtype=np.int32)
    before: tuple[Item, ...] = ()
    if plan.begun is not None:
        before, ids = plan.begun.items, np.concatenate([plan.begun.ids, ids])
    return Entry(
        parent=start.parent,
        header=plan.header,
        opening=plan.header.opening,
        input_items=start.input_items,
        input_ids=start.input_ids,
        output_items=before + output_items,
        output_ids=ids,
        tail=tail,
        num_tokens=start.tokens_before + len(start.input_ids) + len(ids),
        open_calls=plan.open_calls | calls,
        digest=roll_all(plan.digest, output_items),
        frame_bytes=plan.frame_bytes,
        left_out=plan.left_out,
    )


def incomplete_reason(status: str, reason: str | None) -> IncompleteReason | None:
    """The published reason of an incomplete response. One that was cancelled has none: the
    published types have none for it."""
    if status != "incomplete":
        return None
    return "steered" if reason == STEERED else "max_output_tokens"


def is_clients(item: Item) -> bool:
    """Whether it is a call that was made, and that the client answers."""
    if not isinstance(item, Call) or item.status != "completed":
        return False
    return not (isinstance(item, BuiltInCall) and item.execution == "server")


def default_limit(tokens: int) -> str:
    """The warning about a turn that the server's own limit has ended."""
    return f"max_output_tokens: not given, so the server's default of {tokens} ended the turn"


def _without_logprobs(item: Item) -> Item:
    """The output that the transcript keeps; log-probabilities are only for the client."""
    if not isinstance(item, Message) or not any(part.logprobs for part in item.content):
        return item
    parts = tuple(replace(part, logprobs=()) for part in item.content)
    return replace(item, content=parts)
