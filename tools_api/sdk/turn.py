"""A turn as a client sees it: request out, server events in, typed events and a Response out.

One request with its answers, and what to do when it is lost on the way. Needs no socket:
``tools_api.sdk.connection`` moves the frames.

Always true: a chain moves on only when its turn has ended ``completed`` or ``incomplete``,
and it does so once, however often the turn was sent. Where a turn begins again after it had
streamed something, ``TurnRestarted`` says so.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tools_api.errors import ApiError
from tools_api.exact_json import dumps
from tools_api.item_reading import parse_items
from tools_api.items import Call
from tools_api.sdk.agent_spans import AgentSpan
from tools_api.sdk.answers import (
    ArgumentsDelta,
    CallStarted,
    ReasoningDelta,
    Response,
    StreamEvent,
    TextDelta,
    TurnRestarted,
    TurnSteered,
    Usage,
)
from tools_api.sdk.chain import MOST_REPORTS, Chain
from tools_api.sdk.checks import check_input
from tools_api.sdk.failures import ConnectionLost, Refused, TurnFailed
from tools_api.sdk.options import Input, TurnOptions, wire_items
from tools_api.sdk.steers import Steers

_LEFT = "client_disconnected"
"""Why a turn failed that its server ended when the connection was lost."""
_BEGUN_ANEW = frozenset({"server_died", "session_moved"})
"""Why a turn failed whose server died with it, as the next server says, or was taken for dead and
lost its session to another one. It may happen to the same turn more than once."""
_FOR_NOW = {(429, "rate_limit_exceeded"), (409, "response_runs_elsewhere")}
"""Refusals besides those of ``_NOBODY_THERE`` after which the same request is sent again."""
_NOBODY_THERE = frozenset({502, 503, 504})
"""A balancer has no server that answers, or a server no room: the request was not begun."""
_OF_REQUEST_IDS = ("keepwarm", "keepwarm.request_id", "keepwarm.on_disconnect")
_TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


class Again(Enum):
    """How a turn that was lost or refused is to be sent again."""

    AT_ONCE = "at once"
    LATER = "later"
    ON_A_NEW_SOCKET = "on a new socket"


@dataclass(slots=True, kw_only=True)
class Traits:
    """Features that the server was found to have or not; a client has one for all its turns."""

    request_ids: bool = True
    """It takes ``keepwarm.request_id``, with which a request may be sent twice and runs once,
    and ``keepwarm.on_disconnect``."""
    met: bool = False
    """It was there once: trying again may help."""


class Turn:
    """One request of a chain and its answers. The chain moves on when the turn has ended."""

    started = False
    """The server has sent an event of this turn."""
    over = False
    """The server has sent the last event of this turn."""
    response: Response | None = None
    """How it ended, if it did not fail."""
    _to_be_cancelled = False

    def __init__(
        self,
        chain: Chain,
        input: Input,
        options: TurnOptions,
        *,
        generate: bool = True,
        traits: Traits | None = None,
        request_id: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``request_id``: that of another process too, which asks for the same turn."""
        check_input(input)
        self._chain = chain
        own, self._told = chain.input_with(wire_items(input)), list(chain.owed)
        self._heard = chain.heard
        """Items that the server has, and puts before ``own``."""
        self._items = [*chain.heard, *own]
        self._ran = chain.ran[:MOST_REPORTS]
        self._options = options
        self._request = chain.request(own, options)
        if not generate:
            self._request["generate"] = False
        self._traits = traits or Traits()
        self._clock = clock
        self._sent_at = clock()
        self._first_output_at: float | None = None
        self._tried: set[str] = set()
        self._response_id: str | None = None
        self._cancel_id: str | None = None
        self._last_number = -1
        self._text: list[str] = []
        self._calls: set[str] = set()
        self._resumed = False
        self._shared_id, self._ids = request_id, 0
        self._request_id = self._new_request_id()
        self.span_above: AgentSpan | None = None
        """The run's, for whoever traces; the server's span lies beneath ``span``."""
        self.span: AgentSpan | None = None
        self.steers = Steers()
        self._socket: object = None
        self._ended: Mapping[str, Any] | None = None
        """The last response, while something that was said to it is not answered."""
        self._before: Response | None = None
        """The response that was steered, until the next one begins."""
        self.cancel: Callable[[], None] | None = None
        """Ends the turn on the server; None while it is not on its way there, or was told."""

    @property
    def text(self) -> str:
        """The text of the turn so far."""
        return "".join(self._text)

    @property
    def goes_on(self) -> bool:
        """A response of it has ended, and the server makes the next one."""
        return self._before is not None

    @property
    def request(self) -> Mapping[str, Any]:
        """The request, without the fields that make it run once."""
        return self._request

    def frame(self, stream_id: str | None = None, socket: object = None) -> str:
        """The request to send now, in the lane ``stream_id`` of a socket."""
        lane = {} if stream_id is None else {"stream_id": stream_id}
        if self._heard and not self.started and socket is not self._chain.heard_on:
            self._request["input"], self._heard = self._items, []  # the server had it there alone
        self._socket, self._ended = socket, None
        self.steers.lost()
        self.over, self._cancel_id = False, None
        self._resumed = self.started
        self._sent_at = self._sent_at if self.started else self._clock()
        request = self._request
        if self._traits.request_ids:
            request = request | {"keepwarm": self._kept()}
        return dumps(request | lane).decode()

    def _kept(self) -> dict[str, Any]:
        """The fields by which a turn that is sent twice runs once, and goes on while nobody
        listens."""
        kept = {"request_id": self._request_id, **self._request.get("keepwarm", {})}
        if self._request.get("store", True):
            kept.setdefault("on_disconnect", "continue")
        if self._ran:
            kept.setdefault("tools", self._ran)
        if self.span is not None:
            kept.setdefault("traceparent", self.span.traceparent)
        return kept

    def cancel_frame(self, stream_id: str | None = None) -> str:
        """The frame that ends the turn on the server, in the lane that ``frame`` was sent in."""
        cancel = {"type": "response.cancel"}
        if self._cancel_id is not None and not self.steers.may_be_heard:
            cancel["response_id"] = self._cancel_id
        if stream_id is not None:
            cancel["stream_id"] = stream_id
        return dumps(cancel).decode()

    def ask_to_cancel(self) -> None:
        """Have the server end the turn, as soon as it is there; it then ends ``incomplete``."""
        self._to_be_cancelled = True
        cancel, self.cancel = self.cancel, None
        if cancel is not None:
            cancel()

    def on_its_way(self, cancel: Callable[[], None]) -> None:
        """The turn was sent, once more perhaps; ``cancel`` ends it there."""
        self.cancel = cancel
        if self._to_be_cancelled:
            self.ask_to_cancel()

    def steer(self, items: list[dict[str, Any]]) -> None:
        """Say something to the turn while it runs; what nobody hears is for the next one."""
        if self.over:
            self._chain.owed += items
        else:
            self.steers.say(items, None if self._resumed else self._response_id)

    def receive(self, event: Mapping[str, Any]) -> list[StreamEvent]:
        """Take one server event; what it means to a user, nothing for one that came before.

        Raises:
            Refused: the server refused the request.
            TurnFailed: the response ended ``failed``.
        """
        kind = event["type"]
        if kind == "error":
            self.over = True
            raise _refusal(event)
        if kind.startswith("response.steer."):
            self.steers.take(kind, event["steer"])
            return list(self._settle())
        found: list[StreamEvent] = []
        if kind == "response.created":
            if self._ended is not None:  # what is not answered yet came too late for it
                found += self._settle(answered=True)
            found += self._begin(event["response"]["id"])
        number = event.get("sequence_number")
        if number is not None and number <= self._last_number and kind not in _TERMINAL:
            return found
        self._last_number = self._last_number if number is None else number
        self.started = True
        found += self._read(kind, event)
        return found

    def _begin(self, response_id: str) -> Iterable[StreamEvent]:
        """The first event of a response: of this one again, or of one that takes its place."""
        known, self._response_id = self._response_id, response_id
        self._cancel_id = response_id
        if known == response_id:
            return ()
        if not self._resumed:
            self.steers.begun(response_id)
        self._before = None
        self._last_number = -1
        return () if known is None else self._restart("the server had lost it")

    def _restart(self, reason: str) -> Iterable[StreamEvent]:
        self._last_number = -1
        self._first_output_at = None
        self._text.clear()
        self._calls.clear()
        stats = self._chain.stats
        self._chain.stats = replace(stats, restarts=stats.restarts + 1)
        return (TurnRestarted(reason=reason),)

    def _read(self, kind: str, event: Mapping[str, Any]) -> Iterable[StreamEvent]:
        match kind:
            case "response.completed" | "response.incomplete" | "response.failed":
                self._ended = event["response"]
                return self._settle()
            case "response.output_item.added":
                self._first_output_at = self._first_output_at or self._clock()
                return _call_started(event["item"])
            case "response.output_text.delta":
                self._text.append(event["delta"])
                return (TextDelta(text=event["delta"]),)
            case "response.reasoning_text.delta":
                return (ReasoningDelta(text=event["delta"]),)
            case "response.function_call_arguments.delta":
                return (ArgumentsDelta(item_id=event["item_id"], text=event["delta"]),)
            case "response.output_item.done":
                (item,) = parse_items([event["item"]], "item")
                if isinstance(item, Call):
                    self._calls.add(item.call_id)
                    return (item,)
        return ()

    def _settle(self, *, answered: bool = False) -> Iterable[StreamEvent]:
        """End the turn, once all that was said to it is answered, or its next response begins."""
        if self._before is not None and self.steers.came_back:
            self._chain.owed += self.steers.take_unheard()
            self.over, self.response = True, self._before
            return (self._before,)
        if self._ended is None or (self.steers.unanswered and not answered):
            return ()
        ended, self._ended = self._ended, None
        self.over = True
        return self._end(ended)

    def _end(self, raw: Mapping[str, Any]) -> Iterable[StreamEvent]:
        response = self._response(raw)
        heard, unheard = self.steers.take_accepted(), self.steers.take_unheard()
        if response.status == "failed":
            self._chain.owed += heard + unheard
            self._chain.count(response)
            raise TurnFailed(response)
        missed = self._missed(response) if self._resumed else []
        self._chain.advance(self._items, response, self._told)
        self.response = response
        calls = any(
            isinstance(item, Call) and item.status == "completed" for item in response.output
        )
        if heard and not response.cancelled and not calls:
            self._chain.owed += unheard
            return (*missed, *self._succeeded(response, heard))
        if heard and not response.cancelled:
            self._chain.heard, self._chain.heard_on = heard, self._socket
        else:
            self._chain.owed += heard
        self._chain.owed += unheard
        return (*missed, response)

    def _succeeded(self, response: Response, heard: list[dict[str, Any]]) -> Iterable[StreamEvent]:
        """The server makes the response that hears what was said to this one; should the socket be
        lost it is asked for."""
        self.over = self.started = False
        self._before, self._response_id, self._items = response, None, heard
        self._cancel_id = None
        self._request = self._chain.request(heard, self._options)
        self._request_id = self._new_request_id()
        self._last_number, self._first_output_at = -1, None
        self._text.clear()
        self._calls.clear()
        self._tried.clear()
        self.steers.expect(heard)
        return (TurnSteered(response=response),)

    def _missed(self, response: Response) -> list[StreamEvent]:
        """The events that a stream would have told, of which only the end came."""
        said, text, missed = self.text, response.text, list[StreamEvent]()
        if not text.startswith(said):
            missed += self._restart("what had come of it was not its end")
            said = ""
        if text != said:
            missed.append(TextDelta(text=text[len(said) :]))
        for call in response.output:
            if isinstance(call, Call) and call.call_id not in self._calls:
                missed += (*_call_started(call.to_wire()), call)
        return missed

    def _response(self, raw: Mapping[str, Any]) -> Response:
        first = self._first_output_at
        return Response(
            id=raw["id"],
            status=raw["status"],
            output=parse_items(raw["output"], "response.output"),
            usage=_usage(raw.get("usage") or {}),
            keepwarm=raw.get("keepwarm") or {},
            ttft_s=None if first is None else first - self._sent_at,
            duration_s=self._clock() - self._sent_at,
            raw=raw,
        )

    def recover(self, error: Exception) -> Again | None:
        """How to send the turn again after ``error``; None: not at all.

        The same request is sent: one that had not started starts. One that had is told from its
        beginning by a server that knows request ids, and what came before is dropped here; any
        other server begins it again. That spends tokens twice and nothing else, since no tool
        with effects runs before its turn has ended.
        """
        if isinstance(error, ConnectionLost):
            return self._recover_lost(error)
        if isinstance(error, TurnFailed):
            return self._recover_failed(error)
        return self._recover_refused(error) if isinstance(error, ApiError) else None

    def _recover_lost(self, error: ConnectionLost) -> Again | None:
        if error.final:
            return None
        return Again.AT_ONCE if self._first("lost") else Again.LATER

    def _recover_failed(self, error: TurnFailed) -> Again | None:
        """A turn that ended because its connection or its server did: it came to no end."""
        first = self._first(f"failed {error.reason}")
        if error.reason not in _BEGUN_ANEW and not (error.reason == _LEFT and first):
            return None
        self._request_id = self._new_request_id()
        return Again.AT_ONCE if first else Again.LATER

    def _recover_refused(self, error: ApiError) -> Again | None:
        code, traits = error.code, self._traits
        if error.param in _OF_REQUEST_IDS and traits.request_ids and error.status == 400:
            traits.request_ids = False
            return Again.AT_ONCE
        if code == "previous_response_not_found" and self._chain.complete and self._first(code):
            self._request.pop("previous_response_id", None)
            self._request["input"] = self._chain.history + self._items
            self._request_id = self._new_request_id()
            return Again.AT_ONCE
        if code == "websocket_connection_limit_reached" and self._first(code):
            return Again.ON_A_NEW_SOCKET
        for_now = (error.status, code) in _FOR_NOW
        return Again.LATER if for_now or error.status in _NOBODY_THERE else None

    def _new_request_id(self) -> str:
        """The next id. Processes that ask for the same turn have the same ids, in one order."""
        number, self._ids = self._ids, self._ids + 1
        if self._shared_id is None:
            return f"req_{uuid.uuid4().hex}"
        return f"{self._shared_id}.{number}" if number else self._shared_id

    def _first(self, reason: str) -> bool:
        """Whether ``reason`` is met for the first time in this turn."""
        known = reason in self._tried
        self._tried.add(reason)
        return not known


