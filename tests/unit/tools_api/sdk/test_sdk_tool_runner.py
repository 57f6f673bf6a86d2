"""Single calls: time, retries, approval, context, limits, and tools that behave badly."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tools_api.items import FunctionCall
from tools_api.sdk.answers import CallRecord
from tools_api.sdk.threads import ToolExit
from tools_api.sdk.tool_making import tool
from tools_api.sdk.tool_runner import Equipment, ToolRunner, reports
from tools_api.sdk.tools import Tool, ToolContext


def a_call(name: str, arguments: str = "{}", call_id: str = "call_1") -> FunctionCall:
    return FunctionCall(call_id=call_id, name=name, arguments=arguments)


async def no_wait(seconds: float) -> None:
    """Instead of sleeping between attempts."""


async def run(one: Tool, arguments: str = "{}", **equipment: Any) -> CallRecord:
    runner = ToolRunner([one], Equipment(**equipment), sleep=no_wait)
    return await runner.run(a_call(one.name, arguments))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_never_returns_is_given_up(is_async: bool) -> None:
    never = threading.Event()

    async def in_loop() -> None:
        await asyncio.Event().wait()

    def in_thread() -> None:
        never.wait()

    one = tool(timeout_s=0.02)(in_loop if is_async else in_thread)
    record = await run(one)
    never.set()
    assert record.failed
    assert orjson.loads(record.output) == {"error": "ToolTimedOut: no result within 0.02 s"}


async def test_tools_that_never_return_hold_up_no_others() -> None:
    """More of them than a pool would have threads."""
    never = threading.Event()

    @tool(timeout_s=0.02)
    def stuck() -> None:
        never.wait()

    @tool
    def quick() -> str:
        return "here"

    runner = ToolRunner([stuck, quick], Equipment(max_parallel=100))
    await asyncio.gather(*(runner.run(a_call("stuck", call_id=f"c{n}")) for n in range(40)))
    assert (await runner.run(a_call("quick"))).output == "here"
    never.set()


async def test_a_time_out_of_the_tools_own_is_its_error() -> None:
    @tool
    async def reach() -> None:
        raise TimeoutError("the host is silent")

    assert "TimeoutError: the host is silent" in (await run(reach)).output


async def test_a_tool_that_raises_is_tried_again_as_often_as_it_says() -> None:
    attempts: list[int] = []

    @tool(retries=2)
    def shaky(context: ToolContext) -> str:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise OSError("not yet")
        return "now"

    record = await run(shaky)
    assert (record.output, record.failed, record.attempts) == ("now", False, 3)
    assert attempts == [1, 2, 3]

    @tool(retries=1)
    def broken() -> str:
        raise OSError("never")

    record = await run(broken)
    assert (record.failed, record.attempts) == (True, 2)


@pytest.mark.parametrize(("idempotent", "attempts"), [(False, 1), (True, 2)])
async def test_after_a_timeout_only_what_may_run_twice_does(
    idempotent: bool, attempts: int
) -> None:
    @tool(retries=1, timeout_s=0.02, idempotent=idempotent)
    async def slow() -> None:
        await asyncio.Event().wait()

    assert (await run(slow)).attempts == attempts


async def test_a_tool_is_given_the_context_and_the_calls_own_key() -> None:
    @tool
    def buy(context: ToolContext[dict[str, int]], product: str) -> int:
        assert context.call_id == "call_1"
        return context.value[product]

    assert (await run(buy, '{"product": "desk"}', context={"desk": 180})).output == "180"


@pytest.mark.parametrize(
    ("verdict", "output"),
    [
        (True, "done"),
        (False, '{"error":"the call was not approved"}'),
        ("too dear", '{"error":"the call was not approved: too dear"}'),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_that_needs_approval_runs_only_with_it(
    verdict: bool | str, output: str, is_async: bool
) -> None:
    asked: list[Mapping[str, Any]] = []

    @tool(needs_approval=True)
    def delete(name: str) -> str:
        return "done"

    def ask(call: FunctionCall, arguments: Mapping[str, Any]) -> bool | str:
        asked.append(arguments)
        return verdict

    async def ask_async(call: FunctionCall, arguments: Mapping[str, Any]) -> bool | str:
        return ask(call, arguments)

    record = await run(delete, '{"name": "x"}', approve=ask_async if is_async else ask)
    assert record.output == output
    assert asked == [{"name": "x"}]


def test_what_a_session_cannot_give_is_said_before_anything_runs() -> None:
    @tool(needs_approval=True)
    def delete(name: str) -> str:
        return name

    with pytest.raises(ValueError, match="two tools are called 'delete'"):
        Equipment(approve=lambda call, arguments: True).check([delete, delete])
    with pytest.raises(ValueError, match="below 1"):
        Equipment(max_parallel=0)


async def test_an_approval_that_raises_is_the_calls_error() -> None:
    @tool(needs_approval=True)
    def delete() -> str:
        return "gone"

    def ask(call: FunctionCall, arguments: Mapping[str, Any]) -> bool:
        raise RuntimeError("nobody there")

    record = await run(delete, approve=ask)
    assert (record.failed, record.output) == (True, '{"error":"RuntimeError: nobody there"}')


async def test_only_so_many_calls_run_at_once() -> None:
    running = most = 0

    @tool
    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    runner = ToolRunner([count], Equipment(max_parallel=2))
    await asyncio.gather(*(runner.run(a_call("count", call_id=f"c{n}")) for n in range(9)))
    assert most == 2


async def test_long_output_is_cut_at_the_tools_own_bound() -> None:
    @tool
    def flood() -> str:
        return "x" * 50_000_000

    @tool(max_output_bytes=1000)
    def page() -> str:
        return "x" * 5000

    record = await run(flood)
    assert len(record.output) <= 16 * 1024
    assert record.cut_bytes > 49_000_000
    assert len((await run(page)).output) <= 1000


async def test_what_cannot_be_written_is_the_calls_error() -> None:
    @tool
    def raw() -> list[bytes]:
        return [b"\xff"]

    record = await run(raw)
    assert record.failed
    assert "utf-8" in record.output


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_ends_the_program_ends_the_run(
    leave: type[BaseException], is_async: bool
) -> None:
    async def in_loop() -> None:
        raise leave

    def in_thread() -> None:
        raise leave

    with pytest.raises(ToolExit) as caught:
        await run(tool(in_loop if is_async else in_thread))
    assert isinstance(caught.value.raised, leave)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_was_cancelled_from_within_fails_its_call_alone(is_async: bool) -> None:
    async def wait_for_what_is_cancelled() -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    async def in_loop() -> None:
        await wait_for_what_is_cancelled()

    def in_thread() -> None:
        asyncio.run(wait_for_what_is_cancelled())

    record = await run(tool(retries=1)(in_loop if is_async else in_thread))
    assert (record.failed, record.attempts) == (True, 2)
    said = "ToolCancelled: the tool was cancelled from within"
    assert orjson.loads(record.output) == {"error": said}


async def test_an_approval_that_was_cancelled_from_within_fails_its_call_alone() -> None:
    @tool(needs_approval=True)
    def sell() -> str:
        raise AssertionError("not approved")

    async def approve(call: FunctionCall, arguments: Mapping[str, Any]) -> bool:
        raise asyncio.CancelledError

    record = await run(sell, approve=approve)
    assert (record.failed, record.attempts) == (True, 0)
    assert "ToolCancelled" in record.output


async def test_a_call_that_is_cancelled_is_cancelled_with_its_tool() -> None:
    begun = asyncio.Event()

    @tool
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(endless))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_plain_functions_run_beside_the_loop() -> None:
    here = threading.get_ident()

    @tool
    def where() -> bool:
        time.sleep(0)
        return threading.get_ident() != here

    assert (await run(where)).output == "true"


async def test_a_stop_iteration_is_an_error_like_others() -> None:
    @tool
    def empty() -> object:
        return next(iter(()))

    assert "StopIteration" in (await run(empty)).output


@pytest.mark.parametrize(("seconds", "ms"), [(0.0015, 1.5), (-1.0, 0.0), (4e9, 2_678_400_000.0)])
def test_reports_of_how_tools_ran_are_bounded(seconds: float, ms: float) -> None:
    record = CallRecord(call=a_call("t"), output="x", failed=True, duration_s=seconds)
    assert reports([record]) == [{"call_id": "call_1", "ms": ms, "failed": True}]
