"""An exchange that keeps what it was given, with nobody behind it; a handler is played on it."""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import orjson
from websockets.datastructures import Headers

from sessions.http.exchange import Call, started
from sessions.http.message import HttpRequest, HttpResponse, refusal
from sessions.tenants import Principal
from tools_api.errors import ApiError


class KeptExchange:
    """``unsent`` is what the client has not read; it reads nothing by itself."""

    def __init__(self) -> None:
        self.answered: HttpResponse | None = None
        self.content_type: str | None = None
        self.writes: list[bytes] = []
        self.over = self.was_cut = False
        self.reads = True
        self.looks: list[Callable[[float], None]] = []
        self._unsent = 0
        self._task: asyncio.Task[None] | None = None

    def play(self, handling: Coroutine[Any, Any, HttpResponse | None]) -> "KeptExchange":
        """Let a handler answer, as a connection does. What it raises is answered as a Response's
        error would be."""
        self._task = started(self._answered_by(handling))
        return self

    async def _answered_by(self, handling: Coroutine[Any, Any, HttpResponse | None]) -> None:
        try:
            response = await handling
        except ApiError as error:
            response = refusal(error)
        if response is not None:
            self.answer(response)

    def leave(self) -> None:
        """The client goes."""
        if self._task is not None:
            self._task.cancel()

    def look_at_clock(self, look: Callable[[float], None]) -> None:
        self.looks.append(look)

    def tick(self, now: float) -> None:
        for look in self.looks:
            look(now)

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    def answer(self, response: HttpResponse) -> None:
        assert not self.over
        assert self.content_type is None, "an answer had begun"
        self.answered, self.over = response, True

    def start_stream(self, content_type: str) -> None:
        assert not self.over
        assert self.content_type is None, "it begins twice"
        self.content_type = content_type

    def write(self, piece: bytes) -> None:
        assert not self.over
        assert self.content_type is not None
        assert piece, "an empty piece"
        self.writes.append(piece)
        self._unsent += 0 if self.reads else len(piece)

    def finish(self, piece: bytes = b"") -> None:
        assert not self.over
        assert self.content_type is not None
        if piece:
            self.writes.append(piece)
        self.over = True

    def body_read(self) -> None:
        pass

    def cut(self) -> None:
        self.over = self.was_cut = True

    @property
    def status(self) -> int:
        assert self.answered is not None
        return HTTPStatus(self.answered.status).value

    @property
    def body(self) -> Any:
        assert self.answered is not None
        return orjson.loads(self.answered.body)


def make_call(
    argument: str = "",
    *,
    target: str = "/",
    method: str = "GET",
    body: bytes = b"",
    tenant: str = "acme",
    exchange: KeptExchange | None = None,
    **headers: str,
) -> Call:
    """A request that has been let in; underscores in header names stand for hyphens."""
    given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return Call(
        principal=Principal(tenant=tenant),
        request=HttpRequest(method=method, target=target, headers=given),
        argument=argument,
        body=body,
        exchange=exchange or KeptExchange(),
    )