def answers_cancel(event: Mapping[str, Any]) -> bool:
    """The turn had ended before its cancel arrived; says nothing of any other turn."""
    return bool(event["type"] == "error" and event["error"].get("code") == "response_not_found")


def ends_turn(event: Mapping[str, Any]) -> bool:
    """The last event of a turn."""
    return event["type"] in _TERMINAL and not answers_cancel(event)


def ends_steered(event: Mapping[str, Any]) -> bool:
    """The last event of a response in whose place another one comes."""
    details = event.get("response", {}).get("incomplete_details") or {}
    return bool(details.get("reason") == "steered")


def _call_started(item: Mapping[str, Any]) -> Iterable[StreamEvent]:
    if item["type"] not in ("function_call", "custom_tool_call"):
        return ()
    started = CallStarted(item_id=item.get("id") or "", call_id=item["call_id"], name=item["name"])
    return (started,)


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=usage.get("input_tokens", 0),
        cached_tokens=usage.get("input_tokens_details", {}).get("cached_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        reasoning_tokens=usage.get("output_tokens_details", {}).get("reasoning_tokens", 0),
    )


def _refusal(event: Mapping[str, Any]) -> Refused:
    error = event["error"]
    status = event.get("status") or 500  # other servers leave out what they need not say
    refused = Refused(
        error["message"],
        code=error.get("code"),
        param=error.get("param"),
        status=status,
        type=error.get("type") or ("invalid_request_error" if status < 500 else "server_error"),
        stream_id=event.get("stream_id"),
    )
    wait_ms = error.get("keepwarm", {}).get("retry_after_ms")
    refused.retry_after_s = None if wait_ms is None else wait_ms / 1000
    return refused
