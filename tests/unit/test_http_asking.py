"""A body on its way to its answer: small ones at once, large ones beside, none for who is gone."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sessions.http.exchange import Pending
from sessions.http.message import json_response
from sessions.wire.fair_reading import Reading
from sessions.wire.http_asking import Asking
from sessions.wire.http_dialects import DIALECTS, Body, ReadBody
from sessions.wire.read_process import Outcome, ReaderLost
from tests.support.exchange import KeptExchange
from tests.support.reading import CONTEXT, inline_reading
from tools_api import errors

SMALL = b'{"input": "hi"}'


class Later:
    """An answer that waits."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def client_gone(self) -> None:
        self.heard.append("gone")

    def tick(self, now: float) -> None:
        self.heard.append(f"{now:g}")


def answer_at_once(body: Body, found: ReadBody, asking: Asking) -> None:
    asking.exchange.answer(json_response({"read": type(found.read.content).__name__}))


def asking(
    data: bytes,
    answer: Callable[[Body, ReadBody, Asking], Pending | None] = answer_at_once,
    reading: Reading | None = None,
) -> tuple[Asking, KeptExchange]:
    exchange = KeptExchange()
    made = Asking(
        tenant="a",
        body=Body(served=DIALECTS[0], data=data),
        exchange=exchange,
        reading=reading or inline_reading(),
        context=CONTEXT,
        answer=answer,
    )
    made.start()
    return made, exchange


def beside(read: Callable[[bytes | Body], Awaitable[Outcome]] | None = None) -> Reading:
    reading = replace(inline_reading(), max_inline_bytes=5)
    return reading if read is None else replace(reading, read=read)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_small_body_is_answered_at_once_and_the_tenants_next_in_its_turn() -> None:
    async def scenario() -> None:
        reading = inline_reading()
        first, exchange = asking(SMALL, reading=reading)
        assert first.pending is None
        assert exchange.body == {"read": "CreateRequest"}
        second, waiting = asking(SMALL, reading=reading)
        assert second.pending is second
        await settle()
        assert second.pending is None
        assert waiting.status == 200

    run(scenario)


def test_a_large_body_is_read_beside_and_its_client_may_go() -> None:
    async def scenario() -> None:
        large, exchange = asking(SMALL, reading=beside())
        assert large.pending is large
        await settle()
        assert exchange.body == {"read": "CreateRequest"}

        reading = beside()
        async with reading.slots.place("b"):
            gone, unanswered = asking(SMALL, reading=reading)
            await settle()
            gone.client_gone()
        await settle()
        assert unanswered.answered is None

    run(scenario)


def test_what_the_answer_waits_for_is_kept_informed() -> None:
    async def scenario() -> None:
        later = Later()
        made, _ = asking(SMALL, lambda *_: later)
        assert made.pending is made
        made.tick(5.0)
        made.client_gone()
        assert later.heard == ["5", "gone"]

    run(scenario)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(ReaderLost("gone"), 500), (RuntimeError("bug"), 500), (errors.overloaded("x"), 503)],
)
def test_every_fault_is_answered(fault: Exception, status: int) -> None:
    async def scenario() -> None:
        async def fails(_: bytes | Body) -> Outcome:
            raise fault

        def refuses(*_: Any) -> None:
            raise fault

        if not isinstance(fault, errors.ApiError):
            _, exchange = asking(SMALL, reading=beside(fails))
            await settle()
            assert exchange.status == status
        if not isinstance(fault, ReaderLost):
            _, exchange = asking(SMALL, refuses)
            assert exchange.status == status

    run(scenario)
