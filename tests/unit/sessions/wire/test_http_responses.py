"""Responses by id: their own tenant's alone, shown as they ended, listed, deleted, cancelled."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseItemList

from sessions.http.exchange import Call
from sessions.http.message import HttpResponse
from sessions.wire.http_responses import LISTED, MAX_LISTED, StoredResponses, asked_again
from sessions.wire.links import Link
from tests.support.exchange import make_call
from tests.support.fake_engine import play
from tests.support.hub_bench import HubBench
from tests.support.sessions_rig import END, call
from tests.support.speaking_engine import SpeakingEngine
from tests.unit.sessions.turns.test_searching import TOOLS, asks
from tools_api.dialects.conversations import item_object
from tools_api.errors import ApiError
from tools_api.items import Item

Handler = Callable[[Call], Awaitable[HttpResponse]]


class Client:
    """A WebSocket's outlet that keeps events."""

    def __init__(self, bench: HubBench, tenant: str = "acme") -> None:
        self.bench = bench
        self.events: list[dict[str, Any]] = []
        self.link: Link = bench.hub.open(tenant, self)

    def deliver(self, frames: Any, close: int | None) -> None:
        self.events += [orjson.loads(frame) for frame in frames]

    async def turn(self, **fields: Any) -> dict[str, Any]:
        event = {"type": "response.create", "input": "hi"} | fields
        self.bench.hub.receive(self.link, json.dumps(event))
        await self.bench.settle()
        response = self.events[-1]["response"]
        assert isinstance(response, dict)
        return response


def run(
    scenario: Callable[[HubBench, StoredResponses], Coroutine[Any, Any, None]],
    *,
    holds: bool = False,
) -> None:
    async def with_handlers(bench: HubBench) -> None:
        await scenario(bench, StoredResponses(hub=bench.hub, store=bench.service.store))

    play(lambda: HubBench(SpeakingEngine(holds=holds)), with_handlers)


async def body_of(handler: Handler, id_: str, target: str = "/", tenant: str = "acme") -> Any:
    answer = await handler(make_call(id_, target=target, tenant=tenant))
    assert answer.status == 200
    return orjson.loads(answer.body)


async def refused(
    handler: Handler, id_: str, target: str = "/", tenant: str = "acme"
) -> tuple[int, Any]:
    with pytest.raises(ApiError) as caught:
        await handler(make_call(id_, target=target, tenant=tenant))
    return caught.value.status, caught.value.code


def test_a_stored_response_is_shown_as_it_ended() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        response = await Client(bench).turn(instructions='"response":{', metadata={"a": "b"})
        assert await body_of(stored.show_stored, response["id"]) == response
        Response.model_validate(response)

    run(scenario)


def test_what_is_not_there_or_not_the_tenants_is_not_found() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        client = Client(bench)
        mine, private = await client.turn(), await client.turn(store=False)
        handlers = (stored.show_stored, stored.delete, stored.input_items)
        for handler in (*handlers, stored.cancel):
            assert await refused(handler, mine["id"], tenant="other") == (404, "response_not_found")
            assert await refused(handler, "resp_none") == (404, "response_not_found")
            assert await refused(handler, private["id"]) == (404, "response_not_found")
        assert await refused(stored.cancel, mine["id"]) == (404, "response_not_found")
        assert await body_of(stored.show_stored, mine["id"]) == mine

    run(scenario)


def test_a_response_that_runs_is_shown_as_it_stands() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        running = await Client(bench).turn()
        assert bench.engine.waiting
        shown = await body_of(stored.show_stored, running["id"])
        assert (shown["id"], shown["status"], shown["output"]) == (running["id"], "in_progress", [])
        Response.model_validate(shown)
        assert (await refused(stored.show_stored, running["id"], tenant="other"))[0] == 404
        assert await refused(stored.delete, running["id"]) == (400, "invalid_value")
        private = await Client(bench).turn(store=False)
        assert (await refused(stored.show_stored, private["id"]))[0] == 404

    run(scenario, holds=True)


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("", None),
        ("?stream=false&starting_after=5", None),
        ("?stream=true", -1),
        ("?stream=true&starting_after=0", 0),
        ("?stream=true&starting_after=123456789012345678", 123456789012345678),
    ],
)
def test_a_stream_of_what_was_said_begins_behind_a_number(query: str, after: int | None) -> None:
    asked = asked_again(make_call("resp_1", target="/" + query))
    assert after == (None if asked is None else asked.after_sequence)


