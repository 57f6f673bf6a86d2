"""A turn as a client sees it: request out, server events in, typed events and a Response out.

The part of the Python client that needs no socket: where a session stands (``Chain``), one
request with its answers and what may be sent again (``Turn``), and the types that users of
``tools_api.sdk.client`` receive.

Always true: a chain moves on only when its turn has ended ``completed`` or ``incomplete``,
and a turn is sent again only if the server never started it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import orjson
from pydantic import BaseModel

from tools_api.errors import ApiError
from tools_api.items import (
    Call,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    parse_items,
)
from tools_api.tools import FunctionTool

ORDERLY_CLOSES = frozenset({1001, 1012})
"""Close codes of a server that ends a connection between turns: nothing was started."""

Model = TypeVar("Model", bound=BaseModel)
Input = str | Sequence[Item | Mapping[str, Any]]
"""A user's message, or items: of ``tools_api.items`` or as they stand on the wire."""


class GenerationOptions(TypedDict, total=False):
    """Fields of ``response.create`` beside input and tools, each as the protocol defines it."""

    model: str
    instructions: str
    parallel_tool_calls: bool
    text: Mapping[str, Any]
    """``json_format(Model)`` makes one for a structured answer."""
    max_output_tokens: int
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: str
    metadata: Mapping[str, str]
    include: Sequence[str]
    reasoning: Mapping[str, Any]
    service_tier: str
    prompt_cache_key: str
    store: bool
    keepwarm: Mapping[str, Any]
    """Our extension: session, budget, sampling, expected_tool_ms, priority, deadline_ms."""


class TurnOptions(GenerationOptions, total=False):
    """All fields of ``response.create`` beside the input."""

    tools: Sequence[FunctionTool | Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]


class ConnectionLost(Exception):
    """The socket could not be opened, broke, or stayed silent too long.

    The session stands where it stood and the same call may be made again. ``started`` says
    whether the server had begun the turn; it cancels what it had begun.
    """

    def __init__(self, reason: str, *, started: bool, close_code: int | None = None) -> None:
        super().__init__(reason)
        self.started = started
        self.close_code = close_code


class TurnFailed(Exception):
    """The response ended ``failed``. The session stands where it stood."""

    def __init__(self, response: "Response") -> None:
        error = response.raw.get("error") or {}
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.response = response
        self.code: str | None = error.get("code")
        """``rate_limit_exceeded`` when the session's budget is spent."""


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

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A turn that has ended."""

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

    def parsed(self, model: type[Model]) -> Model:
        """The text as a ``model``; pydantic.ValidationError if it is not one."""
        return model.model_validate_json(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a message's text, ``response.output_text.delta``."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """A piece of the reasoning, ``response.reasoning_text.delta``."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsDelta:
    """A piece of a call's arguments: JSON text cut anywhere. The whole call follows."""

    item_id: str
    """Id of the function call that is being written."""
    text: str


StreamEvent = TextDelta | ReasoningDelta | ArgumentsDelta | FunctionCall | CustomToolCall | Response
"""What a stream yields. A call comes when it is complete; the last event is always the
Response."""
_TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


@dataclass(slots=True, kw_only=True)
class Chain:
    """Where a session stands."""

    defaults: TurnOptions
    """Options of every turn; a turn's own take precedence."""
    head: str | None = None
    """Id of the last response, None before the first."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """All items up to ``head``, inputs and outputs, for a server that has lost the chain."""
    complete: bool = True
    """``history`` goes back to the beginning."""
    owed: list[dict[str, Any]] = field(default_factory=list)
    """Outputs of calls up to ``head`` that go in front of the next turn's input."""

    def request(self, items: list[dict[str, Any]], options: TurnOptions) -> dict[str, Any]:
        """The ``response.create`` of the next turn.

        A turn's options replace the defaults, but its ``keepwarm`` keys join theirs.

        Raises:
            TypeError: an option that ``TurnOptions`` does not have.
        """
        wire = {"type": "response.create"} | _wire_options(self.defaults, options)
        wire["input"] = items
        if self.head is not None:
            wire["previous_response_id"] = self.head
        return wire

    def advance(self, items: list[dict[str, Any]], response: Response) -> None:
        """Move behind ``response``, which answered ``items``."""
        self.head = response.id
        self.history += items
        self.history += [dict(item) for item in response.raw["output"]]
        self.owed.clear()

    def fork(self) -> "Chain":
        """A second chain from here on. The histories are apart, the items in them shared."""
        return Chain(
            defaults=self.defaults,
            head=self.head,
            history=list(self.history),
            complete=self.complete,
            owed=list(self.owed),
        )


