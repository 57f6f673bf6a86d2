"""An answer that comes later: once, in the words of its API, or to nobody."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from sessions.http.later import Later
from sessions.http.message import HttpResponse, json_response
from tests.support.exchange import KeptExchange
from tools_api import errors


async def said() -> HttpResponse:
    await asyncio.sleep(0)
    return json_response({"said": True})


async def refused() -> HttpResponse:
    raise errors.no_such_response("resp_1")


async def broken() -> HttpResponse:
    raise RuntimeError("broken")


def answered(coming: Coroutine[Any, Any, HttpResponse], *, gone: bool = False) -> KeptExchange:
    async def run() -> KeptExchange:
        exchange = KeptExchange()
        later = Later(exchange, coming)
        later.tick(1.0)
        if gone:
            await asyncio.sleep(0)
            later.client_gone()
        for _ in range(5):
            await asyncio.sleep(0)
        return exchange

    return asyncio.run(run())


def test_the_answer_is_given_when_it_is_there() -> None:
    assert answered(said()).body == {"said": True}


def test_a_refusal_and_a_fault_are_answered_too() -> None:
    assert answered(refused()).status == 404
    assert answered(broken()).status == 500


def test_a_client_that_is_gone_is_answered_nothing() -> None:
    assert not answered(said(), gone=True).over
