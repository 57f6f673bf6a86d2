"""A body on its way to what answers it: read in its tenant's turn, in the loop or beside it.

Until then it is what the connection has to keep informed; afterwards that is whatever the answer
is waiting for. Knows nothing of turns or sessions.

Always true: a client that goes away before its body is read leaves nothing behind.
"""

import asyncio
import logging
from collections.abc import Callable

from sessions.http.exchange import Exchange, Pending
from sessions.http.message import refusal
from sessions.turns.reading import ReadContext
from sessions.wire.fair_reading import Reading
from sessions.wire.http_dialects import Body, ReadBody, read_body
from sessions.wire.read_process import ReaderLost
from tools_api import errors
from tools_api.errors import ApiError

log = logging.getLogger(__name__)

Answer = Callable[[Body, ReadBody, "Asking"], Pending | None]
"""Answers through ``Asking.exchange``, at once or later; may raise ApiError."""


class Asking:
    """One body of one client."""

    def __init__(
        self,
        *,
        tenant: str,
        body: Body,
        exchange: Exchange,
        reading: Reading,
        context: ReadContext,
        answer: Answer,
    ) -> None:
        self.tenant = tenant
        self.exchange = exchange
        self._body = body
        self._reading = reading
        self._context = context
        self._answer = answer
        self._gone = self._answered = False
        self._next: Pending | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read it, now or in a while."""
        if len(self._body.data) > self._reading.max_inline_bytes:
            self._task = asyncio.get_running_loop().create_task(self._read_beside())
        else:
            self._reading.turns.take(self.tenant, self._read_here)

    @property
    def pending(self) -> Pending | None:
        """What the connection is to keep informed; None: it is answered."""
        return None if self._answered and self._next is None else self

    def client_gone(self) -> None:
        """Nobody waits for the answer any more."""
        self._gone = True
        if self._next is not None:
            self._next.client_gone()
        elif self._task is not None:
            self._task.cancel()

    def tick(self, now: float) -> None:
        """For whatever the answer waits for."""
        if self._next is not None:
            self._next.tick(now)

    def _read_here(self) -> None:
        if not self._gone:
            self._take(lambda: read_body(self._body, self._context))

    async def _read_beside(self) -> None:
        try:
            found = await self._reading.beside(self.tenant, self._body)
        except ReaderLost:
            self._refuse(errors.not_read())
        except Exception:
            log.exception("body cannot be read")
            self._refuse(errors.internal_error())
        else:
            self._take(lambda: found)

    def _take(self, read: Callable[[], ReadBody]) -> None:
        self._answered = True
        self.exchange.body_read()
        try:
            self._next = self._answer(self._body, read(), self)
        except ApiError as error:
            self._refuse(error)
        except Exception:
            log.exception("request failed")
            self._refuse(errors.internal_error())

    def _refuse(self, error: ApiError) -> None:
        self._answered = True
        self.exchange.answer(refusal(error, self._body.served.dialect))
