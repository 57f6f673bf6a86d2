"""The agent's task, and how its turns are played and kept for the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm import (
    AsyncSession,
    LoopResult,
    Response,
    Tool,
    ToolChoice,
    TooManyTurns,
)

INSTRUCTIONS = "You are the assistant of a furniture shop. Answer with the tools."
MAX_OUTPUT_TOKENS = 192
MAX_TURNS_PER_QUESTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    calls: tuple[str, ...]
    """The tools a good agent calls, turn by turn. A model with random weights is made to."""


PRICE_OF_DESK = Question(text="What is the price of desk?", calls=("get_price",))
AND_OF_LAMP = Question(text="And of lamp?", calls=("get_price",))
FOUR_CHAIRS = Question(text="Multiply the price of chair by 4.", calls=("get_price", "multiply"))
TIME_OF_TOKYO = Question(text="What is the time of Tokyo?", calls=("get_time",))

ONE_SESSION = (PRICE_OF_DESK, AND_OF_LAMP, FOUR_CHAIRS, TIME_OF_TOKYO)
MANY_SESSIONS = (
    (PRICE_OF_DESK, FOUR_CHAIRS),
    (TIME_OF_TOKYO, PRICE_OF_DESK),
    (FOUR_CHAIRS, AND_OF_LAMP),
)
"""Scripts that sessions which run at once take in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One model turn and what it did, in words."""

    session: str
    response: Response
    deed: str


async def ask(
    name: str, session: AsyncSession, tools: Sequence[Tool], question: Question, *, forced: bool
) -> list[PlayedTurn]:
    """Play one question to its answer.

    Args:
        name: of the session, for the report.
        forced: name the tool of each turn (``tool_choice``), and none for the answer.
    """
    try:
        result = await session.run(
            question.text,
            tools=tools,
            tool_choice=_forced_choice(question) if forced else "auto",
            max_turns=MAX_TURNS_PER_QUESTION,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            temperature=1.0 if forced else 0.0,
        )
    except TooManyTurns as stopped:
        result = stopped.result
    return [
        PlayedTurn(session=name, response=response, deed=_deed(response, result))
        for response in result.responses
    ]


def _forced_choice(question: Question) -> Callable[[int], ToolChoice]:
    def choice(turn: int) -> ToolChoice:
        if turn < len(question.calls):
            return {"type": "function", "name": question.calls[turn]}
        return "none"

    return choice


def _deed(response: Response, result: LoopResult[Any]) -> str:
    outputs = {record.call.call_id: record.output for record in result.calls}
    calls = [
        f"{call.name}({call.arguments}) -> {outputs.get(call.call_id, 'not run')}"
        for call in response.calls
    ]
    return "; ".join(calls) or f"says {response.text!r}"
