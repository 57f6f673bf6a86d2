"""Turns of one socket: order of frames, lanes that come back, cancels that came too late."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.fake_server import FakeServer, message, refusal, turn
from tools_api.sdk.answers import TextDelta, TurnSteered
from tools_api.sdk.chain import Chain
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.lanes import NUM_LANES, Lane, Lanes
from tools_api.sdk.turn import Turn


def a_turn() -> Turn:
    return Turn(Chain(defaults={}), "hi", {})


async def open_lanes(server: FakeServer) -> Lanes:
    return Lanes(await connect(server.url.replace("http", "ws") + "/responses", compression=None))


async def play(lane: Lane, one: Turn) -> None:
    """Give the turn the lane's events up to the last."""
    while not one.over:
        found = await lane.events.get()
        assert isinstance(found, dict)
        one.receive(found)


async def take(lanes: Lanes) -> Lane:
    lane = await lanes.take()
    assert lane is not None
    return lane


async def test_a_request_always_goes_before_its_cancel() -> None:
    seen: list[str] = []

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(request["type"])
        return []

    with FakeServer(answer, on_cancel=answer) as server:
        lanes = await open_lanes(server)
        for _ in range(5):
            lane, one = await take(lanes), a_turn()
            lanes.post(one.frame(lane.name))
            lanes.leave(lane, one)
        while len(seen) < 10:
            await asyncio.sleep(0.001)
        await lanes.close()
    assert seen == ["response.create", "response.cancel"] * 5


async def test_the_lane_of_a_cancelled_turn_is_free_after_its_last_event() -> None:
    held: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        events = turn(request, [message("x")])
        if request["stream_id"] == "lane-0" and not held:
            held.extend(events)
            return events[:1]
        return events

    with FakeServer(answer, on_cancel=lambda request: held[-1:]) as server:
        lanes = await open_lanes(server)
        lane, one = await take(lanes), a_turn()
        lanes.post(one.frame(lane.name))
        created = await lane.events.get()
        assert isinstance(created, dict)
        one.receive(created)
        lanes.leave(lane, one)
        while (again := await take(lanes)).name != "lane-0":
            other = a_turn()
            lanes.post(other.frame(again.name))
            await play(again, other)
            lanes.leave(again, other)
        assert not again.answered
        await lanes.close()
    assert [cancel["response_id"] for cancel in server.cancels] == ["resp_1"]


async def test_a_turn_whose_last_event_had_arrived_is_not_cancelled() -> None:
    with FakeServer(lambda request: turn(request, [message("x")])) as server:
        lanes = await open_lanes(server)
        lane, one = await take(lanes), a_turn()
        lanes.post(one.frame(lane.name))
        while not lane.ended:
            await asyncio.sleep(0)
        lanes.leave(lane, one)
        assert (await take(lanes)).name == "lane-0"
        await lanes.close()
    assert server.cancels == []


async def test_a_cancel_that_came_too_late_is_no_answer_to_the_next_turn() -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [refusal(request, "response_not_found", 404), *turn(request, [message("x")])]

    with FakeServer(answer) as server:
        lanes = await open_lanes(server)
        lane, one = await take(lanes), a_turn()
        lanes.post(one.frame(lane.name))
        await play(lane, one)
        assert one.started
        await lanes.close()


@pytest.mark.parametrize("waiting", [1, 3, 3 * NUM_LANES])
async def test_whoever_waits_for_a_lane_learns_that_the_socket_closed(waiting: int) -> None:
    with FakeServer(lambda request: []) as server:
        lanes = await open_lanes(server)
        for _ in range(NUM_LANES):
            await take(lanes)
        tasks = [asyncio.ensure_future(lanes.take()) for _ in range(waiting)]
        await asyncio.sleep(0)
        await lanes.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 10) == [None] * waiting


@pytest.mark.parametrize("said", [["an array"], "text", 3, {}, {"message": "Forbidden"}])
async def test_a_socket_that_says_what_is_no_event_counts_as_lost_at_once(said: Any) -> None:
    with FakeServer(lambda _: [said]) as server:
        lanes = await open_lanes(server)
        lane, one = await take(lanes), a_turn()
        lanes.post(one.frame(lane.name))
        found = await asyncio.wait_for(lane.events.get(), 10)
        assert isinstance(found, ConnectionClosed)
        assert lanes.closed
        assert await lanes.take() is None
        await asyncio.wait_for(lanes.close(), 10)


async def test_a_server_that_does_not_know_the_response_leaves_nobody_waiting() -> None:
    """It answers in no lane; of two turns that run, the one that was steered takes it."""
    rest: dict[str, list[dict[str, Any]]] = {}

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        if request["type"] == "response.create":
            id_ = f"resp_{len(rest)}"
            told = turn(request, [message("ok")], id=id_)
            rest[id_] = told[3:]
            return told[:3]
        named = {"previous_response_id": request["previous_response_id"], "input": "x"}
        failed = {"type": "response.steer.failed", "sequence_number": 0, "steer": named}
        return [failed, *(event for each in rest.values() for event in each)]

    with FakeServer(answer) as server:
        async with AsyncClient(server.url) as client:
            one, other = client.session(), client.session()
            quiet = asyncio.create_task(one.respond("first"))
            while not rest:
                await asyncio.sleep(0.001)
            async for event in other.stream_turn("second"):
                if event == TextDelta(text="o"):
                    other.steer("rather this")
            await quiet
            texts = [[item["content"] for item in session._chain.owed] for session in (one, other)]
    assert texts == [[], ["rather this"]]


@pytest.mark.parametrize("way", ["before", "between", "handed back"])
async def test_a_turn_that_was_steered_and_left_has_its_lane_until_nothing_comes_of_it(
    way: str,
) -> None:
    """Left before the response that it has steered has ended, or before the next one begins."""

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        if request["type"] == "response.create":
            told = turn(request, [message("ok")], id=f"resp_{len(server.requests)}")
            return told[:3] if len(server.requests) == 1 else told
        return [accepted, *([] if way == "before" else ended)]

    def rest(request: dict[str, Any]) -> list[dict[str, Any]]:
        if way == "handed back":
            return [told | {"type": "response.steer.failed", "steer": {"id": "steer_1"}}]
        told_next = turn(request, [], id="resp_x", status="incomplete", keepwarm=cancelled)
        return [*(ended if way == "before" else []), *told_next]

    told = {"stream_id": "lane-0", "sequence_number": 9}
    steer = {"id": "steer_1", "previous_response_id": "resp_1"}
    accepted = told | {"type": "response.steer.accepted", "steer": steer}
    cancelled, why = {"reason": "cancelled"}, {"reason": "steered"}
    ended = turn(told, [], status="incomplete", incomplete_details=why)[-1:]
    with FakeServer(answer, on_cancel=rest) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            events = session.stream_turn("go")
            async for event in events:
                if isinstance(event, TurnSteered):
                    break
                if event == TextDelta(text="o"):
                    session.steer("rather this")
                    if way == "before":
                        break
            await events.aclose()
            assert [(await client.session().respond("x")).text for _ in range(2)] == ["ok", "ok"]
    assert server.cancels == [{"type": "response.cancel", "stream_id": "lane-0"}]
    assert [r["stream_id"] for r in server.requests if r["type"] == "response.create"] == [
        *("lane-0", "lane-1", "lane-0")
    ]
