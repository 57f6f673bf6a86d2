"""A view of the dashboard that stays true: server-sent events, only what has changed.

A view is a set of named parts, each a piece of JSON. A stream sends all of them once and from
then on, at most once a second, those that are new (``null`` for those that are gone). A page
that does not read is skipped until it does; nothing is queued for it. To look at the clock is
cheap: what has changed is worked out later, when whoever shares out the time says so. Format: HTML
Living Standard, section 9.2.
"""

import asyncio
from collections.abc import Callable, Mapping

import orjson

from sessions.http.exchange import Exchange

Parts = Mapping[str, bytes]
"""Parts of a page as JSON, by name."""

CONTENT_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
MAX_UNSENT_BYTES = 256 * 1024
"""A page that has so much still to read gets nothing new."""


def changes(before: Parts, after: Parts) -> bytes:
    """The changes that lead from one to the other, as a JSON object; empty if nothing does."""
    new = [
        orjson.dumps(name) + b":" + part for name, part in after.items() if before.get(name) != part
    ]
    gone = [orjson.dumps(name) + b":null" for name in before if name not in after]
    return b"{" + b",".join(new + gone) + b"}" if new or gone else b""


class EventStream:
    """The stream of changes to one open page."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        parts: Callable[[], Parts | None],
        in_turn: Callable[[Callable[[], None]], None],
        now: float,
    ) -> None:
        """
        Args:
            parts: the view as it is; None: the page may not see it any more.
            in_turn: makes a call, at once or later.
        """
        self._exchange = exchange
        self._parts = parts
        self._in_turn = in_turn
        self._due = False
        """The changes are about to be worked out."""
        self._sent: Parts = {}
        self._sent_s = now
        self._over = asyncio.Event()
        exchange.start_stream(CONTENT_TYPE)
        self._send(b"retry: 2000\nevent: parts\ndata: ", self._news(), now)

    def tick(self, now: float) -> None:
        """Send what has changed, when there is time for it. Called about once a second."""
        if self._due or self._over.is_set() or self._exchange.unsent_bytes > MAX_UNSENT_BYTES:
            return
        self._due = True
        self._in_turn(lambda: self._renew(now))

    def _renew(self, now: float) -> None:
        self._due = False
        if self._over.is_set():
            return
        news = self._news()
        if news:
            self._send(b"event: parts\ndata: ", news, now)
        elif not self._over.is_set() and now - self._sent_s >= HEARTBEAT_S:
            self._send(b": still here", b"", now)

    async def ended(self) -> None:
        """Wait for its end; who does not wait any more has closed the page."""
        try:
            await self._over.wait()
        finally:
            self._over.set()

    def finish(self) -> None:
        """The server says goodbye; the page will ask again."""
        if not self._over.is_set():
            self._over.set()
            self._exchange.finish(b"event: bye\ndata: {}\n\n")

    def _news(self) -> bytes:
        after = self._parts()
        if after is None:
            self.finish()
            return b""
        news = changes(self._sent, after)
        self._sent = after
        return news

    def _send(self, head: bytes, news: bytes, now: float) -> None:
        if not self._over.is_set():
            self._sent_s = now
            self._exchange.write(head + news + b"\n\n")
