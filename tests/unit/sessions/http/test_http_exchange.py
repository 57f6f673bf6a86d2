"""A handler is a coroutine: it answers at once where it need not wait; who leaves cancels it."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import pytest

from sessions.http.exchange import Call, at_once, started
from sessions.http.message import HttpResponse
from tests.support.exchange import KeptExchange, make_call
from tools_api import errors


def test_an_answer_that_needs_no_wait_is_there_at_once() -> None:
    def echo(call: Call) -> HttpResponse:
        body = call.argument.encode()
        return HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=body)

    exchange = KeptExchange().play(at_once(echo)(make_call("a")))  # type: ignore[arg-type]
    assert exchange.answered is not None
    assert exchange.answered.body == b"a"


def test_a_refusal_is_raised_to_the_connection() -> None:
    def refuse(call: Call) -> HttpResponse:
        raise errors.no_such_response(call.argument)

    assert KeptExchange().play(at_once(refuse)(make_call("a"))).status == 404  # type: ignore[arg-type]


class Long:
    """What a handler works on."""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_what_has_to_wait_goes_on_as_a_task_with_what_it_waited_for() -> None:
    async def scenario() -> None:
        loop, heard = asyncio.get_running_loop(), list[Any]()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[int] = loop.create_future()

        async def work() -> None:
            heard.append("begun")
            heard.append(await first)
            await asyncio.sleep(0)
            try:
                await second
            except KeyError as error:
                heard.append(repr(error))

        task = started(work())
        assert heard == ["begun"]
        assert task is not None
        first.set_result(1)
        second.set_exception(KeyError("x"))
        await task
        assert heard == ["begun", 1, "KeyError('x')"]

    run(scenario)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_is_cancelled_hears_of_it_however_early(steps: int) -> None:
    async def scenario() -> None:
        heard: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                heard.append("let go")

        task = started(work())
        assert task is not None
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert heard == ["let go"]

    run(scenario)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_fault_ends_it_and_what_it_worked_on_is_gone_without_the_collector(
    cancelled: bool,
) -> None:
    made: list[weakref.ref[Long]] = []

    async def work() -> None:
        long = Long()
        made.append(weakref.ref(long))
        await asyncio.Event().wait() if cancelled else await asyncio.sleep(0)
        raise KeyError("x")

    async def scenario() -> None:
        task = started(work())
        assert task is not None
        if cancelled:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == cancelled
        assert cancelled or isinstance(task.exception(), KeyError)

    gc.disable()
    try:
        run(scenario)
        assert made[0]() is None
    finally:
        gc.enable()
