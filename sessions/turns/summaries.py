"""The question for a summary: who is asked what, how long the answer may be, which one counts.

The model itself is asked, behind the chain as it stands. Knows requests and texts; which items are
shown and what becomes of the summary is ``sessions.turns.compacting``.

Always true: a text that repeats the instruction, is empty or was cut short is no summary.
"""

from typing import Any

from sessions.durable.ledger import COMPACTION, TurnReport, dollars
from sessions.turns.turn_plan import Due
from tools_api.items import Message, TextPart
from tools_api.requests import (
    ContextManagement,
    CreateRequest,
    SamplingOptions,
    TextFormat,
)
from tools_api.tools import ToolChoice

INSTRUCTION = (
    "Stop here and call no tool. Sum up the conversation so far for whoever continues it: what "
    "was asked, what was done and found, what is still to be done. Keep names, numbers, paths and "
    "decisions as they are. Answer with the summary alone."
)
LONGEST_SUMMARY = 1024
BEHIND_SHORT_TURNS = 20
"""How much less a summary's priority is than its turn's."""


def most_summary_tokens(due: Due) -> int:
    """The longest summary of a context that is due by that, in tokens, whatever its header."""
    return min(LONGEST_SUMMARY, max(due.threshold // 8, 16))


def instruction(request: CreateRequest, entry: ContextManagement | None) -> Message:
    """The question, as the request or that entry of it words it."""
    own = request.keepwarm.compaction.instructions or (entry and entry.instructions)
    return Message(role="user", content=(TextPart(type="input_text", text=own or INSTRUCTION),))


def asking_for_summary(request: CreateRequest, most_tokens: int) -> CreateRequest:
    """A turn's request as one for a summary: no calls, its own limit, behind short turns."""
    options = request.keepwarm
    return request.model_copy(
        update={
            "generate": True,
            "tool_choice": ToolChoice(mode="none"),
            "text_format": TextFormat(),
            "max_output_tokens": most_tokens,
            "temperature": 0.0,
            "include": (),
            "compacts": "no",
            "context_management": (),
            "keepwarm": options.model_copy(
                update={
                    "sampling": SamplingOptions(),
                    "priority": max(options.priority - BEHIND_SHORT_TURNS, -100),
                    "deadline_ms": None,
                    "expected_tool_ms": None,
                    "request_id": None,
                }
            ),
        }
    )


def read_summary(
    written: str, asked: Message, report: TurnReport
) -> tuple[str | None, dict[str, Any]]:
    """The summary, if the model has written one to its end; and what it took."""
    usage = report.usage
    told = {
        "computed": usage.uncached_tokens,
        "cached": usage.cached_tokens,
        "output": usage.output_tokens,
        "cost": dollars(report.cost),
    }
    text = written.strip()
    ended = report.status == COMPACTION and report.reason is None
    if not ended or not text or asked.text in text:
        return None, told
    return text, told
