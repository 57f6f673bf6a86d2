"""A server in the process that answers as a script says: for tests of agents.

``ScriptedServer`` is a transport of the client (``tools_api.sdk.transport``): no socket is opened,
no model runs, and torch is not loaded. Requests are read, refused and answered in the words of a
real server; what becomes of a turn is the script's. May be used by any number of clients and
threads.

Always true: a request id starts one turn, however often it is sent; a turn whose socket broke is
told to whoever asks again.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from keepwarm.scripted.answers import ScriptedCall, ScriptedTurn, turn_of
from keepwarm.scripted.over_http import answered
from keepwarm.scripted.played import Counts, ScriptedEvents
from keepwarm.scripted.sessions import Begun, ScriptedSessions, brief
from keepwarm.scripted.socket import ScriptedSocket
from sessions.turns.submissions import Submission, steering_items, successor
from tools_api import errors
from tools_api.errors import ApiError
from tools_api.events import (
    CancelTurn,
    Event,
    ResumeTurn,
    SteerRequest,
    decode,
    encode,
    steer_failed,
)
from tools_api.exact_json import loads
from tools_api.items import Item
from tools_api.limits import DEFAULT_LIMITS
from tools_api.requests import CreateRequest
from tools_api.responses import ResponseObject
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.sync_client import Client

URL = "http://scripted.invalid/v1"
"""An address to which nothing is ever sent."""
_NOT_FOUND = ("response_not_found", "No response of that id runs on this connection.")
_TIERS = {"flex": "flex", "priority": "priority", "fast": "priority", "ultrafast": "priority"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """A turn that a script is to answer."""

    request: CreateRequest
    """The request as a real server reads it."""
    raw: Mapping[str, Any]
    """The request as the client sent it."""
    items: tuple[Item, ...]
    """The items that the model would read, the oldest first."""
    session: str
    number: int
    """The turn's number in its session, from 1."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools that the model could call."""
        return tuple(tool.name for tool in self.request.tools)


Script = Iterable[Any] | Callable[[AskedTurn], Any]
"""Answers as ``answers.turn_of`` takes them."""


@dataclass(slots=True, kw_only=True)
class _Running:
    """A turn, and who gets its events."""

    begun: Begun
    played: ScriptedEvents
    counts: Counts
    follower: ScriptedSocket | None
    lane: str | None
    told: int = 0
    """Events that the follower has."""
    stays: bool = False
    """Whether it goes on while nobody listens."""


