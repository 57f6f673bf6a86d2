"""Answers of a session: responses, the events of a stream, and what a whole run did.

Frozen data alone. ``tools_api.sdk.turn`` makes the events of a turn, ``tool_loop`` those of
the tools and the result of a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel

from tools_api.built_in_items import BuiltInCall
from tools_api.items import CustomToolCall, FunctionCall, Item, Message, Reasoning

Model = TypeVar("Model", bound=BaseModel)
Output = TypeVar("Output")
AnyCall = FunctionCall | CustomToolCall | BuiltInCall
_MAX_SHOWN = 160
End = Literal["completed", "incomplete", "cancelled", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one response or several, as the server counted them."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """The part of ``input_tokens`` whose KV was found in the cache."""
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def hit_ratio(self) -> float:
        """The cached share of the input, from 0 to 1; 0 without input."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def shown(self) -> str:
        """In a few words."""
        cached = f"{self.hit_ratio:.0%} cached"
        return f"{self.input_tokens} tokens in ({cached}), {self.output_tokens} out"

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Response:
    """A turn that has ended. Printed, it takes a line; ``raw`` has all of it."""

    id: str
    status: str
    """``completed``, ``incomplete`` or ``failed``."""
    output: tuple[Item, ...]
    usage: Usage
    keepwarm: Mapping[str, Any]
    """``response.keepwarm``: what the turn cost and what the cache saved; may be empty."""
    ttft_s: float | None
    """Seconds from sending the request to the first output; None if there was none."""
    duration_s: float
    """Seconds from sending the request to the end."""
    raw: Mapping[str, Any]
    """The whole response object as it arrived."""

    def __repr__(self) -> str:
        names = ", ".join(call.full_name for call in self.calls)
        said = [f"text {_short(repr(self.text))}"] if self.text or not names else []
        said += [f"calls {_short(names)}"] if names else []
        return f"<Response {self.id} {self.status}: {self.usage.shown}; {', '.join(said)}>"

    @property
    def text(self) -> str:
        """The text of all messages of the turn, one directly behind the other."""
        return "".join(item.text for item in self.output if isinstance(item, Message))

    @property
    def reasoning(self) -> str:
        """The text of all reasoning of the turn, one directly behind the other."""
        return "".join(item.text for item in self.output if isinstance(item, Reasoning))

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The calls in the order they were written; the last may be cut short if ``incomplete``."""
        return tuple(item for item in self.output if isinstance(item, FunctionCall))

    @property
    def incomplete_reason(self) -> str | None:
        """Why the turn was cut short, ``max_output_tokens`` for a budget too; or None."""
        reason = (self.raw.get("incomplete_details") or {}).get("reason")
        return None if reason is None else str(reason)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what the turn did otherwise than asked, or could not promise."""
        return tuple(map(str, self.keepwarm.get("warnings") or ()))

    @property
    def cancelled(self) -> bool:
        """The turn was ended by a cancel."""
        return self.status == "incomplete" and self.keepwarm.get("reason") == "cancelled"

    def parsed(self, model: type[Model]) -> Model:
        """The text as a ``model``; pydantic.ValidationError if it is not one."""
        return model.model_validate_json(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """Events that are one text. To make a data class costs as much as to import a module: events of
    the same fields share one, and are equal only to their own kind."""

    text: str


class TextDelta(_Text):
    """A piece of a message's text, ``response.output_text.delta``."""

    __slots__ = ()


class ReasoningDelta(_Text):
    """A piece of the reasoning, ``response.reasoning_text.delta``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """The model begins to write a call; its arguments follow."""

    item_id: str
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsDelta:
    """A piece of a call's arguments: JSON text cut anywhere. The whole call follows."""

    item_id: str
    """Id of the function call that is being written."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRestarted:
    """The turn was lost on the way and begins again: what it had streamed is void."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSteered:
    """What was said to the turn is heard: ``response`` ended there, and another one goes on."""

    response: Response


StreamEvent = (
    TextDelta
    | ReasoningDelta
    | CallStarted
    | ArgumentsDelta
    | FunctionCall
    | CustomToolCall
    | BuiltInCall
    | TurnRestarted
    | TurnSteered
    | Response
)
"""Events that one turn yields. A call comes when it is complete; the last event is always the
Response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call and what came of it."""

    call: FunctionCall
    output: str
    """As the model reads it."""
    failed: bool
    """The tool raised, took too long, was not approved or does not exist, or its arguments do
    not fit."""
    duration_s: float
    attempts: int = 1
    """How often the tool was run."""
    cut_bytes: int = 0
    """Bytes that were left out of the middle of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool begins to run: while its turn still decodes if it is read-only or idempotent."""

    call: FunctionCall


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The outcome of a call."""

    record: CallRecord


class ToolFinished(_Outcome):
    """A tool gave an output."""

    __slots__ = ()


class ToolFailed(_Outcome):
    """A call came to nothing; the model reads why."""

    __slots__ = ()


class Warned(_Text):
    """A sentence of the server about what a turn did otherwise than asked."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairing:
    """The answer was not what ``output_type`` asks for; the model is told and asked again."""

    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoopResult(Generic[Output]):
    """The result of a run, turn by turn. Printed, it takes three lines."""

    responses: tuple[Response, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    waiting: tuple[AnyCall, ...] = ()
    """Calls that wait for an approval (``session.pending``), or whose tools have no function here:
    answer these with ``session.owe``."""
    failed: tuple[Response, ...] = ()
    """Turns that failed, of which the model was asked again or the run ended."""
    partial_text: str = ""
    """In the result of an error: what the turn that did not end had said."""
    value: Output | None = None
    """The answer as an ``output_type``; None without one."""
    answered: bool = False
    """``value`` is the answer, also where it is None."""
    cancelled: bool = False
    """``session.cancel`` ended the run."""

    def __repr__(self) -> str:
        names = ", ".join(record.call.full_name for record in self.calls)
        failed = sum(record.failed for record in self.calls)
        answer = self.partial_text or self.text if self.value is None else repr(self.value)
        return (
            f"<LoopResult {self.status}: {len(self.responses)} turns, {self.usage.shown}\n"
            f" {len(self.calls)} calls{f' ({_short(names)})' if names else ''}, {failed} failed, "
            f"{len(self.waiting)} waiting\n"
            f" answer {_short(repr(answer))}>"
        )

    @property
    def output(self) -> Output:
        """The answer as the ``output_type`` that was asked for.

        Raises:
            ValueError: none was asked for, or the run came to no answer.
        """
        if self.value is None and not self.answered:
            raise ValueError(f"the run was {self.status} and has no value of an output_type")
        return cast(Output, self.value)

    @property
    def final(self) -> Response:
        """The last response. ``final.status`` tells whether it was cut short."""
        return self.responses[-1]

    @property
    def text(self) -> str:
        """The text of the last response alone; empty without one."""
        return self.responses[-1].text if self.responses else ""

    @property
    def status(self) -> End:
        """How it ended: ``completed``, ``incomplete`` (a limit), ``cancelled``, or ``waiting``
        for the caller to answer calls."""
        if self.cancelled:
            return "cancelled"
        if self.waiting:
            return "waiting"
        whole = self.responses and self.responses[-1].status == "completed"
        return "completed" if whole else "incomplete"

    @property
    def usage(self) -> Usage:
        """Tokens of all turns, failed ones too. Each turn counts its whole context again, cached or
        not."""
        return sum((each.usage for each in (*self.responses, *self.failed)), Usage())


def _short(text: str) -> str:
    """``text`` in a part of a line."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 3]}..."


RunEvent = (
    StreamEvent | ToolStarted | ToolFinished | ToolFailed | Warned | Repairing | LoopResult[Any]
)
"""Events that ``stream`` yields: the events of every turn, each turn's Response when it ends, what
its tools do, and at last the LoopResult."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """The session's work through this object, and its account as the server last said."""

    turns: int = 0
    """Those that came to an end. What failed turns used and cost is counted below all the same."""
    restarts: int = 0
    """Turns that were lost on the way and begun again."""
    usage: Usage = Usage()
    cost: float | None = None
    """Cost of the whole session, 0 where the server has no prices; None of a server that counts
    none."""
    saved: float | None = None
    """Saved by the last turn's cache hits."""
    budget_left: Mapping[str, Any] | None = None
    """The rest of each kind that a budget bounds, the session's own, one of a tree that it is in or
    its tenant's: the least of them. None without a budget."""