class Turn:
    """One request of a chain and its answers. The chain moves on when the turn has ended."""

    def __init__(
        self,
        chain: Chain,
        input: Input,
        options: TurnOptions,
        *,
        generate: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._chain = chain
        self._items = chain.owed + wire_items(input)
        self._request = chain.request(self._items, options)
        if not generate:
            self._request["generate"] = False
        self._clock = clock
        self._sent_at = clock()
        self._first_output_at: float | None = None
        self._retried: set[str] = set()
        self._response_id: str | None = None
        self.started = False
        """The server has sent an event of this turn."""
        self.over = False
        """The server has sent the last event of this turn."""

    def frame(self, stream_id: str | None = None) -> str:
        """The request to send now, in the lane ``stream_id``."""
        lane = {} if stream_id is None else {"stream_id": stream_id}
        self._sent_at = self._clock()
        self.over, self._response_id = False, None
        return orjson.dumps(self._request | lane).decode()

    def cancel_frame(self, stream_id: str | None = None) -> str:
        """What ends the turn on the server, in the lane that ``frame`` was sent in."""
        cancel = {"type": "response.cancel"}
        if self._response_id is not None:
            cancel["response_id"] = self._response_id
        if stream_id is not None:
            cancel["stream_id"] = stream_id
        return orjson.dumps(cancel).decode()

    def receive(self, event: Mapping[str, Any]) -> StreamEvent | None:
        """Take one server event; None if it is of no interest to a user.

        Raises:
            ApiError: the server refused the request.
            TurnFailed: the response ended ``failed``.
        """
        kind = event["type"]
        if kind == "error":
            self.over = True
            raise _refusal(event)
        self.started = True
        match kind:
            case "response.created":
                self._response_id = event["response"]["id"]
            case "response.completed" | "response.incomplete" | "response.failed":
                self.over = True
                return self._end(event["response"])
            case "response.output_item.added":
                self._first_output_at = self._first_output_at or self._clock()
            case "response.output_text.delta":
                return TextDelta(text=event["delta"])
            case "response.reasoning_text.delta":
                return ReasoningDelta(text=event["delta"])
            case "response.function_call_arguments.delta":
                return ArgumentsDelta(item_id=event["item_id"], text=event["delta"])
            case "response.output_item.done":
                (item,) = parse_items([event["item"]], "item")
                return item if isinstance(item, Call) else None
        return None

    def send_again(self, error: ApiError | ConnectionLost) -> bool:
        """Whether the turn is to be sent again after ``error``, once for each reason.

        That is safe where the server has started nothing: it closed an idle connection, the
        connection was too old, or it does not know the chain any more. In the last case
        ``frame`` then holds the whole history.
        """
        if isinstance(error, ConnectionLost):
            reason = "closed" if error.close_code in ORDERLY_CLOSES and not error.started else ""
        else:
            reason = error.code or ""
        if reason == "previous_response_not_found" and self._chain.complete:
            self._request.pop("previous_response_id", None)
            self._request["input"] = self._chain.history + self._items
        elif reason not in ("closed", "websocket_connection_limit_reached"):
            return False
        if reason in self._retried:
            return False
        self._retried.add(reason)
        return True

    def _end(self, raw: dict[str, Any]) -> Response:
        usage = raw.get("usage") or {}
        first = self._first_output_at
        response = Response(
            id=raw["id"],
            status=raw["status"],
            output=parse_items(raw["output"], "response.output"),
            usage=Usage(
                input_tokens=usage.get("input_tokens", 0),
                cached_tokens=usage.get("input_tokens_details", {}).get("cached_tokens", 0),
                output_tokens=usage.get("output_tokens", 0),
                reasoning_tokens=usage.get("output_tokens_details", {}).get("reasoning_tokens", 0),
            ),
            keepwarm=raw.get("keepwarm") or {},
            ttft_s=None if first is None else first - self._sent_at,
            duration_s=self._clock() - self._sent_at,
            raw=raw,
        )
        if response.status == "failed":
            raise TurnFailed(response)
        self._chain.advance(self._items, response)
        return response


def answers_cancel(event: Mapping[str, Any]) -> bool:
    """The turn had ended before its cancel arrived; says nothing of any other turn."""
    return bool(event["type"] == "error" and event["error"].get("code") == "response_not_found")


def ends_turn(event: Mapping[str, Any]) -> bool:
    """The last event of a turn."""
    return event["type"] in _TERMINAL and not answers_cancel(event)


def wire_items(input: Input) -> list[dict[str, Any]]:
    """Input items as they go on the wire; a string is one user message."""
    if isinstance(input, str):
        return [{"type": "message", "role": "user", "content": input}]
    return [dict(item) if isinstance(item, Mapping) else item.to_wire() for item in input]


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of ``model`` in the strict form: every key required, no other keys.

    Titles and defaults are left out: the first cost prompt tokens, the second say nothing
    where every key is required.
    """
    return _strict(model.model_json_schema())


def json_format(model: type[BaseModel]) -> dict[str, Any]:
    """The ``text`` option that makes the answer a JSON value of ``model``."""
    schema, name = strict_schema(model), model.__name__
    return {"format": {"type": "json_schema", "name": name, "schema": schema, "strict": True}}


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            strict[key] = {name: _strict(child) for name, child in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            strict[key] = [_strict(child) for child in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            strict[key] = _strict(value)
        elif key not in ("title", "default"):
            strict[key] = value
    if "properties" in strict:
        strict["required"] = list(strict["properties"])
        strict["additionalProperties"] = False
    return strict


def _wire_options(defaults: TurnOptions, options: TurnOptions) -> dict[str, Any]:
    wire: dict[str, Any] = {**defaults, **options}
    unknown = wire.keys() - TurnOptions.__optional_keys__
    if unknown:
        raise TypeError(f"unknown turn options {sorted(unknown)}")
    if "tools" in wire:
        wire["tools"] = [
            tool.to_wire() if isinstance(tool, FunctionTool) else dict(tool)
            for tool in wire["tools"]
        ]
    if "keepwarm" in wire:
        wire["keepwarm"] = {**defaults.get("keepwarm", {}), **options.get("keepwarm", {})}
    return wire


def _refusal(event: Mapping[str, Any]) -> ApiError:
    error = event["error"]
    return ApiError(
        error["message"],
        code=error.get("code"),
        param=error.get("param"),
        status=event["status"],
        type=error["type"],
        stream_id=event.get("stream_id"),
    )