class ScriptedServer:
    """Answers turns as ``script`` says: a list, an answer for each turn in the order in which they
    begin, or a function of the turn."""

    def __init__(
        self, script: Script, *, prices: Mapping[str, float] | None = None, model: str = "default"
    ) -> None:
        """
        Args:
            script: answers, each as in ``keepwarm.testing``. A list that has run out, and a
                function that raises, refuse the turn (``script_ended``, ``script_failed``).
            prices: of a million tokens: ``input_uncached``, ``input_cached``, ``output``,
                ``reasoning``.
            model: the name that responses carry.

        Raises:
            TypeError: the script is none.
        """
        listed = isinstance(script, Iterable) and not isinstance(script, str | Mapping)
        if not (listed or callable(script)):
            kind = type(script).__name__
            raise TypeError(f"the script is of type {kind}: give a list of answers, or a function")
        self._answers = None if callable(script) else iter(script)
        self._function = script if callable(script) else None
        self._model = model
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._kept = ScriptedSessions(prices or {})
        self._running: dict[str, _Running] = {}
        self._by_request: dict[str, _Running] = {}
        self._sockets: list[ScriptedSocket] = []
        self._asked = 0
        self.requests: list[dict[str, Any]] = []
        """Every ``response.create`` as it arrived, in order; what was sent twice is twice here."""
        self.failures: list[BaseException] = []
        """Exceptions of the script's function."""

    def client(self, **options: Any) -> Client:
        """A client of this server; options as for ``Client``."""
        return Client(URL, transport=self, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of this server; options as for ``AsyncClient``."""
        return AsyncClient(URL, transport=self, **options)

    def cut(self, code: int | None = None) -> None:
        """Break every open socket: without a word, or with a close code (1012: the server is
        started again). Turns and sessions stay."""
        with self._lock:
            for socket in list(self._sockets):
                self._drop(socket, code)

    def go_on(self) -> None:
        """Let the turns end that are held."""
        with self._lock:
            for running in [each for each in self._running.values() if not each.played.over]:
                running.played.go_on()
                answer = running.played.answer
                self._end(running, answer.status, answer.reason)

    # The transport

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> ScriptedSocket:
        """See ``Transport``."""
        del url, headers, open_timeout_s
        with self._lock:
            socket = ScriptedSocket(self._receive, self._left)
            self._sockets.append(socket)
            return socket

    async def ask(
        self, url: str, headers: dict[str, str], body: bytes | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """See ``Transport``."""
        del headers, timeout_s
        with self._lock:
            return answered(self._kept, url.removeprefix(URL), body)

    # Frames

    def _receive(self, socket: ScriptedSocket, frame: str) -> None:
        with self._lock:
            try:
                asked = decode(frame)
                match asked:
                    case CreateRequest():
                        self.requests.append(loads(frame))
                        self._create(socket, asked)
                    case CancelTurn():
                        self._cancel(socket, asked)
                    case ResumeTurn():
                        self._resume(socket, asked)
                    case SteerRequest():
                        self._steer(socket, asked, len(frame))
                    case _:
                        return
            except ApiError as error:
                socket.deliver(encode(error.event()))
            except Exception as error:  # or nobody would hear of it
                self.failures.append(error)
                said = f"the scripted server failed: {type(error).__name__}: {error}"
                socket.deliver(encode(ApiError(said, code="script_failed").event()))

    def _create(self, socket: ScriptedSocket, request: CreateRequest) -> None:
        lane, id_ = request.stream_id, request.keepwarm.request_id
        known = None if id_ is None else self._by_request.get(id_)
        if known is not None:
            if known.begun.request.body_digest != request.body_digest:
                raise _in_lane(errors.request_id_reused(), lane)
            self._follow(known, socket, lane, 0)
            return
        try:
            running = self._begin(socket, request)
        except ApiError as error:
            raise _in_lane(error, lane) from error
        if id_ is not None:
            self._by_request[id_] = running
        self._tell(running)

    def _begin(self, socket: ScriptedSocket, request: CreateRequest) -> _Running:
        begun = self._kept.begin(request)
        try:
            answer = self._answer(begun)
        except ApiError:
            begun.session.turns -= 1
            raise
        response = self._response(begun)
        played = ScriptedEvents(
            response,
            answer,
            stream_id=request.stream_id,
            brief=brief(begun) if request.keepwarm.stats else None,
            new_id=self._new_id,
            wall_clock=time.time,
        )
        running = _Running(
            begun=begun,
            played=played,
            counts=begun.counts,
            follower=socket,
            lane=request.stream_id,
            stays=request.keepwarm.on_disconnect == "continue",
        )
        self._running[response.id] = running
        self._play(running)
        return running

    def _play(self, running: _Running) -> None:
        played, begun = running.played, running.begun
        answer = played.answer
        try:
            room = self._kept.room(begun) if answer.usage is None else 1 << 30
        except ApiError as error:
            played.begin(None)
            running.counts = Counts()
            failure = error.code or "", error.message
            self._end(running, "failed", "budget_exhausted", error=failure)
            return
        runs = answer.status != "failed" or bool(answer.parts)
        played.begin(begun.counts if runs else None)
        written = played.write(room)
        running.counts = replace(begun.counts, output=written.output, reasoning=written.reasoning)
        wanted = sum(len(part.pieces) for part in answer.parts)
        if written.output < wanted:
            self._end(running, "incomplete", self._kept.limited(begun, written.output))
        elif not answer.held:
            self._end(running, answer.status, answer.reason, error=answer.error)

    def _answer(self, begun: Begun) -> ScriptedTurn:
        if not begun.request.generate or self._is_refused(begun):
            return ScriptedTurn()
        self._asked += 1
        if self._function is not None:
            asked = AskedTurn(
                request=begun.request,
                raw=self.requests[-1],
                items=begun.items,
                session=begun.session.name,
                number=begun.number,
            )
            try:
                answer = turn_of(self._function(asked))
            except Exception as error:
                self.failures.append(error)
                said = f"the script raised {type(error).__name__}: {error}"
                raise ApiError(said, code="script_failed") from error
        else:
            assert self._answers is not None
            try:
                answer = turn_of(next(self._answers))
            except TypeError as error:
                self.failures.append(error)
                raise ApiError(str(error), code="script_failed") from error
            except StopIteration:
                had = self._asked - 1
                answers = f"{had} answer" if had == 1 else f"{had} answers"
                said = f"the script has {answers}, and turn {self._asked} was asked"
                raise ApiError(f"{said}: give it one more", code="script_ended") from None
        if answer.refusal is not None:
            given = answer.refusal
            raise ApiError(
                given.message,
                code=given.code,
                param=given.param,
                status=given.status,
                type=given.type,
                retry_after_s=given.retry_after_s,
            )
        return answer

    def _is_refused(self, begun: Begun) -> bool:
        """Whether a budget is spent: then no model is asked, and no answer of a list is taken. A
        function is asked all the same: it may tell the usage of another server, as cassettes do."""
        if self._function is not None:
            return False
        try:
            self._kept.room(begun)
        except ApiError:
            return True
        return False

    def _response(self, begun: Begun) -> ResponseObject:
        request, parent = begun.request, begun.parent
        return ResponseObject(
            id=self._new_id("resp"),
            request=request,
            model=request.model or self._model,
            created_at=int(time.time()),
            previous_response_id=None if parent is None else parent.id,
            service_tier=_TIERS.get(request.service_tier, "default"),
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            max_output_tokens=request.max_output_tokens,
        )

    def _end(
        self,
        running: _Running,
        status: str,
        reason: str | None,
        *,
        error: tuple[str, str] | None = None,
    ) -> None:
        played, begun, counts = running.played, running.begun, running.counts
        stats = self._kept.stats(begun, counts, reason)
        answer = played.answer
        told: Mapping[str, Any] | None = answer.usage
        if answer.usage is None:
            told = None if counts == Counts() else counts.to_wire()
        if answer.keepwarm is not None:
            stats = {**brief(begun), **answer.keepwarm} | {"session": begun.session.name}
        shown = stats if begun.request.keepwarm.stats else None
        played.end(status, told, reason=reason, error=error, keepwarm=shown)
        if status != "failed":
            wire = played.log[-1]["response"]
            self._kept.keep(begun, wire, played.output, counts.output)
        self._tell(running)

    def _cancel(self, socket: ScriptedSocket, asked: CancelTurn) -> None:
        for id_, running in self._running.items():
            mine = running.follower is socket and running.lane == asked.stream_id
            if running.played.over or not (
                mine if asked.response_id is None else id_ == asked.response_id
            ):
                continue
            self._end(running, "incomplete", "cancelled")
            return
        raise _in_lane(errors.response_not_found(asked.response_id), asked.stream_id)

    def _steer(self, socket: ScriptedSocket, asked: SteerRequest, num_bytes: int) -> None:
        """A turn that is held ends behind what it has said, and the script is asked for the one
        that has heard it. Any other turn has ended."""
        running = self._running.get(asked.previous_response_id)
        why = self._unsteerable(running, socket)
        lane = None if running is None else running.lane
        refused = partial(steer_failed, 0, asked)
        if running is None or why is not None:
            socket.deliver(encode(refused(*(why or _NOT_FOUND), lane)))
            return
        played = running.played
        try:
            items = steering_items(asked, num_bytes, DEFAULT_LIMITS)
        except ApiError as error:
            socket.deliver(encode(refused("invalid_input", error.message, lane)))
            return
        id_ = self._new_id("steer")
        heard = Submission(id=id_, asked=asked, items=items, num_bytes=num_bytes)
        played.accept(id_)
        played.go_on()
        self._end(running, "incomplete", "steered")
        try:
            request = successor(running.begun.request, played.response.id, (heard,))
            self._tell(self._begin(socket, request.model_copy(update={"stream_id": lane})))
        except ApiError as error:
            told = refused("successor_creation_failed", error.message, lane, id_=id_)
            socket.deliver(encode(told))

    def _unsteerable(
        self, running: _Running | None, socket: ScriptedSocket
    ) -> tuple[str, str] | None:
        if running is None:
            return _NOT_FOUND
        if running.played.over:
            return "response_already_completed", "It has ended."
        if any(isinstance(part, ScriptedCall) for part in running.played.answer.parts):
            return "steering_not_supported", "A turn of a script that calls tools is not steered."
        if running.follower is not socket:
            return "response_not_active", "Its events go elsewhere."
        return None

    def _resume(self, socket: ScriptedSocket, asked: ResumeTurn) -> None:
        if asked.request_id is not None:
            found = self._by_request.get(asked.request_id)
        else:
            found = self._running.get(asked.response_id or "")
        if found is None:
            name = "response_id" if asked.request_id is None else "request_id"
            value = asked.response_id or asked.request_id or ""
            raise _in_lane(errors.no_such_turn(name, value), asked.stream_id)
        self._follow(found, socket, asked.stream_id, asked.after_sequence + 1)

    # Telling

    def _follow(
        self, running: _Running, socket: ScriptedSocket, lane: str | None, first: int
    ) -> None:
        """The turn's events from ``first`` on are that socket's from now on."""
        before = running.follower
        if before is not None and not running.played.over:
            before.deliver(encode(errors.followed_elsewhere().event(running.lane)))
        running.follower, running.lane, running.told = socket, lane, first
        self._tell(running)

    def _tell(self, running: _Running) -> None:
        played, socket = running.played, running.follower
        for event in played.log[running.told :]:
            if socket is None:
                break
            number = event["sequence_number"]
            if number == played.answer.cut_after and not played.was_cut:
                played.was_cut = True
                self._drop(socket, None)
                return
            socket.deliver(encode(_relaned(event, running.lane)))
            running.told += 1
        if played.over and running.told >= len(played.log):
            running.follower = None

    def _drop(self, socket: ScriptedSocket, code: int | None) -> None:
        socket.break_off(code)
        self._left(socket)

    def _left(self, socket: ScriptedSocket) -> None:
        """A socket is gone: turns that nobody follows end, unless they were asked to go on."""
        with self._lock:
            if socket in self._sockets:
                self._sockets.remove(socket)
            for running in self._running.values():
                if running.follower is not socket:
                    continue
                running.follower = None
                if not (running.played.over or running.stays):
                    lost = "server_error", "The client's connection was lost."
                    self._end(running, "failed", "client_disconnected", error=lost)

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers):032x}"


def _in_lane(error: ApiError, lane: str | None) -> ApiError:
    error.stream_id = error.stream_id or lane
    return error


def _relaned(event: Event, lane: str | None) -> Event:
    told = {key: value for key, value in event.items() if key != "stream_id"}
    if lane is None:
        return told
    head = {key: told.pop(key) for key in ("type", "sequence_number")}
    return {**head, "stream_id": lane, **told}