@pytest.mark.parametrize(
    "query", ["stream=1", "stream=true&starting_after=-1", f"stream=true&starting_after={10**18}"]
)
def test_a_stream_behind_no_number_is_refused(query: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked_again(make_call("resp_1", target="/?" + query))
    assert caught.value.code == "invalid_value"


def test_what_is_deleted_is_gone_and_what_continued_it_is_not() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        client = Client(bench)
        first = await client.turn()
        second = await client.turn(previous_response_id=first["id"])
        assert await body_of(stored.delete, first["id"]) == {
            "id": first["id"],
            "object": "response",
            "deleted": True,
        }
        assert (await refused(stored.show_stored, first["id"]))[0] == 404
        assert (await refused(stored.delete, first["id"]))[0] == 404
        third = await client.turn(previous_response_id=second["id"])
        assert third["status"] == "completed"

    run(scenario)


def test_one_that_failed_is_deleted_like_any_other() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        failed = await Client(bench).turn(keepwarm={"budget": {"output": 0}})
        assert failed["status"] == "failed"
        assert (await body_of(stored.show_stored, failed["id"]))["status"] == "failed"
        assert (await refused(stored.delete, failed["id"], tenant="other"))[0] == 404
        assert (await body_of(stored.delete, failed["id"]))["deleted"]
        for handler in (stored.show_stored, stored.delete):
            assert await refused(handler, failed["id"]) == (404, "response_not_found")

    run(scenario)


@pytest.mark.parametrize("store", [True, False])
def test_a_turn_is_cancelled_for_another_connection_and_can_be_continued(store: bool) -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        client = Client(bench)
        running = await client.turn(store=store)
        bench.engine.piece(bench.engine.waiting.popleft(), "Hel")
        await bench.settle()
        assert (await refused(stored.cancel, running["id"], tenant="other"))[0] == 404
        ended = await body_of(stored.cancel, running["id"])
        assert (ended["status"], ended["keepwarm"]["reason"]) == ("incomplete", "cancelled")
        assert ended["output"][0]["content"][0]["text"] == "Hel"
        await asyncio.sleep(0)
        assert client.events[-1] == client.events[-1] | {"response": ended}
        assert len(bench.service.store.running) == 0
        await client.turn(previous_response_id=running["id"])
        bench.engine.speak()
        await bench.settle()
        assert client.events[-1]["type"] == "response.completed"

    run(scenario, holds=True)


def test_input_items_are_all_that_the_model_read_newest_first() -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        client = Client(bench)
        asked = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "one"}]
        first = await client.turn(input=asked)
        second = await client.turn(previous_response_id=first["id"], input="two")
        listed = await body_of(stored.input_items, second["id"])
        ResponseItemList.model_validate(listed)
        texts = [item["content"][0]["text"] for item in listed["data"]]
        assert texts == ["two", "Hello", "one", "be brief"]
        ids = [item["id"] for item in listed["data"]]
        assert len(set(ids)) == 4
        assert ids[1] == first["output"][0]["id"]
        assert (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
        oldest_first = await body_of(stored.input_items, second["id"], "/?order=asc")
        assert [item["id"] for item in oldest_first["data"]] == ids[::-1]

    run(scenario)


def test_what_a_search_found_is_listed_where_the_model_read_it() -> None:
    """Calls, outputs and what followed, in order, as the response told them."""
    made = call("weather", '{"weather": 1}') + END
    parts = iter([asks(), asks("shares"), made, "bye" + END])

    async def at_once(work: Callable[[], Any]) -> Any:
        return work()

    async def scenario(bench: HubBench) -> None:
        client = Client(bench)
        stored = StoredResponses(hub=bench.hub, store=bench.service.store)
        first = await client.turn(tools=TOOLS)
        assert [item["type"] for item in first["output"]] == [
            *["tool_search_call", "tool_search_output"] * 2, "function_call"
        ]  # fmt: skip
        oldest_first = "/?order=asc"
        listed = await body_of(stored.input_items, first["id"], oldest_first)
        assert [item["type"] for item in listed["data"]] == ["message"]
        output = {"type": "function_call_output", "output": "20"}
        output["call_id"] = first["output"][-1]["call_id"]
        second = await client.turn(previous_response_id=first["id"], input=[output], tools=TOOLS)
        listed = await body_of(stored.input_items, second["id"], oldest_first)
        ResponseItemList.model_validate(listed)
        assert listed["data"][1:-1] == first["output"]
        assert listed["data"][-1].items() > output.items()
        newest_first = await body_of(stored.input_items, second["id"])
        assert newest_first["data"] == listed["data"][::-1]

    engine = SpeakingEngine(lambda _: [next(parts)])
    play(lambda: HubBench(engine, in_thread=at_once), scenario)


@pytest.mark.parametrize("name", [None, "__fake_id__"])
def test_a_list_is_read_page_by_page(name: str | None) -> None:
    """Also where a client has given all items one id: the next page begins behind the last."""

    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        number = MAX_LISTED + 5
        said = [{"role": "user", "content": f"{n}", "id": name} for n in range(number)]
        id_ = (await Client(bench).turn(input=said))["id"]
        assert len((await body_of(stored.input_items, id_))["data"]) == LISTED
        found, after = [], ""
        while True:
            page = await body_of(stored.input_items, id_, f"/?order=asc&limit=40{after}")
            found += [item["content"][0]["text"] for item in page["data"]]
            after = f"&after={page['last_id']}"
            assert len(found) <= number
            if not page["has_more"]:
                break
        assert found == [f"{n}" for n in range(number)]
        most = await body_of(stored.input_items, id_, f"/?limit={MAX_LISTED}")
        assert (len(most["data"]), most["has_more"]) == (MAX_LISTED, True)
        empty = await body_of(stored.input_items, id_, f"/?order=asc{after}")
        assert (empty["data"], empty["first_id"], empty["has_more"]) == ([], None, False)

    run(scenario)


def test_of_a_long_list_the_page_alone_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Item] = []

    def counted(item: Item) -> dict[str, Any]:
        written.append(item)
        return item_object(item)

    monkeypatch.setattr("tools_api.dialects.conversations.item_object", counted)

    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        said = [{"role": "user", "content": f"{n}"} for n in range(150)]
        id_ = (await Client(bench).turn(input=said))["id"]
        for query in ("/?limit=7", f"/?limit=7&after=msg_100_{id_.removeprefix('resp_')}"):
            written.clear()
            assert len((await body_of(stored.input_items, id_, query))["data"]) == 7
            assert len(written) == 7

    run(scenario)


@pytest.mark.parametrize(
    "query", ["limit=0", f"limit={MAX_LISTED + 1}", "limit=x", "limit=99999", "order=up", "after=x"]
)
def test_a_query_that_cannot_be_is_refused(query: str) -> None:
    async def scenario(bench: HubBench, stored: StoredResponses) -> None:
        id_ = (await Client(bench).turn())["id"]
        assert await refused(stored.input_items, id_, f"/?{query}") == (400, "invalid_value")

    run(scenario)
